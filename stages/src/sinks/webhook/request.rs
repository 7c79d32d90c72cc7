//! What a request carries, and what its answer means.

use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::http::{Answer, PostError};
use courant_pipeline::{Class, Origin, Record, StageError, clock};
use sha2::{Digest as _, Sha256};

use super::sign::Signer;
use super::{Body, DOING, RECEIVER, Webhook};
use crate::web::{refused, unanswered};

/// One record, ready to be posted.
pub(super) struct Item {
    pub(super) id: String,
    pub(super) body: Bytes,
}

/// What became of a record.
#[derive(Clone)]
pub(super) enum Fate {
    Delivered,
    Failed(Arc<StageError>),
}

impl Fate {
    pub(super) fn failed(error: StageError) -> Self {
        Self::Failed(Arc::new(error))
    }

    pub(super) fn is_retried(&self) -> bool {
        matches!(self, Self::Failed(error) if error.class == Class::Retry)
    }
}

impl Webhook {
    /// The same for every try of a record.
    pub(super) fn id_of(&self, record: &mut Record, place: Option<String>) -> Result<String, StageError> {
        let what = match (&self.id, place) {
            (Some(id), _) => match id.first(record)?.filter(|id| !id.is_null()) {
                Some(id) => format!("id\n{}", String::from_utf8_lossy(&id.text())),
                None => {
                    return Err(StageError::reject(
                        "evaluate `id`",
                        "the record has none: the result is null",
                    ));
                }
            },
            (None, Some(place)) => format!("at\n{place}"),
            (None, None) => {
                let key = record.key.as_ref().map_or("", |key| key.as_str());
                format!("is\n{key}\n{}", String::from_utf8_lossy(&record.payload.to_json()))
            }
        };
        Ok(digest([self.origin.as_bytes(), b"\n", what.as_bytes()]))
    }
}

/// Where a record was read, in one line each.
pub(super) fn place(origin: &Origin<'_>) -> String {
    format!("{}\n{}\n{}\n{}", origin.source, origin.partition, origin.resume_at, origin.part)
}

/// One for all: their own if it is one.
pub(super) fn id_of_all(items: &[&Item]) -> String {
    match items {
        [one] => one.id.clone(),
        many => digest(many.iter().map(|item| item.id.as_bytes())),
    }
}

/// 128 bits, as text.
fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    let hash = hash.finalize();
    format!("msg_{}", hash[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// The body and its type.
pub(super) fn body(form: Body, items: &[&Item]) -> (Bytes, &'static str) {
    let joined = |before: &[u8], between: &[u8], after: &[u8]| {
        let bodies: Vec<&[u8]> = items.iter().map(|item| &item.body[..]).collect();
        Bytes::from([before, &bodies.join(between), after].concat())
    };
    match form {
        Body::Record => (items.first().map(|item| item.body.clone()).unwrap_or_default(), "application/json"),
        Body::Array => (joined(b"[", b",", b"]"), "application/json"),
        Body::Lines => {
            // a payload is shown as it was read, which may be over several lines
            let line = |item: &&Item| {
                let mut line: Vec<u8> = item
                    .body
                    .iter()
                    .map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte })
                    .collect();
                line.push(b'\n');
                line
            };
            (Bytes::from(items.iter().flat_map(line).collect::<Vec<u8>>()), "application/x-ndjson")
        }
    }
}

/// Only of one record is it known that the next try carries the same.
pub(super) fn headers(
    (id, is_one): (&str, bool),
    kind: &'static str,
    body: &[u8],
    signer: Option<&Signer>,
) -> Vec<(&'static str, String)> {
    let timestamp = clock::unix_millis() / 1000;
    let mut headers = vec![
        ("content-type", kind.to_owned()),
        ("user-agent", concat!("courant/", env!("CARGO_PKG_VERSION")).to_owned()),
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", timestamp.to_string()),
    ];
    if is_one {
        headers.push(("idempotency-key", id.to_owned()));
    }
    if let Some(signer) = signer {
        headers.push(("webhook-signature", signer.sign(id, timestamp, body)));
    }
    headers
}

pub(super) fn fate_of(answered: Result<Answer, PostError>) -> Fate {
    match answered {
        Ok(answer) if answer.status.is_success() => Fate::Delivered,
        Ok(answer) => Fate::failed(refused(DOING, RECEIVER, &answer)),
        Err(error) => Fate::failed(unanswered(DOING, error)),
    }
}
