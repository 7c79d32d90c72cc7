//! What windows there are and what is known of each: the parameters, ready to work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::Timestamp;
use courant_pipeline::spec::Problem;
use courant_pipeline::{Record, StageError};
use serde_json::{Map, Value};

use super::aggregate::{Aggregate, Measure, Sample, Total};
use super::state::{Row, WindowId};
use crate::jq::{Expr, Json, Scalar};
use crate::times;

const START: &str = "window_start";
const END: &str = "window_end";

/// A group is the key of a window, of its rows and of lanes.
const LONGEST_GROUP: usize = 1024;
/// Windows that a record may be in.
const MOST_WINDOWS: u128 = 1000;
/// Measures are numbered in a byte, and the last number is taken.
const MOST_MEASURES: usize = 250;

pub(super) struct Shape {
    size: u64,
    hop: u64,
    time: Expr,
    group_by: Vec<(String, Expr)>,
    measures: Vec<(String, Measure)>,
    id: Option<Expr>,
}

/// What a record says.
pub(super) struct Input {
    pub(super) time: u64,
    pub(super) group: Arc<[u8]>,
    pub(super) samples: Vec<Sample>,
    pub(super) id: Option<Vec<u8>>,
}

/// As the file says it.
pub(super) struct Parameters<'a> {
    pub(super) size: Duration,
    pub(super) hop: Option<Duration>,
    pub(super) time: &'a str,
    pub(super) group_by: &'a BTreeMap<String, String>,
    pub(super) aggregates: &'a BTreeMap<String, Aggregate>,
    pub(super) id: Option<&'a str>,
}

impl Shape {
    pub(super) fn new(parameters: &Parameters<'_>) -> Result<Self, Vec<Problem>> {
        let hop = parameters.hop.unwrap_or(parameters.size);
        let mut problems = wrong_spans(parameters.size, hop);
        problems.extend(wrong_names(parameters));
        let mut compile =
            |name: String, code: &str| Expr::on_record(name, code).map_err(|more| problems.extend(more)).ok();
        let time = compile("time".to_owned(), parameters.time);
        let id = parameters.id.map(|code| compile("id".to_owned(), code));
        let group_by: Vec<_> = parameters
            .group_by
            .iter()
            .filter_map(|(name, code)| Some((name.clone(), compile(format!("group_by.{name}"), code)?)))
            .collect();
        let mut measures = Vec::new();
        for (name, aggregate) in parameters.aggregates {
            match Measure::new(name, aggregate) {
                Ok(measure) => measures.push((name.clone(), measure)),
                Err(more) => problems.extend(more),
            }
        }
        match (time, problems.is_empty()) {
            (Some(time), true) => Ok(Self {
                size: millis(parameters.size),
                hop: millis(hop),
                time,
                group_by,
                measures,
                id: id.flatten(),
            }),
            _ => Err(problems),
        }
    }

    /// Looks at a record without changing anything but its decoded form.
    pub(super) fn measure(&self, record: &mut Record) -> Result<Input, StageError> {
        let time = self.time.first(record)?;
        let time = times::millis(&time.as_ref().map_or(Scalar::Null, Json::scalar))
            .map_err(|reason| StageError::reject("read the time", reason))?;
        let mut group = Vec::from(*b"[");
        for (index, (_, expr)) in self.group_by.iter().enumerate() {
            if index > 0 {
                group.push(b',');
            }
            match expr.first(record)? {
                Some(json) => group.extend_from_slice(&json.text()),
                None => group.extend_from_slice(b"null"),
            }
        }
        group.push(b']');
        if group.len() > LONGEST_GROUP {
            let reason = format!("the values are longer than {LONGEST_GROUP} bytes");
            return Err(StageError::reject("group the record", reason));
        }
        let samples = self.measures.iter().map(|(name, measure)| measure.of(name, record));
        let samples = samples.collect::<Result<_, _>>()?;
        let id = match &self.id {
            None => None,
            Some(expr) => match expr.first(record)?.filter(|id| !id.is_null()) {
                Some(id) => Some(id.text().to_vec()),
                None => {
                    return Err(StageError::reject(
                        "evaluate `id`",
                        "the record has none: the result is null",
                    ));
                }
            },
        };
        Ok(Input { time, group: group.into(), samples, id })
    }

    /// The windows that a record is in, the first to end first.
    pub(super) fn windows(&self, input: &Input) -> impl Iterator<Item = WindowId> {
        let last_start = input.time - input.time % self.hop;
        let (size, hop) = (self.size, self.hop);
        let first_start = {
            let back = (size - 1 - input.time % hop).min(last_start) / hop;
            last_start - back * hop
        };
        let group = Arc::clone(&input.group);
        (first_start..=last_start)
            .step_by(usize::try_from(hop).unwrap_or(usize::MAX))
            .map(move |start| WindowId { end: start + size, group: Arc::clone(&group) })
    }

    /// Of no record.
    pub(super) fn start(&self) -> Vec<Total> {
        self.measures.iter().map(|(_, measure)| measure.start()).collect()
    }

    /// The row of a window.
    pub(super) fn row(&self, id: &WindowId, totals: &[Total]) -> Row {
        let start = Timestamp::from_unix_millis(id.end - self.size).to_string();
        let group: Vec<Value> = serde_json::from_slice(&id.group).unwrap_or_default();
        let key = std::iter::once(Value::from(start.as_str())).chain(group.iter().cloned());
        let key = Value::Array(key.collect()).to_string();
        let mut row = Map::new();
        row.insert(START.to_owned(), start.into());
        row.insert(END.to_owned(), Timestamp::from_unix_millis(id.end).to_string().into());
        row.extend(self.group_by.iter().map(|(name, _)| name.clone()).zip(group));
        row.extend(
            self.measures.iter().zip(totals).map(|((name, _), total)| (name.clone(), total.to_json())),
        );
        Row { key, payload: Value::Object(row).to_string() }
    }
}

fn wrong_spans(size: Duration, hop: Duration) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, span) in [("size", size), ("hop", hop)] {
        if span.subsec_nanos() % 1_000_000 != 0 || span.is_zero() {
            problems.push(Problem::new(key, "it must be whole milliseconds, and at least one"));
        }
    }
    if hop > size {
        problems.push(Problem::new("hop", "windows further apart than they are long leave records out"));
    } else if !hop.is_zero() && size.as_millis() / hop.as_millis().max(1) > MOST_WINDOWS {
        problems.push(Problem::new("hop", format!("a record would be in more than {MOST_WINDOWS} windows")));
    }
    problems
}

/// Every field of a row has one meaning.
fn wrong_names(parameters: &Parameters<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    if parameters.aggregates.is_empty() {
        problems.push(Problem::new("aggregates", "there is nothing to know of a window: name at least one"));
    }
    if parameters.aggregates.len() > MOST_MEASURES {
        problems.push(Problem::new("aggregates", format!("there are more than {MOST_MEASURES}")));
    }
    let groups = parameters.group_by.keys().map(|name| (name, "group_by"));
    for (name, key) in groups.chain(parameters.aggregates.keys().map(|name| (name, "aggregates"))) {
        let taken = [START, END].contains(&name.as_str())
            || (key == "aggregates" && parameters.group_by.contains_key(name));
        if taken {
            problems.push(Problem::new(format!("{key}.{name}"), "a row has another field of this name"));
        }
    }
    problems
}

pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
