//! Whether a frame is as the published protocol says: as much of JSON Schema as the document uses.

use std::sync::LazyLock;

use super::*;

static DOCUMENT: LazyLock<Value> = LazyLock::new(asyncapi);

/// Panics unless the frame is one that the server may send.
pub(super) fn check(frame: &Value) {
    let kind = frame["type"].as_str().expect("a frame has a type");
    let message = &DOCUMENT["components"]["messages"][format!("server.{kind}")];
    assert!(message.is_object(), "'{kind}' is not published");
    check_value(&message["payload"], frame, kind);
}

fn check_value(schema: &Value, value: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.strip_prefix('#').expect("within the document");
        return check_value(DOCUMENT.pointer(pointer).expect("it exists"), value, at);
    }
    if let Some(expected) = schema.get("const") {
        assert_eq!(value, expected, "{at}");
    }
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at}: {value} is none of {allowed:?}");
    }
    check_type(&schema["type"], value, at);
    if let Some(properties) = schema["properties"].as_object() {
        for (name, value) in value.as_object().expect("checked above") {
            let schema = properties.get(name).unwrap_or_else(|| panic!("{at}.{name} is not published"));
            check_value(schema, value, &format!("{at}.{name}"));
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(value.get(name.as_str().unwrap()).is_some(), "{at}.{name} is missing");
        }
    }
    for item in value.as_array().into_iter().flatten() {
        check_value(&schema["items"], item, at);
    }
}

fn check_type(allowed: &Value, value: &Value, at: &str) {
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: the checker does not know '{other}'"),
    };
    let fits = match allowed {
        Value::Null => true,
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().any(|name| is(name.as_str().unwrap())),
        other => panic!("{at}: '{other}' is not a type"),
    };
    assert!(fits, "{at}: {value} is not {allowed}");
}
