//! REST for clients: `/api/v1`.
//!
//! Each resource has a file with its rows of the [`table`]: method, path, what it is for, and the function that answers. The
//! types of that function say the rest, so the rows are all there is: the router matches them, and the published
//! description (`/api/v1/openapi.json`) is made of them and cannot say anything else.
//!
//! What happens to a request is the same for all, and in this order: who asks, how often, is the session still there (`who`);
//! what do they ask (`input`); then the row's function asks a pipeline or the store; then the answer is written (`reply`). Nothing of
//! a body is read before its sender is known or counted.
//!
//! Rejected: a warp filter per route. Thirty of them are tried one after the other, and what was rejected in between decides
//! between 404 and 405.

mod auth;
mod channels;
mod chats;
mod fields;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod input;
mod members;
mod messages;
pub mod metrics;
mod openapi;
mod page;
mod query;
mod reply;
mod route;
mod router;
mod search;
mod sessions;
mod users;
mod who;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use warp::Filter as _;

use crate::api::Api;
use crate::http::Routes;
pub(crate) use fields::check_content_type;
pub(crate) use query::not_theirs;
use route::Route;
use router::Router;

/// Where everything of this protocol is.
const PREFIX: &str = "/api/v1";

/// Every route, in the order they are tried: a fixed path before one with a parameter.
fn table() -> Vec<Route> {
    [
        auth::routes(),
        sessions::routes(),
        users::routes(),
        chats::routes(),
        members::routes(),
        messages::routes(),
        channels::routes(),
        search::routes(),
        openapi::routes(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Takes every request whose path is in the table.
pub fn routes(api: Api) -> Routes {
    metrics::describe();
    let router = Arc::new(Router::new(api, table()));
    let finder = Arc::clone(&router);
    input::arriving(move |path| finder.find(path))
        .and_then(move |arriving| {
            let router = Arc::clone(&router);
            async move { Ok::<_, warp::Rejection>(router.answer(arriving).await) }
        })
        .boxed()
}
