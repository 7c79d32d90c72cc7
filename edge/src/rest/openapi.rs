//! The description of the protocol in OpenAPI 3.1, made of the [`table`](super::table) that the router is made of, and of
//! what operators can ask. That of sockets, in AsyncAPI, is served beside it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use courant_connectors::model::commands::{Code, Refusal};
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use warp::http::{Method, StatusCode};

use super::reply::Document;
use super::route::{Ask, Route};
use super::{PREFIX, table};
use crate::http::{ClientAddress, ErrorBody, describe_operations, status};
use crate::ws;

/// What every route may refuse with.
const COMMON: [Code; 4] = [Code::BadRequest, Code::RateLimited, Code::Unavailable, Code::Timeout];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/openapi.json", "This description", openapi),
        Route::get("/asyncapi.json", "The protocol of sockets, in AsyncAPI 3", asyncapi),
    ]
}

async fn openapi(_: Ask<ClientAddress>) -> Result<Document, Refusal> {
    static WRITTEN: OnceLock<Bytes> = OnceLock::new();
    Ok(Document(WRITTEN.get_or_init(|| describe(&table()).to_string().into()).clone()))
}

async fn asyncapi(_: Ask<ClientAddress>) -> Result<Document, Refusal> {
    static WRITTEN: OnceLock<Bytes> = OnceLock::new();
    Ok(Document(WRITTEN.get_or_init(|| ws::asyncapi().to_string().into()).clone()))
}

/// The schemas of what comes in and of what goes out: a field that may be left out on the way in is always there on the
/// way out.
struct Schemas {
    incoming: SchemaGenerator,
    outgoing: SchemaGenerator,
}

pub(super) fn describe(routes: &[Route]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = Schemas {
        incoming: settings.clone().into_generator(),
        outgoing: settings.for_serialize().into_generator(),
    };
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for route in routes {
        let operation = schemas.operation(route);
        let path = paths.entry(format!("{PREFIX}{}", route.path)).or_default();
        path.insert(route.method.as_str().to_ascii_lowercase(), operation);
    }
    for (path, operation) in describe_operations(&mut schemas.outgoing) {
        paths.entry(path.to_owned()).or_default().insert("get".to_owned(), operation);
    }
    let mut components = schemas.incoming.take_definitions(true);
    components.extend(schemas.outgoing.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Courant", "version": env!("CARGO_PKG_VERSION"), "license": { "name": "MIT OR Apache-2.0" } },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer", "bearerFormat": "JWT" } },
        },
    })
}

impl Schemas {
    fn operation(&mut self, route: &Route) -> Value {
        let mut operation = Map::new();
        operation.insert("operationId".to_owned(), operation_id(route).into());
        operation.insert("summary".to_owned(), route.summary.into());
        operation.insert("tags".to_owned(), json!([tag(route)]));
        let security = if route.is_for_signed_in { json!([{ "bearer": [] }]) } else { json!([]) };
        operation.insert("security".to_owned(), security);
        let input = (route.shapes.input)(&mut self.incoming);
        let in_query = route.method == Method::GET;
        let parameters: Vec<Value> = path_parameter(route)
            .into_iter()
            .chain(in_query.then(|| self.query(&input)).into_iter().flatten())
            .collect();
        if !parameters.is_empty() {
            operation.insert("parameters".to_owned(), parameters.into());
        }
        let has_body = !in_query && properties(self.resolved(&input)).next().is_some();
        if has_body {
            let content = json!({ "application/json": { "schema": input } });
            operation.insert("requestBody".to_owned(), json!({ "required": true, "content": content }));
        }
        operation.insert("responses".to_owned(), self.responses(route, has_body));
        operation.into()
    }

    /// A query's parameters, one by one.
    fn query(&self, input: &Schema) -> Vec<Value> {
        let schema = self.resolved(input);
        let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        let parameter = |(name, schema): (&String, &Value)| {
            let required = required.iter().any(|required| required == name);
            json!({ "name": name, "in": "query", "required": required, "schema": schema })
        };
        properties(schema).map(parameter).collect()
    }

    /// What a reference refers to.
    fn resolved<'a>(&'a self, schema: &'a Schema) -> &'a Value {
        let name = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
        name.and_then(|name| self.incoming.definitions().get(name)).unwrap_or(schema.as_value())
    }

    fn responses(&mut self, route: &Route, has_body: bool) -> Value {
        let mut responses = BTreeMap::new();
        for answered in route.statuses {
            let body =
                (route.shapes.reply)(&mut self.outgoing).filter(|_| *answered != StatusCode::NO_CONTENT);
            let mut response = json!({ "description": answered.canonical_reason() });
            if let Some(schema) = body {
                response["content"] = json!({ "application/json": { "schema": schema } });
            }
            responses.insert(answered.as_u16().to_string(), response);
        }
        let error = self.outgoing.subschema_for::<ErrorBody>();
        for (refused, codes) in refusals(route, has_body) {
            let content = json!({ "application/json": { "schema": error } });
            let response = json!({ "description": codes.join(", "), "content": content });
            responses.insert(refused.as_u16().to_string(), response);
        }
        json!(responses)
    }
}

/// The codes a route may refuse with, by status.
fn refusals(route: &Route, has_body: bool) -> BTreeMap<StatusCode, Vec<&'static str>> {
    let signed_in = route.is_for_signed_in.then_some(Code::Unauthenticated);
    let too_large = has_body.then_some(Code::TooLarge);
    // What is named may not be there.
    let not_found = (route.shapes.parameter)().and(Some(Code::NotFound));
    let always = signed_in.into_iter().chain(too_large).chain(not_found);
    let codes = COMMON.iter().chain(route.refuses).copied().chain(always);
    let mut by_status: BTreeMap<StatusCode, Vec<&'static str>> = BTreeMap::new();
    for code in codes {
        by_status.entry(status(code)).or_default().push(code.as_str());
    }
    by_status
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn path_parameter(route: &Route) -> Option<Value> {
    let name = route.path.split('/').find_map(|part| part.strip_prefix('{')?.strip_suffix('}'))?;
    let schema = (route.shapes.parameter)()?;
    Some(json!({ "name": name, "in": "path", "required": true, "schema": schema }))
}

/// `get_chats_chat_id_members`.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let method = route.method.as_str().to_ascii_lowercase();
    std::iter::once(method.as_str()).chain(words).collect::<Vec<_>>().join("_")
}

/// The first part of the path, which is the resource.
fn tag(route: &Route) -> &str {
    route.path.split('/').nth(1).unwrap_or_default()
}
