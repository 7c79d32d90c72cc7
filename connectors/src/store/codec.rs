//! An item in one piece, as it is on disk: the bytes that postcard gives a map of attributes.
//!
//! Written and read by hand, since every row passes here and nearly every attribute is a text or a whole number. Any other
//! value is left to postcard, and a test compares both.

use super::packed::PackedValue;
use super::{Item, Name, Number, StoreError, Value};

type Result<T> = std::result::Result<T, StoreError>;

/// The place of [`Value::Text`] and of [`Value::Number`] among the values.
const TEXT: u8 = 0;
const NUMBER: u8 = 1;
/// The place of whole numbers among numbers.
const INTEGER: u8 = 0;

/// The same item has the same bytes. Its size is asked for since most callers know it.
pub(crate) fn encode_item(item: &Item, size: usize) -> Vec<u8> {
    // Close to what it takes, since the engine keeps the buffer in memory for a while: a length and a kind per
    // attribute beside names and values.
    let mut out = Vec::with_capacity(size + 6 * item.len() + 2);
    push_number(item.len() as u64, &mut out);
    for (name, value) in item.iter() {
        push_text(name, &mut out);
        push_value(value, &mut out);
    }
    out
}

fn push_value(value: &Value, out: &mut Vec<u8>) {
    let integer = value.as_number().and_then(Number::as_i64);
    match (value, integer) {
        (Value::Text(text), _) => {
            out.push(TEXT);
            push_text(text, out);
        }
        (_, Some(integer)) => {
            out.extend_from_slice(&[NUMBER, INTEGER]);
            // small ones of either sign have few bytes
            push_number((integer.cast_unsigned() << 1) ^ (integer >> 63).cast_unsigned(), out);
        }
        (other, None) => {
            let encoded = postcard::to_extend(other, std::mem::take(out));
            *out = encoded.expect("memory takes every value");
        }
    }
}

fn push_text(text: &str, out: &mut Vec<u8>) {
    push_number(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
pub(crate) fn push_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

pub(crate) fn decode_item(bytes: &[u8]) -> Result<Item> {
    take_item(&mut { bytes })
}

/// Reads an item off the front.
pub(crate) fn take_item(rest: &mut &[u8]) -> Result<Item> {
    /// What is damaged may announce anything.
    const MOST_EXPECTED: usize = 64;
    let count = take_number(rest)?;
    let expected = usize::try_from(count).unwrap_or(MOST_EXPECTED).min(MOST_EXPECTED);
    let mut attributes = Vec::with_capacity(expected);
    for _ in 0..count {
        attributes.push((Name::from(take_text(rest)?), take_value(rest)?.into()));
    }
    Ok(attributes.into_iter().collect())
}

/// Reads a value off the front, and makes nothing of those that most are.
#[inline]
pub(super) fn take_value<'a>(rest: &mut &'a [u8]) -> Result<PackedValue<'a>> {
    match **rest {
        [TEXT, ref text @ ..] => {
            *rest = text;
            take_text(rest).map(PackedValue::Text)
        }
        [NUMBER, INTEGER, ref number @ ..] => {
            *rest = number;
            let number = take_number(rest)?;
            Ok(PackedValue::Integer((number >> 1).cast_signed() ^ -(number & 1).cast_signed()))
        }
        _ => {
            let (value, behind) = postcard::take_from_bytes(rest).map_err(|error| unreadable(&error))?;
            *rest = behind;
            Ok(PackedValue::Other(value))
        }
    }
}

#[inline]
fn take_text<'a>(rest: &mut &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(take_bytes(rest)?).map_err(|error| unreadable(&error))
}

/// Reads a length off the front and as many bytes.
#[inline]
pub(super) fn take_bytes<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8]> {
    let length = usize::try_from(take_number(rest)?).map_err(|error| unreadable(&error))?;
    let (bytes, behind) = rest.split_at_checked(length).ok_or_else(|| unreadable(&CUT_SHORT))?;
    *rest = behind;
    Ok(bytes)
}

/// Reads off the front what [`push_number`] wrote.
#[inline]
pub(crate) fn take_number(rest: &mut &[u8]) -> Result<u64> {
    match **rest {
        [byte, ref behind @ ..] if byte < 0x80 => {
            *rest = behind;
            Ok(u64::from(byte))
        }
        _ => take_long_number(rest),
    }
}

fn take_long_number(rest: &mut &[u8]) -> Result<u64> {
    let mut number = 0u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, behind) = rest.split_first().ok_or_else(|| unreadable(&CUT_SHORT))?;
        *rest = behind;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            break;
        }
        number |= bits << shift;
        if *byte < 0x80 {
            return Ok(number);
        }
    }
    Err(unreadable(&"a number is too long"))
}

const CUT_SHORT: &str = "it is cut short";

#[cold]
pub(crate) fn unreadable(why: &dyn std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("an item cannot be read: {why}"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn any_number() -> impl Strategy<Value = Number> {
        let decimal =
            (any::<i32>(), -20i32..20).prop_map(|(digits, exponent)| format!("{digits}e{exponent}"));
        let decimal = decimal.prop_map(|text| text.parse().expect("a number"));
        prop_oneof![any::<i64>().prop_map(Number::from), decimal, (-200i64..200).prop_map(Number::from)]
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let leaf = prop_oneof![
            any::<String>().prop_map(Value::from),
            "[a-z]{0,300}".prop_map(Value::from),
            any_number().prop_map(Value::Number),
            bytes().prop_map(Value::Bytes),
            any::<bool>().prop_map(Value::Bool),
            Just(Value::Null),
            proptest::collection::btree_set(any::<String>(), 1..4).prop_map(Value::TextSet),
            proptest::collection::btree_set(bytes(), 1..4).prop_map(Value::BytesSet),
            (0i64..9).prop_map(|number| Value::NumberSet(BTreeSet::from([Number::from(number)]))),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                proptest::collection::btree_map(any::<String>(), inner, 0..4).prop_map(Value::Map),
            ]
        })
    }

    pub(in super::super) fn any_item() -> impl Strategy<Value = Item> {
        let attributes = proptest::collection::btree_map("[a-z]{0,30}", any_value(), 0..10);
        attributes.prop_map(|all| all.into_iter().map(|(name, value)| (Name::from(name), value)).collect())
    }

    proptest! {
        #[test]
        fn the_bytes_are_postcards(item in any_item()) {
            let bytes = encode_item(&item, item.size());
            let map: BTreeMap<_, _> = item.iter().collect();
            prop_assert_eq!(&bytes, &postcard::to_allocvec(&map).unwrap());
            prop_assert_eq!(&decode_item(&bytes).unwrap(), &item);
            let two = [&bytes[..], &bytes].concat();
            let mut rest = &two[..];
            prop_assert_eq!(&take_item(&mut rest).unwrap(), &item);
            prop_assert_eq!(rest.len(), bytes.len(), "what follows is left");
        }

        #[test]
        fn what_is_cut_short_is_an_error(item in any_item(), at in any::<prop::sample::Index>()) {
            let bytes = encode_item(&item, item.size());
            prop_assert!(decode_item(&bytes[..at.index(bytes.len())]).is_err());
        }

        #[test]
        fn anything_can_be_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let by_hand = decode_item(&bytes).ok();
            prop_assert_eq!(by_hand, postcard::from_bytes::<Item>(&bytes).ok());
        }
    }
}
