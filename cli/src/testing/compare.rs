//! What was expected beside what happened.

use std::collections::BTreeMap;

use courant_pipeline::{Disposition, Tally};
use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

use super::entry::{Expect, ExpectedRecord};
use super::fakes::{Arrived, Happened, as_value};

/// Every difference, as text a person can read.
pub(super) fn compare(expect: &Expect, happened: &Happened, tally: &Tally) -> Vec<String> {
    let mut wrong = Vec::new();
    for (sink, expected) in &expect.records {
        let got = happened.arrived.get(sink).map(Vec::as_slice).unwrap_or_default();
        wrong.extend(compare_records(sink, expected, got));
    }
    wrong.extend(compare_tally(expect, tally));
    wrong.extend(compare_letters(expect, happened));
    wrong.extend(compare_replies(expect, happened));
    wrong
}

fn compare_records(sink: &str, expected: &[ExpectedRecord], got: &[Arrived]) -> Option<String> {
    let wanted: Vec<_> =
        expected.iter().map(|record| shown(&record.payload, record.key.as_ref(), &record.headers)).collect();
    // What a test does not mention is not shown either, so the difference is only what it cares about.
    let arrived: Vec<_> = (0..got.len())
        .map(|index| {
            let got = &got[index];
            let Some(expected) = expected.get(index) else {
                return shown(&got.payload, got.key.as_ref(), &BTreeMap::new());
            };
            let key = got.key.as_ref().filter(|_| expected.key.is_some());
            let headers = got.headers.iter().filter(|(name, _)| expected.headers.contains_key(*name));
            shown(&got.payload, key, &headers.map(|(name, value)| (name.clone(), value.clone())).collect())
        })
        .collect();
    difference(&format!("records at `{sink}`"), &json!(wanted), &json!(arrived))
}

fn shown(payload: &Value, key: Option<&String>, headers: &BTreeMap<String, String>) -> Value {
    let mut shown = json!({"payload": payload});
    if let Some(key) = key {
        shown["key"] = json!(key);
    }
    if !headers.is_empty() {
        shown["headers"] = json!(headers);
    }
    shown
}

fn compare_tally(expect: &Expect, tally: &Tally) -> Option<String> {
    let mentioned = || Disposition::ALL.into_iter().filter_map(|d| Some((d, expect.dispositions.of(d)?)));
    let wanted: serde_json::Map<_, _> =
        mentioned().map(|(d, count)| (d.name().to_owned(), json!(count))).collect();
    let got: serde_json::Map<_, _> =
        mentioned().map(|(d, _)| (d.name().to_owned(), json!(tally.of(d)))).collect();
    difference("dispositions", &json!(wanted), &json!(got))
}

fn compare_letters(expect: &Expect, happened: &Happened) -> Option<String> {
    let expected = expect.dead_letters.as_ref()?;
    let mut wanted = Vec::new();
    let mut got = Vec::new();
    for index in 0..expected.len().max(happened.letters.len()) {
        let (expected, letter) = (expected.get(index), happened.letters.get(index));
        if let Some(expected) = expected {
            wanted
                .push(json!({"stage": expected.stage, "error": expected.error, "payload": expected.payload}));
        }
        if let Some(letter) = letter {
            let error =
                agreeing(expected.and_then(|e| e.error.as_deref()), Some(&letter.error), expected.is_none());
            let payload = as_value(&letter.payload.clone().into());
            let payload = (expected.is_none_or(|e| e.payload.is_some())).then_some(payload);
            got.push(json!({"stage": letter.stage, "error": error, "payload": payload}));
        }
    }
    difference("dead letters", &json!(wanted), &json!(got))
}

fn compare_replies(expect: &Expect, happened: &Happened) -> Option<String> {
    let expected = expect.replies.as_ref()?;
    let mut wanted = Vec::new();
    let mut got = Vec::new();
    for index in 0..expected.len().max(happened.replies.len()) {
        let (expected, reply) = (expected.get(index), happened.replies.get(index));
        if let Some(expected) = expected {
            wanted.push(json!({
                "disposition": expected.disposition.name(), "reason": expected.reason, "receipt": expected.receipt
            }));
        }
        if let Some(reply) = reply {
            let reason = agreeing(
                expected.and_then(|e| e.reason.as_deref()),
                reply.reason.as_deref(),
                expected.is_none(),
            );
            let receipt = reply.receipt.as_deref().map(as_value);
            let receipt = receipt.filter(|_| expected.is_none_or(|e| e.receipt.is_some()));
            got.push(json!({"disposition": reply.disposition.name(), "reason": reason, "receipt": receipt}));
        }
    }
    difference("replies", &json!(wanted), &json!(got))
}

/// A text as it is to be compared: the expected part if it contains that, nothing if nothing was expected of it.
fn agreeing<'a>(part: Option<&'a str>, whole: Option<&'a str>, surplus: bool) -> Option<&'a str> {
    match part {
        Some(part) if whole.is_some_and(|whole| whole.contains(part)) => Some(part),
        None if !surplus => None,
        _ => whole,
    }
}

fn difference(what: &str, expected: &Value, got: &Value) -> Option<String> {
    if expected == got {
        return None;
    }
    let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default();
    let (expected, got) = (pretty(expected), pretty(got));
    let mut text = format!("{what}: - expected, + got\n");
    for change in TextDiff::from_lines(&expected, &got).iter_all_changes() {
        let sign = match change.tag() {
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
            ChangeTag::Equal => ' ',
        };
        text.push(sign);
        text.push(' ');
        text.push_str(change.value().trim_end_matches('\n'));
        text.push('\n');
    }
    Some(text)
}
