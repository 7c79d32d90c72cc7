//! What goes out when nothing went wrong. The type of an answer says its status, so that the description of a route
//! cannot say another.

use bytes::Bytes;
use courant_connectors::model::commands::Sent;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use warp::http::{HeaderValue, StatusCode, header};
use warp::reply::Response;

use crate::http::json;

/// An answer of one type.
pub(super) trait Reply: Send {
    /// Every status it can have.
    const STATUSES: &'static [StatusCode];

    /// What its body is like, where it has one.
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema>;

    fn into_response(self) -> Response;
}

/// 200 and what was asked for.
pub(super) struct Found<T>(pub(super) T);

impl<T: Serialize + JsonSchema + Send> Reply for Found<T> {
    const STATUSES: &'static [StatusCode] = &[StatusCode::OK];

    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<T>())
    }

    fn into_response(self) -> Response {
        json(StatusCode::OK, &self.0)
    }
}

/// 201 and what was made.
pub(super) struct Created<T>(pub(super) T);

impl<T: Serialize + JsonSchema + Send> Reply for Created<T> {
    const STATUSES: &'static [StatusCode] = &[StatusCode::CREATED];

    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<T>())
    }

    fn into_response(self) -> Response {
        json(StatusCode::CREATED, &self.0)
    }
}

/// 204: done, and there is nothing to tell.
pub(super) struct Done;

impl Reply for Done {
    const STATUSES: &'static [StatusCode] = &[StatusCode::NO_CONTENT];

    fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }

    fn into_response(self) -> Response {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    }
}

/// 200 and how it is now, or 204 if it is no more.
pub(super) struct Left<T>(pub(super) Option<T>);

impl<T: Serialize + JsonSchema + Send> Reply for Left<T> {
    const STATUSES: &'static [StatusCode] = &[StatusCode::OK, StatusCode::NO_CONTENT];

    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Found::<T>::schema(generator)
    }

    fn into_response(self) -> Response {
        match self.0 {
            Some(left) => Found(left).into_response(),
            None => Done.into_response(),
        }
    }
}

/// 201 and what was made, or 200 if it was made before.
pub(super) struct Once<T> {
    pub(super) made: T,
    pub(super) before: bool,
}

impl<T: Serialize + JsonSchema + Send> Reply for Once<T> {
    const STATUSES: &'static [StatusCode] = &[StatusCode::CREATED, StatusCode::OK];

    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Found::<T>::schema(generator)
    }

    fn into_response(self) -> Response {
        if self.before { Found(self.made).into_response() } else { Created(self.made).into_response() }
    }
}

/// A message is sent once.
impl Reply for Sent {
    const STATUSES: &'static [StatusCode] = Once::<Self>::STATUSES;

    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Once::<Self>::schema(generator)
    }

    fn into_response(self) -> Response {
        let before = self.deduplicated;
        Once { made: self, before }.into_response()
    }
}

/// 200 and JSON that was written before.
pub(super) struct Document(pub(super) Bytes);

impl Reply for Document {
    const STATUSES: &'static [StatusCode] = &[StatusCode::OK];

    fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
        Some(schemars::json_schema!({ "type": "object" }))
    }

    fn into_response(self) -> Response {
        let mut response = Response::new(self.0.into());
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}
