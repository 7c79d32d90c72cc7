//! Whether a frame is as the published protocol says.

use std::collections::HashMap;
use std::sync::LazyLock;

use jsonschema::Validator;

use super::*;

/// What the server may send, by type. Stricter than the document, which leaves room for fields to come: one that is not
/// in it fails.
static FRAMES: LazyLock<HashMap<String, Validator>> = LazyLock::new(|| {
    let document = asyncapi();
    let messages = document["components"]["messages"].as_object().unwrap();
    let of_server = messages.iter().filter_map(|(key, message)| {
        let mut schema = message["payload"].clone();
        schema["additionalProperties"] = false.into();
        schema["components"] = document["components"].clone();
        Some((key.strip_prefix("server.")?.to_owned(), jsonschema::validator_for(&schema).unwrap()))
    });
    of_server.collect()
});

/// Panics unless the frame is one that the server may send.
pub(super) fn check(frame: &Value) {
    let kind = frame["type"].as_str().expect("a frame has a type");
    let published = FRAMES.get(kind).unwrap_or_else(|| panic!("'{kind}' is not published"));
    if let Err(error) = published.validate(frame) {
        panic!("{error} at {}: {frame}", error.instance_path());
    }
}
