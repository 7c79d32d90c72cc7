//! The one error body of the protocol.
//!
//! Whoever refuses a request says why and knows nothing of request ids: a refusal leaves a route as a response that
//! carries its [`Failure`], and `exchange` writes the body when it names the request. So the same words reach the client
//! from REST, from a refused upgrade and from a path that does not exist.

use std::convert::Infallible;

use courant_connectors::model::commands::{Code, Refusal};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use warp::http::{HeaderValue, StatusCode, header};
use warp::reject::{MethodNotAllowed, Rejection};
use warp::reply::Response;

use super::exchange::RequestId;

/// What every refused request is answered with.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody {
    error: ErrorDetail,
}

/// What a client needs to decide whether to try again, and an operator to find the request.
#[derive(Serialize, JsonSchema)]
struct ErrorDetail {
    /// One of the protocol's codes; `METHOD_NOT_ALLOWED` where the path does not take the method.
    #[schemars(schema_with = "codes")]
    code: &'static str,
    /// For the client's developer.
    message: String,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// When that may be, where it is known.
    retry_after_ms: Option<u64>,
    /// As in the header `x-request-id`.
    request_id: String,
}

/// What HTTP itself refuses with, beside the codes of commands.
const METHOD_NOT_ALLOWED: &str = "METHOD_NOT_ALLOWED";

fn codes(_: &mut SchemaGenerator) -> Schema {
    // Frames are not refused in HTTP.
    let codes = Code::ALL.iter().filter(|code| **code != Code::BadFrame).map(|code| code.as_str());
    let codes: Vec<&str> = codes.chain([METHOD_NOT_ALLOWED]).collect();
    json_schema!({ "type": "string", "enum": codes })
}

/// Why a request was not answered as asked.
#[derive(Debug, Clone)]
struct Failure {
    code: &'static str,
    message: String,
    retryable: bool,
    retry_after_ms: Option<u64>,
}

/// The HTTP status of a refusal.
pub(crate) const fn status(code: Code) -> StatusCode {
    match code {
        Code::BadRequest | Code::BadFrame => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Forbidden | Code::NotAMember => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Conflict | Code::IdempotencyMismatch => StatusCode::CONFLICT,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Code::CounterMissing | Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
    }
}

/// The response of a refused request, once `exchange` has written its body.
pub(crate) fn refused(refusal: Refusal) -> Response {
    let mut response = failed(
        status(refusal.code),
        Failure {
            code: refusal.code.as_str(),
            message: refusal.message,
            retryable: refusal.code.is_retryable(),
            retry_after_ms: refusal.retry_after_ms,
        },
    );
    if let Some(millis) = refusal.retry_after_ms {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(millis.div_ceil(1000)));
    }
    if refusal.code == Code::Unauthenticated {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The path is there and the method is not; `allow` says which are.
pub(crate) fn method_not_allowed(allow: HeaderValue) -> Response {
    let message = format!("this path takes {}", allow.to_str().unwrap_or_default());
    let failure = Failure { code: METHOD_NOT_ALLOWED, message, retryable: false, retry_after_ms: None };
    let mut response = failed(StatusCode::METHOD_NOT_ALLOWED, failure);
    response.headers_mut().insert(header::ALLOW, allow);
    response
}

fn failed(status: StatusCode, failure: Failure) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response.extensions_mut().insert(failure);
    response
}

/// Writes the body of a failed response; any other stays as it is.
pub(super) fn write_body(response: Response, request_id: &RequestId) -> Response {
    let Some(failure) = response.extensions().get::<Failure>().cloned() else { return response };
    let error = ErrorDetail {
        code: failure.code,
        message: failure.message,
        retryable: failure.retryable,
        retry_after_ms: failure.retry_after_ms,
        request_id: request_id.as_str().to_owned(),
    };
    let (mut parts, _) = response.into_parts();
    let (written, body) = super::json(parts.status, &ErrorBody { error }).into_parts();
    parts.headers.extend(written.headers);
    Response::from_parts(parts, body)
}

/// Answers what no route took.
pub(super) async fn answer(rejection: Rejection) -> Result<Response, Infallible> {
    Ok(if rejection.is_not_found() {
        refused(Refusal::new(Code::NotFound, "there is nothing at this path"))
    } else if rejection.find::<MethodNotAllowed>().is_some() {
        method_not_allowed(HeaderValue::from_static("GET, HEAD"))
    } else {
        refused(Refusal::new(Code::BadRequest, "the request could not be understood"))
    })
}
