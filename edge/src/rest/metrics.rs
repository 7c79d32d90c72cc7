//! Every metric of REST, named in one place.

use std::time::Duration;

use metrics::{counter, describe_counter, describe_histogram, histogram};
use warp::http::StatusCode;

use super::route::Route;

pub const REQUESTS: &str = "courant_rest_requests_total";
pub const SECONDS: &str = "courant_rest_seconds";

/// Says what each metric means, once a process.
pub(super) fn describe() {
    describe_counter!(REQUESTS, "requests of clients, by route and status");
    describe_histogram!(SECONDS, "from a request's head to its answer, by route");
}

/// Routes are named as in the table: a path with ids would be a metric per chat.
pub(super) fn answered(route: &Route, status: StatusCode, took: Duration) {
    let method = route.method.to_string();
    let status = status.as_str().to_owned();
    counter!(REQUESTS, "method" => method.clone(), "route" => route.path, "status" => status).increment(1);
    histogram!(SECONDS, "method" => method, "route" => route.path).record(took);
}
