//! What pipelines wrote: JSON lines, numbered and keyed.

use std::collections::BTreeMap;

use serde_json::Value;

/// The whole lines of a text that are JSON.
pub fn json(text: &str) -> Vec<Value> {
    whole(text).filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The lines whose end is there.
pub fn whole(text: &str) -> impl Iterator<Item = &str> {
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    text[..end].lines()
}

/// The number of a record, in `n`.
pub fn number(record: &Value) -> u64 {
    record["n"].as_u64().unwrap_or_else(|| panic!("a record without a number: {record}"))
}

/// The numbers of the records, sorted.
pub fn numbers(records: &[Value]) -> Vec<u64> {
    let mut numbers: Vec<u64> = records.iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Fails unless the numbers of each key only rise.
#[track_caller]
pub fn assert_ordered_by_key<'a>(records: impl IntoIterator<Item = &'a Value>) {
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for record in records {
        let (key, n) = (record["key"].to_string(), number(record));
        if let Some(before) = last.insert(key.clone(), n) {
            assert!(before < n, "key {key}: {n} came after {before}");
        }
    }
}

/// Fails unless every number below `count` is there once, and the keys are in order.
#[track_caller]
pub fn assert_exactly_once(records: &[Value], count: u64) {
    let numbers = numbers(records);
    let missing: Vec<u64> = (0..count).filter(|n| numbers.binary_search(n).is_err()).take(5).collect();
    let twice: Vec<_> = numbers.windows(2).filter(|pair| pair[0] == pair[1]).take(5).collect();
    assert!(missing.is_empty() && twice.is_empty(), "of {count}: lost {missing:?}…, doubled {twice:?}…");
    assert_eq!(numbers.len() as u64, count, "there are more than were made");
    assert_ordered_by_key(records);
}
