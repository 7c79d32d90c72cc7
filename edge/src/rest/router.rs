//! Which row of the table answers a request, and what holds for all of them.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::commands::{Code, Refusal};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::Instrument as _;
use warp::http::{HeaderValue, Method, StatusCode, header};
use warp::reply::Response;

use super::input::Arriving;
use super::route::{Place, Request, Route};
use super::{PREFIX, metrics};
use crate::api::Api;
use crate::http::{method_not_allowed, refused};

/// When to come back if there is no place for a request: about as long as one takes.
const CROWDED: Duration = Duration::from_secs(1);

pub(super) struct Router {
    api: Arc<Api>,
    routes: Vec<Route>,
    /// Places for requests. Full: refused with `UNAVAILABLE`, so that those who are being answered are.
    places: Semaphore,
}

impl Router {
    pub(super) fn new(api: Api, routes: Vec<Route>) -> Self {
        let places = usize::try_from(api.edge.max_requests.get()).unwrap_or(Semaphore::MAX_PERMITS);
        Self { api: Arc::new(api), routes, places: Semaphore::new(places) }
    }

    pub(super) async fn answer(&self, arriving: Arriving) -> Response {
        let reader = self.api.origins.reader(&arriving.headers);
        let mut response = self.answer_or_refuse(arriving).await;
        self.api.origins.share(&mut response, reader);
        let headers = response.headers_mut();
        // Answers are somebody's own and out of date at once; and nothing here is for a browser to guess at.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    async fn answer_or_refuse(&self, mut arriving: Arriving) -> Response {
        if arriving.method == Method::HEAD {
            // The server leaves the body out.
            arriving.method = Method::GET;
        }
        let Some(route) = self.at(&arriving.place).find(|route| route.method == arriving.method) else {
            let allow = self.allow(&arriving.place);
            return if arriving.method == Method::OPTIONS {
                options(allow)
            } else {
                method_not_allowed(allow)
            };
        };
        let Ok(_place) = self.places.try_acquire() else {
            let crowded = Refusal::new(Code::Unavailable, "too many requests are being answered; try again");
            return refused(crowded.retry_after(CROWDED));
        };
        let span = tracing::info_span!("request", id = arriving.request_id.as_str(), route = route.path);
        let request = Request { api: Arc::clone(&self.api), limit: route.limit, arriving };
        let begun = Instant::now();
        let answered = route.answer(request).instrument(span.clone()).await;
        let response = answered.unwrap_or_else(refused);
        let took = begun.elapsed();
        metrics::answered(route, response.status(), took);
        span.in_scope(|| tracing::debug!(method = %route.method, status = response.status().as_u16(), ?took, "answered"));
        response
    }

    /// The first place in the table that a path is.
    pub(super) fn find(&self, path: &str) -> Option<Place> {
        let below = path.strip_prefix(PREFIX)?;
        self.routes.iter().find_map(|route| route.matches(below))
    }

    /// One route per method.
    fn at(&self, place: &Place) -> impl Iterator<Item = &Route> {
        let path = place.path;
        self.routes.iter().filter(move |route| route.path == path)
    }

    fn allow(&self, place: &Place) -> HeaderValue {
        let mut methods: Vec<&str> = self.at(place).map(|route| route.method.as_str()).collect();
        if methods.contains(&"GET") {
            methods.push("HEAD");
        }
        methods.push("OPTIONS");
        HeaderValue::try_from(methods.join(", ")).expect("methods are letters")
    }
}

fn options(allow: HeaderValue) -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(header::ALLOW, allow);
    response
}
