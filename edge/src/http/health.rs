//! `/health`, `/health/live`, `/health/ready` and `/metrics`.
//!
//! Live means the process answers; an orchestrator restarts it otherwise. Ready means that every pipeline and
//! every component works; traffic goes elsewhere otherwise, and as a rule a restart would not help.

use std::sync::Arc;

use courant_pipeline::health::{PipelineHealth, PipelineState};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use warp::http::{StatusCode, header};
use warp::reject::Rejection;
use warp::reply::Response;
use warp::{Filter, Reply};

use super::get;
use crate::control::{Component, ComponentStatus, Control};

/// Prometheus' text format, as its scrapers ask for it.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
enum Status {
    Live,
    Ready,
    NotReady,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Health")]
struct HealthBody {
    status: Status,
    version: &'static str,
    uptime_seconds: u64,
    components: Vec<Component>,
    pipelines: Vec<PipelineBody>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PipelineHealth")]
struct PipelineBody {
    #[serde(flatten)]
    health: PipelineHealth,
    in_flight: u64,
}

/// Names only what is not ready.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Readiness")]
struct ReadyBody {
    status: Status,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    components: Vec<Component>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pipelines: Vec<UnreadyPipeline>,
}

#[derive(Serialize, JsonSchema)]
struct UnreadyPipeline {
    name: String,
    state: PipelineState,
    last_error: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Liveness")]
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
        .map(|| super::json(StatusCode::OK, &LiveBody { status: Status::Live }));
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
        super::json(StatusCode::OK, &ReadyBody { status: Status::Ready, components, pipelines })
    } else {
        super::json(
            StatusCode::SERVICE_UNAVAILABLE,
            &ReadyBody { status: Status::NotReady, components, pipelines },
        )
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
    super::json(StatusCode::OK, &body)
}

/// Paths and what `GET` of them is, for the description of the protocol.
pub(crate) fn describe(schemas: &mut SchemaGenerator) -> [(&'static str, Value); 4] {
    let operation = |id: &str, summary: &str, responses: Value| {
        json!({
            "operationId": id, "summary": summary, "tags": ["operations"], "security": [], "responses": responses,
        })
    };
    let told = |status: StatusCode, media_type: &str, schema: Value| json!({ "description": status.canonical_reason(), "content": { media_type: { "schema": schema } } });
    let as_json = |status, schema| told(status, "application/json", schema);
    let health = json!({ "200": as_json(StatusCode::OK, schema::<HealthBody>(schemas)) });
    let live = json!({ "200": as_json(StatusCode::OK, schema::<LiveBody>(schemas)) });
    let ready = json!({
        "200": as_json(StatusCode::OK, schema::<ReadyBody>(schemas)),
        "503": as_json(StatusCode::SERVICE_UNAVAILABLE, schema::<ReadyBody>(schemas)),
    });
    let metrics = json!({ "200": told(StatusCode::OK, METRICS_TYPE, json!({ "type": "string" })) });
    [
        ("/health", operation("get_health", "Every component and every pipeline", health)),
        ("/health/live", operation("get_health_live", "Whether the process answers", live)),
        (
            "/health/ready",
            operation("get_health_ready", "Whether it can take traffic, and what cannot", ready),
        ),
        ("/metrics", operation("get_metrics", "Metrics, for Prometheus", metrics)),
    ]
}

fn schema<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}
