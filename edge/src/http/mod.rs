//! HTTP over TCP.
//!
//! [`HttpServer`] accepts connections and bounds what one of them can cost; the routes below it are warp
//! filters, one file per resource: `/health` and `/metrics` here, those of clients in [`rest`](crate::rest) and beside it.
//! `exchange` names every request and says where it comes from, `error` writes what is told when it is refused.

mod error;
mod exchange;
mod health;
pub mod metrics;
mod open_files;
mod origin;
mod server;
mod stream;
#[cfg(test)]
mod tests;
mod visitors;

pub(crate) use error::{ErrorBody, method_not_allowed, refused, status};
pub(crate) use exchange::{ClientAddress, RequestId};
pub(crate) use health::describe as describe_operations;
pub use origin::Origin;
pub(crate) use origin::Origins;
#[cfg(test)]
pub(crate) use server::answer_here;
pub use server::{ConnectionSlot, HttpServer, ListenError};
pub(crate) use stream::ClientStream;

use std::convert::Infallible;
use std::sync::Arc;

use warp::filters::BoxedFilter;
use warp::reply::Response;
use warp::{Filter, Reply};

use crate::control::Control;

/// Routes that take some requests and reject the others.
pub type Routes = BoxedFilter<(Response,)>;

/// Every route; what none of them takes becomes an error body.
fn routes(
    control: Arc<dyn Control>,
    clients: Option<Routes>,
) -> impl Filter<Extract = (Response,), Error = Infallible> + Clone {
    let operations = health::routes(control).boxed();
    let all = match clients {
        Some(clients) => clients.or(operations).unify().boxed(),
        None => operations,
    };
    all.recover(error::answer).unify()
}

/// Those of operators, alone.
#[cfg(test)]
pub(crate) fn operations(control: Arc<dyn Control>) -> Routes {
    health::routes(control).boxed()
}

/// `GET`, and `HEAD` for probes that want no body.
fn get() -> BoxedFilter<()> {
    warp::get().or(warp::head()).unify().boxed()
}

pub(crate) fn json(status: warp::http::StatusCode, body: &impl serde::Serialize) -> Response {
    warp::reply::with_status(warp::reply::json(body), status).into_response()
}
