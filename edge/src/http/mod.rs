//! HTTP over TCP.
//!
//! [`HttpServer`] accepts connections and bounds what one of them can cost; the routes below it are warp
//! filters, one file per resource.

mod error;
mod health;
mod server;
#[cfg(test)]
mod tests;

pub use server::{HttpServer, ListenError};

use std::convert::Infallible;
use std::sync::Arc;

use warp::filters::BoxedFilter;
use warp::reply::Response;
use warp::{Filter, Reply};

use crate::control::Control;

/// Every route; what none of them takes becomes an error body.
fn routes(control: Arc<dyn Control>) -> impl Filter<Extract = (Response,), Error = Infallible> + Clone {
    health::routes(control).recover(error::answer).unify()
}

/// `GET`, and `HEAD` for probes that want no body.
fn get() -> BoxedFilter<()> {
    warp::get().or(warp::head()).unify().boxed()
}

fn json(status: warp::http::StatusCode, body: &impl serde::Serialize) -> Response {
    warp::reply::with_status(warp::reply::json(body), status).into_response()
}
