//! The protocol of the socket as clients' tools read it: AsyncAPI 3, made of the types that frames are parsed into and
//! written from.

use courant_connectors::model::frames::{ChatCreatedFrame, MembershipChangedFrame, MessageFrame, ReplyFrame};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::close::Close;
use super::{frames, request};

/// Who sends a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// Both sides have frames of the same name, so a message's key says whose it is.
fn key(side: Side, name: &str) -> String {
    match side {
        Side::Client => format!("client.{name}"),
        Side::Server => format!("server.{name}"),
    }
}

/// The document.
pub fn asyncapi() -> Value {
    let mut schemas = schemars::generate::SchemaSettings::draft07()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let mut messages = Map::new();
    for (side, name, payload) in all(&mut schemas) {
        let message = json!({ "name": name, "contentType": "application/json", "payload": payload });
        messages.insert(key(side, name), message);
    }
    let referred = |side: Side| -> Vec<Value> {
        let prefix = key(side, "");
        let keys = messages.keys().filter(|key| key.starts_with(&prefix));
        keys.map(|key| json!({ "$ref": format!("#/channels/socket/messages/{key}") })).collect()
    };
    let (receive, send) = (referred(Side::Client), referred(Side::Server));
    let of_channel: Map<String, Value> = messages
        .keys()
        .map(|key| (key.clone(), json!({ "$ref": format!("#/components/messages/{key}") })))
        .collect();
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Courant",
            "version": env!("CARGO_PKG_VERSION"),
            "description": description(),
        },
        "defaultContentType": "application/json",
        "channels": { "socket": { "address": "/ws", "messages": of_channel } },
        // As AsyncAPI has it: from the side of the server.
        "operations": {
            "receive": { "action": "receive", "channel": { "$ref": "#/channels/socket" }, "messages": receive },
            "send": { "action": "send", "channel": { "$ref": "#/channels/socket" }, "messages": send },
        },
        "components": {
            "messages": messages,
            "schemas": schemas.take_definitions(true),
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer", "bearerFormat": "JWT" } },
        },
    })
}

/// Every frame.
fn all(schemas: &mut SchemaGenerator) -> Vec<(Side, &'static str, Value)> {
    use Side::{Client, Server};
    let mut all = Vec::new();
    let mut add = |side, name, payload: Value| all.push((side, name, payload));
    add(Client, "send_message", frame::<request::SendMessage<'_>>(schemas, "send_message"));
    add(Client, "ack", frame::<request::Ack<'_>>(schemas, "ack"));
    add(Client, "sync_request", frame::<request::SyncRequest<'_>>(schemas, "sync_request"));
    add(Client, "heartbeat", frame::<request::Heartbeat>(schemas, "heartbeat"));
    add(Server, "welcome", frame::<frames::Welcome<'_>>(schemas, "welcome"));
    add(Server, "ack", frame::<frames::Acked<'_>>(schemas, "ack"));
    add(Server, "error", frame::<frames::Error<'_>>(schemas, "error"));
    add(Server, "sync_batch", frame::<frames::SyncBatch<'_>>(schemas, "sync_batch"));
    add(Server, "heartbeat", frame::<frames::Heartbeat>(schemas, "heartbeat"));
    add(Server, "drain", frame::<frames::Drain>(schemas, "drain"));
    add(Server, "message", frame::<MessageFrame>(schemas, "message"));
    add(Server, "chat_created", frame::<ChatCreatedFrame>(schemas, "chat_created"));
    add(Server, "membership_changed", frame::<MembershipChangedFrame>(schemas, "membership_changed"));
    add(Server, "reply", frame::<ReplyFrame>(schemas, "reply"));
    all
}

/// A frame's schema with its `type` as the first field.
fn frame<T: JsonSchema>(schemas: &mut SchemaGenerator, name: &str) -> Value {
    let mut schema = T::json_schema(schemas).to_value();
    let mut properties = Map::new();
    properties.insert("type".to_owned(), json!({ "const": name }));
    if let Some(Value::Object(own)) = schema.get("properties") {
        properties
            .extend(own.iter().filter(|(name, _)| *name != "type").map(|(k, v)| (k.clone(), v.clone())));
    }
    let mut required = vec![json!("type")];
    if let Some(Value::Array(own)) = schema.get("required") {
        required.extend(own.iter().filter(|name| *name != "type").cloned());
    }
    schema["type"] = json!("object");
    schema["properties"] = Value::Object(properties);
    schema["required"] = Value::Array(required);
    schema
}

/// What schemas cannot say.
fn description() -> String {
    let codes: Vec<String> =
        Close::ALL.iter().map(|close| format!("{} {}", close.code(), close.reason())).collect();
    format!(
        "Text frames of one JSON object each, `type` first. Sign in with `Authorization: Bearer <access token>`, or with \
         the subprotocols `courant.v1, bearer.<access token>`; tokens never go in URLs. A frame that is JSON but wrong is \
         answered with an `error` of code BAD_FRAME; after eight of them one after another, and at anything that is not a \
         text frame of JSON, the socket closes. Frames of a type that a client does not know are for newer ones: it passes \
         over them. A socket outlives its access token and ends with its session. \
         Close codes: {}.",
        codes.join("; ")
    )
}
