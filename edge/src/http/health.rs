//! `/health`, `/health/live`, `/health/ready` and `/metrics`.
//!
//! Live means the process answers; an orchestrator restarts it otherwise. Ready means that every pipeline and
//! every component works; traffic goes elsewhere otherwise, and a restart would not help.

use std::sync::Arc;

use courant_pipeline::health::{PipelineHealth, PipelineState};
use serde::Serialize;
use tokio::time::Instant;
use warp::http::{StatusCode, header};
use warp::reject::Rejection;
use warp::reply::Response;
use warp::{Filter, Reply};

use super::{get, json};
use crate::control::{Component, ComponentStatus, Control};

/// Prometheus' text format, as its scrapers ask for it.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Status {
    Live,
    Ready,
    NotReady,
}

#[derive(Serialize)]
struct HealthBody {
    status: Status,
    version: &'static str,
    uptime_seconds: u64,
    components: Vec<Component>,
    pipelines: Vec<PipelineBody>,
}

#[derive(Serialize)]
struct PipelineBody {
    #[serde(flatten)]
    health: PipelineHealth,
    in_flight: u64,
}

/// Names only what is not ready.
#[derive(Serialize)]
struct ReadyBody {
    status: Status,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    components: Vec<Component>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pipelines: Vec<UnreadyPipeline>,
}

#[derive(Serialize)]
struct UnreadyPipeline {
    name: String,
    state: PipelineState,
    last_error: Option<String>,
}

#[derive(Serialize)]
struct LiveBody {
    status: Status,
}

pub(super) fn routes(
    control: Arc<dyn Control>,
) -> impl Filter<Extract = (Response,), Error = Rejection> + Clone {
    let started = Instant::now();
    let control = warp::any().map(move || Arc::clone(&control));
    let live = warp::path!("health" / "live")
        .and(get())
        .map(|| json(StatusCode::OK, &LiveBody { status: Status::Live }));
    let readiness = warp::path!("health" / "ready")
        .and(get())
        .and(control.clone())
        .map(|control: Arc<dyn Control>| ready(&*control));
    let health = warp::path!("health")
        .and(get())
        .and(control.clone())
        .map(move |control: Arc<dyn Control>| health(&*control, started));
    let metrics = warp::path!("metrics").and(get()).and(control).map(|control: Arc<dyn Control>| {
        warp::reply::with_header(control.metrics(), header::CONTENT_TYPE, METRICS_TYPE).into_response()
    });
    live.or(readiness).unify().or(health).unify().or(metrics).unify()
}

fn ready(control: &dyn Control) -> Response {
    let mut components = control.components();
    components.retain(|component| component.status == ComponentStatus::Down);
    let pipelines: Vec<_> = control
        .health()
        .into_iter()
        .filter(|pipeline| !pipeline.state.is_ready())
        .map(|pipeline| UnreadyPipeline {
            name: pipeline.name,
            state: pipeline.state,
            last_error: pipeline.last_error,
        })
        .collect();
    if components.is_empty() && pipelines.is_empty() {
        json(StatusCode::OK, &ReadyBody { status: Status::Ready, components, pipelines })
    } else {
        json(StatusCode::SERVICE_UNAVAILABLE, &ReadyBody { status: Status::NotReady, components, pipelines })
    }
}

fn health(control: &dyn Control, started: Instant) -> Response {
    let (components, pipelines) = (control.components(), control.health());
    let ready = components.iter().all(|component| component.status == ComponentStatus::Up)
        && pipelines.iter().all(|pipeline| pipeline.state.is_ready());
    let body = HealthBody {
        status: if ready { Status::Ready } else { Status::NotReady },
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: started.elapsed().as_secs(),
        components,
        pipelines: pipelines
            .into_iter()
            .map(|health| PipelineBody { in_flight: health.in_flight(), health })
            .collect(),
    };
    json(StatusCode::OK, &body)
}
