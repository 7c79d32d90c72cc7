//! One row of the table: a method, a path, and a function whose types say what it takes and gives.

use std::future::Future;
use std::sync::Arc;

use courant_connectors::model::commands::{Code, Refusal};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use warp::http::{Method, StatusCode};
use warp::reply::Response;

use super::fields::FromPath;
use super::input::{Arriving, Nothing, read_body, read_query};
use super::reply::Reply;
use super::who::Who;
use crate::api::Api;
use crate::commands::took_too_long;
use crate::limits::Limit;

/// What a route's function is given: who asks, which thing the path names, and what else was said, in the query of
/// a `GET` and in the body of anything else.
pub(super) struct Ask<W, P = (), I = Nothing> {
    pub(super) api: Arc<Api>,
    pub(super) who: W,
    pub(super) path: P,
    pub(super) input: I,
}

/// A request on its way to a route's function.
pub(super) struct Request {
    pub(super) api: Arc<Api>,
    pub(super) limit: Limit,
    pub(super) arriving: Arriving,
}

pub(super) struct Route {
    pub(super) method: Method,
    /// Below the prefix. A part in braces is a parameter; there is at most one.
    pub(super) path: &'static str,
    /// What it is for, in a few words.
    pub(super) summary: &'static str,
    pub(super) limit: Limit,
    /// What it may refuse with, beside what every route may.
    pub(super) refuses: &'static [Code],
    pub(super) is_for_signed_in: bool,
    pub(super) statuses: &'static [StatusCode],
    pub(super) shapes: Shapes,
    #[cfg(fuzzing)]
    pub(super) reads: Reads,
    answer: Box<dyn Fn(Request) -> BoxFuture<'static, Result<Response, Refusal>> + Send + Sync>,
}

/// A path that is a route's.
pub(super) struct Place {
    /// As in the table.
    pub(super) path: &'static str,
    /// What stands for the parameter, if there is one.
    pub(super) parameter: Option<String>,
}

/// How the schemas of a route's types are made.
pub(super) struct Shapes {
    pub(super) parameter: fn() -> Option<Schema>,
    pub(super) input: fn(&mut SchemaGenerator) -> Schema,
    pub(super) reply: fn(&mut SchemaGenerator) -> Option<Schema>,
}

/// How a route's types are read, by themselves; what is wrong if they are not.
#[cfg(fuzzing)]
pub(super) struct Reads {
    pub(super) path: fn(&str) -> Option<Refusal>,
    pub(super) input: fn(&Method, &[u8]) -> Option<Refusal>,
}

impl Route {
    fn new<W, P, I, R, F>(
        method: Method,
        path: &'static str,
        summary: &'static str,
        function: fn(Ask<W, P, I>) -> F,
    ) -> Self
    where
        W: Who,
        P: FromPath,
        I: DeserializeOwned + JsonSchema + Send + 'static,
        R: Reply,
        F: Future<Output = Result<R, Refusal>> + Send + 'static,
    {
        Self {
            method,
            path,
            summary,
            limit: W::LIMIT,
            refuses: &[],
            is_for_signed_in: W::SIGNED_IN,
            statuses: R::STATUSES,
            shapes: Shapes {
                parameter: P::schema,
                input: SchemaGenerator::subschema_for::<I>,
                reply: R::schema,
            },
            #[cfg(fuzzing)]
            reads: Reads {
                path: |id| P::from_path(Some(id)).err(),
                input: |method, input| match (method, std::str::from_utf8(input)) {
                    (&Method::GET, Ok(query)) => read_query::<I>(query).err(),
                    _ => super::input::read_json::<I>(input).err(),
                },
            },
            answer: Box::new(move |request| {
                async move {
                    let patience = request.api.edge.request_timeout.0;
                    let ask = Ask::from_request(request).await?;
                    let answered = timeout(patience, function(ask)).await;
                    answered.unwrap_or_else(|_| Err(took_too_long())).map(Reply::into_response)
                }
                .boxed()
            }),
        }
    }

    /// Counts under another limit than usual.
    pub(super) fn limited_by(mut self, limit: Limit) -> Self {
        self.limit = limit;
        self
    }

    pub(super) fn refuses(mut self, codes: &'static [Code]) -> Self {
        self.refuses = codes;
        self
    }

    pub(super) fn answer(&self, request: Request) -> BoxFuture<'static, Result<Response, Refusal>> {
        (self.answer)(request)
    }

    /// `None` if this is not its path.
    pub(super) fn matches(&self, path: &str) -> Option<Place> {
        let (mut ours, mut theirs) = (self.path.split('/'), path.split('/'));
        let mut parameter = None;
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => {
                    return Some(Place { path: self.path, parameter: parameter.map(str::to_owned) });
                }
                (Some(our), Some(their)) if our.starts_with('{') => parameter = Some(their),
                (Some(our), Some(their)) if our == their => {}
                _ => return None,
            }
        }
    }
}

macro_rules! methods {
    ($($name:ident $method:ident;)*) => {
        impl Route { $(
            pub(super) fn $name<W, P, I, R, F>(
                path: &'static str,
                summary: &'static str,
                function: fn(Ask<W, P, I>) -> F,
            ) -> Self
            where
                W: Who,
                P: FromPath,
                I: DeserializeOwned + JsonSchema + Send + 'static,
                R: Reply,
                F: Future<Output = Result<R, Refusal>> + Send + 'static,
            {
                Self::new(Method::$method, path, summary, function)
            }
        )* }
    };
}

methods! {
    get GET;
    post POST;
    patch PATCH;
    delete DELETE;
}

impl<W: Who, P: FromPath, I: DeserializeOwned> Ask<W, P, I> {
    async fn from_request(request: Request) -> Result<Self, Refusal> {
        let Request { api, limit, arriving } = request;
        let Arriving { method, place, query, headers, address, body, .. } = arriving;
        let identifying = W::identify(&api, &headers, address, limit);
        let who = timeout(api.edge.request_timeout.0, identifying).await.map_err(|_| took_too_long())??;
        let path = P::from_path(place.parameter.as_deref())?;
        let input = if method == Method::GET {
            read_query(&query)?
        } else {
            let Nothing {} = read_query(&query)?;
            read_body(&headers, body).await?
        };
        Ok(Self { api, who, path, input })
    }
}
