//! Records as lines of text, for sinks that write them.

use courant_pipeline::Record;

/// A guess at a record's length, so that a batch's buffer grows rarely.
const USUAL_LEN: usize = 256;

/// Each record's JSON on a line of its own.
pub(crate) fn one_each<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<u8> {
    let mut lines = Vec::with_capacity(records.size_hint().0 * USUAL_LEN);
    for record in records {
        let text = record.payload.to_json();
        // In JSON a line break is only ever space between tokens, and in anything else it must not look like
        // the end of a record either.
        lines.extend(text.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
        lines.push(b'\n');
    }
    lines
}

/// Each record's JSON indented; what is not JSON as it is.
pub(crate) fn pretty<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<u8> {
    let mut lines = Vec::new();
    for record in records {
        let text = record.payload.to_json();
        match serde_json::from_slice::<serde_json::Value>(&text) {
            Ok(value) => lines.extend_from_slice(format!("{value:#}").as_bytes()),
            Err(_not_json) => lines.extend_from_slice(&text),
        }
        lines.push(b'\n');
    }
    lines
}
