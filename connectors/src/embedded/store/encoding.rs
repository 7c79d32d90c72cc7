//! How rows are named: keys whose bytes have the order of their values.
//!
//! A row's key is a bucket (one byte, from a hash of the partition key), the partition key and the sort key. The bucket
//! spreads a table evenly over 256 ranges, whatever its keys look like: segments of a scan and shards of the change
//! stream are ranges of buckets. The partition key ends in a way that no other one continues, the sort key needs
//! no end since it is last. An index row has the index's keys in front of the row's key, and so is unique.

use crate::store::{IndexSchema, Item, KeyAttribute, Name, Segment, StoreError, TableSchema, Value};
use crate::store::{MAX_PARTITION_KEY_BYTES, MAX_SORT_KEY_BYTES};

const BUCKETS: u32 = 256;

/// A key part that others follow: a zero byte inside becomes `00 ff`, the end is `00 01`.
fn push_ended(value: &Value, out: &mut Vec<u8>) {
    push_open(value, out);
    if !matches!(value, Value::Number(_)) {
        out.extend_from_slice(&[0, 1]);
    }
}

/// Like [`push_ended`] without the end: what all continuations of a text or of bytes begin with.
fn push_open(value: &Value, out: &mut Vec<u8>) {
    let bytes: &[u8] = match value {
        Value::Text(text) => text.as_bytes(),
        Value::Bytes(bytes) => bytes,
        Value::Number(number) => return number.encode_ordered(out),
        _ => unreachable!("keys are checked against the schema before they are encoded"),
    };
    let mut rest = bytes;
    // nearly no key has any
    if !rest.contains(&0) {
        return out.extend_from_slice(rest);
    }
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        out.extend_from_slice(&rest[..zero]);
        out.extend_from_slice(&[0, 0xff]);
        rest = &rest[zero + 1..];
    }
    out.extend_from_slice(rest);
}

/// The last part of a row's key.
fn push_last(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Text(text) => out.extend_from_slice(text.as_bytes()),
        Value::Bytes(bytes) => out.extend_from_slice(bytes),
        Value::Number(number) => number.encode_ordered(out),
        _ => unreachable!("keys are checked against the schema before they are encoded"),
    }
}

/// Which of the 256 ranges a partition key's rows are in. Part of what is on disk: never change it.
fn bucket(partition: &[u8]) -> u8 {
    xxhash_rust::xxh3::xxh3_64(partition).to_be_bytes()[0]
}

/// Where a table's rows of one partition key begin.
pub(super) fn partition_prefix(partition: &Value) -> Vec<u8> {
    /// A bucket, the end of the partition key and a number or an id behind it.
    const OTHERS: usize = 40;
    let mut key = Vec::with_capacity(OTHERS + partition.as_text().map_or(0, str::len));
    key.push(0);
    push_ended(partition, &mut key);
    key[0] = bucket(&key[1..]);
    key
}

/// The keys that an index's rows of one partition key begin with.
pub(super) fn index_prefix(partition: &Value) -> Vec<u8> {
    let mut key = Vec::new();
    push_ended(partition, &mut key);
    key
}

/// Where sort keys are in a row's key: last in a table, with an end in an index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SortKeyIs {
    Last,
    Followed,
}

pub(super) fn push_sort(value: &Value, place: SortKeyIs, out: &mut Vec<u8>) {
    match place {
        SortKeyIs::Last => push_last(value, out),
        SortKeyIs::Followed => push_ended(value, out),
    }
}

pub(super) fn push_sort_prefix(value: &Value, place: SortKeyIs, out: &mut Vec<u8>) {
    match place {
        SortKeyIs::Last => push_last(value, out),
        SortKeyIs::Followed => push_open(value, out),
    }
}

/// The first bytes of a segment's rows, and those of the first row after it; `None` at the table's end.
pub(super) fn segment_bounds(segment: Segment) -> (Vec<u8>, Option<Vec<u8>>) {
    let start_of = |index: u32| {
        let bucket = u64::from(BUCKETS) * u64::from(index) / u64::from(segment.of);
        u8::try_from(bucket).ok().map(|bucket| vec![bucket])
    };
    (start_of(segment.index).unwrap_or_default(), start_of(segment.index + 1))
}

/// Which shard of the change stream a row belongs to.
pub(super) fn shard_of(row: &[u8], shards: u8) -> u8 {
    let shard = u32::from(row[0]) * u32::from(shards) / BUCKETS;
    u8::try_from(shard).expect("less than the number of shards")
}

/// The row's key of an item.
pub(super) fn row_key(schema: &TableSchema, item: &Item) -> Result<Vec<u8>, StoreError> {
    row_key_of(schema, |name| item.get(name))
}

/// The row's key, from wherever its attributes are.
pub(super) fn row_key_of<'a>(
    schema: &TableSchema,
    value: impl Fn(&Name) -> Option<&'a Value>,
) -> Result<Vec<u8>, StoreError> {
    let key_value = |attribute: &KeyAttribute, limit| {
        let (table, name) = (&schema.name, &attribute.name);
        let missing = || invalid(format!("table '{table}' needs the key attribute '{name}'"));
        let value = value(name).ok_or_else(missing)?;
        check_key(table, attribute, value, limit)?;
        Ok(value)
    };
    let mut key = partition_prefix(key_value(&schema.partition, MAX_PARTITION_KEY_BYTES)?);
    if let Some(sort) = &schema.sort {
        push_last(key_value(sort, MAX_SORT_KEY_BYTES)?, &mut key);
    }
    Ok(key)
}

/// The index row's key of an item, or `None` if the item is not in the index.
pub(super) fn index_key(index: &IndexSchema, item: &Item, row: &[u8]) -> Option<Vec<u8>> {
    let mut key = index_prefix(item.get(&index.partition.name)?);
    if let Some(sort) = &index.sort {
        push_ended(item.get(&sort.name)?, &mut key);
    }
    key.extend_from_slice(row);
    Some(key)
}

/// That a value can be this key attribute.
pub(super) fn check_key(
    table: &Name,
    attribute: &KeyAttribute,
    value: &Value,
    limit: usize,
) -> Result<(), StoreError> {
    let name = &attribute.name;
    if !attribute.kind.fits(value) {
        let (wanted, got) = (attribute.kind.name(), value.kind());
        return Err(invalid(format!("key attribute '{name}' of table '{table}' is {wanted}, and not {got}")));
    }
    let length = match value {
        Value::Text(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => return Ok(()),
    };
    match length {
        0 => Err(invalid(format!("key attribute '{name}' of table '{table}' must not be empty"))),
        length if length > limit => Err(invalid(format!(
            "key attribute '{name}' of table '{table}' is {length} bytes, over the limit of {limit}"
        ))),
        _ => Ok(()),
    }
}

fn invalid(message: String) -> StoreError {
    StoreError::Invalid(message)
}

/// The first key after all that begin with these bytes.
pub(super) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut key = prefix[..=last].to_vec();
    key[last] += 1;
    Some(key)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn any_key() -> impl Strategy<Value = Value> {
        // few different bytes, among them those with a meaning, so that prefixes and equal keys are common
        proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff), Just(b'a')], 1..5)
            .prop_map(|bytes| Value::Bytes(Bytes::from(bytes)))
    }

    fn order(a: &Value, b: &Value) -> std::cmp::Ordering {
        let (Value::Bytes(a), Value::Bytes(b)) = (a, b) else { unreachable!() };
        a.cmp(b)
    }

    fn joined(a: &Value, b: &Value) -> Vec<u8> {
        let mut key = Vec::new();
        push_ended(a, &mut key);
        push_last(b, &mut key);
        key
    }

    proptest! {
        #[test]
        fn keys_have_the_order_of_their_parts(a in any_key(), b in any_key(), c in any_key(), d in any_key()) {
            let by_parts = order(&a, &c).then_with(|| order(&b, &d));
            prop_assert_eq!(joined(&a, &b).cmp(&joined(&c, &d)), by_parts);
        }

        #[test]
        fn a_partition_holds_no_other_partitions_rows(a in any_key(), b in any_key(), sort in any_key()) {
            let mut row = partition_prefix(&b);
            push_last(&sort, &mut row);
            prop_assert_eq!(row.starts_with(&partition_prefix(&a)), a == b);
        }
    }

    #[test]
    fn segments_cover_every_bucket_once() {
        for of in [1, 2, 3, 7, 256, 1000] {
            let mut covered = 0u32;
            for index in 0..of {
                let (start, end) = segment_bounds(Segment { index, of });
                let start = start.first().map_or(BUCKETS, |first| u32::from(*first));
                assert_eq!(start, covered, "segment {index} of {of}");
                covered = end.map_or(BUCKETS, |end| u32::from(end[0]));
            }
            assert_eq!(covered, BUCKETS);
        }
    }

    #[test]
    fn the_key_after_a_prefix() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff"), None);
    }
}
