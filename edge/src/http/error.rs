//! The one error body of the protocol.

use std::convert::Infallible;

use serde::Serialize;
use ulid::Ulid;
use warp::http::{HeaderValue, StatusCode, header};
use warp::reject::{MethodNotAllowed, Rejection};
use warp::reply::Response;

#[derive(Serialize)]
struct ErrorBody {
    error: ErrorDetail,
}

/// What a client needs to decide whether to try again, and an operator to find the request.
#[derive(Serialize)]
struct ErrorDetail {
    code: &'static str,
    message: &'static str,
    retryable: bool,
    retry_after_ms: Option<u64>,
    request_id: String,
}

/// Answers what no route took.
pub(super) async fn answer(rejection: Rejection) -> Result<Response, Infallible> {
    Ok(if rejection.is_not_found() {
        body(StatusCode::NOT_FOUND, "NOT_FOUND", "there is nothing at this path")
    } else if rejection.find::<MethodNotAllowed>().is_some() {
        let mut response =
            body(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", "this path is read with GET or HEAD");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        response
    } else {
        body(StatusCode::BAD_REQUEST, "BAD_REQUEST", "the request could not be understood")
    })
}

fn body(status: StatusCode, code: &'static str, message: &'static str) -> Response {
    let request_id = format!("req_{}", Ulid::generate());
    let error = ErrorDetail { code, message, retryable: false, retry_after_ms: None, request_id };
    super::json(status, &ErrorBody { error })
}
