//! A decoded JSON document that records carry between expressions.

use std::borrow::Cow;
use std::fmt;
use std::io::Write as _;

use bytes::Bytes;
use courant_pipeline::{DecodeError, Native};
use jaq_json::{Map, Num, Val};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A JSON value as jaq works on it, with the text it was read from while that is still the same document.
///
/// Numbers beyond 64 bits are read as floating-point, as in jq. Whatever an expression makes, its text is JSON:
/// not-a-number and infinities are written as null, byte strings and invalid UTF-8 as text, other keys as text.
#[derive(Debug)]
pub struct Json {
    value: Val,
    text: Option<Bytes>,
}

impl Json {
    /// Strict JSON, nested no deeper than 128 levels: the reader recurses, and payloads come from strangers.
    pub fn parse(text: Bytes) -> Result<Self, DecodeError> {
        let value = parse(&text)?;
        Ok(Self { value, text: Some(text) })
    }

    /// As JSON text; free if it is as it was read.
    pub fn text(&self) -> Bytes {
        self.text.clone().unwrap_or_else(|| {
            let mut out = Vec::with_capacity(128);
            write(&mut out, &self.value);
            Bytes::from(out)
        })
    }

    pub fn is_null(&self) -> bool {
        matches!(self.value, Val::Null)
    }

    /// The value if it is a single one, for stages that put it somewhere else than into JSON.
    pub fn scalar(&self) -> Scalar<'_> {
        match &self.value {
            Val::Null => Scalar::Null,
            Val::Bool(truth) => Scalar::Bool(*truth),
            Val::Num(Num::Int(number)) => i64::try_from(*number).map_or(Scalar::Other, Scalar::Int),
            Val::Num(Num::Float(number)) => Scalar::Float(*number),
            Val::Num(other) => other.to_string().parse().map_or(Scalar::Other, Scalar::Float),
            Val::TStr(text) => Scalar::Text(String::from_utf8_lossy(text)),
            _ => Scalar::Other,
        }
    }

    pub(super) fn value(&self) -> &Val {
        &self.value
    }

    pub(super) fn into_value(self) -> Val {
        self.value
    }
}

/// A single value.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// Whole numbers beyond 64 bits as well.
    Float(f64),
    Text(Cow<'a, str>),
    /// An array or an object.
    Other,
}

impl From<Val> for Json {
    fn from(value: Val) -> Self {
        Self { value, text: None }
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::from(Val::Num(Num::from_integral(number)))
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::from(super::text(text))
    }
}

impl Native for Json {
    fn to_json(&self) -> Bytes {
        self.text()
    }

    fn from_json(text: &[u8]) -> Result<Self, DecodeError> {
        Self::parse(Bytes::copy_from_slice(text))
    }
}

/// One JSON document; strings without escapes share the text's memory.
pub(super) fn parse(text: &Bytes) -> Result<Val, DecodeError> {
    let failed = |error| DecodeError(format!("not JSON: {error}"));
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Reader(text).deserialize(&mut reader).map_err(failed)?;
    reader.end().map_err(failed)?;
    Ok(value)
}

/// jaq reads JSON itself, but accepts more than JSON and any depth, which overflows the stack.
#[derive(Clone, Copy)]
struct Reader<'s>(&'s Bytes);

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Val;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Val, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Val;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Val, E> {
        Ok(Val::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Val, E> {
        Ok(Val::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Val, E> {
        Ok(Val::Num(Num::from_integral(value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Val, E> {
        Ok(Val::Num(Num::from_integral(value)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Val, E> {
        Ok(Val::Num(Num::Float(value)))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Val, E> {
        Ok(Val::utf8_str(self.0.slice_ref(value.as_bytes())))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Val, E> {
        Ok(super::text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Val, A::Error> {
        std::iter::from_fn(|| items.next_element_seed(self).transpose()).collect()
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Val, A::Error> {
        let mut map = Map::default();
        while let Some((key, value)) = entries.next_entry_seed(self, self)? {
            map.insert(key, value);
        }
        Ok(Val::obj(map))
    }
}

/// Writing to memory does not fail, so the results of the writers below are let go.
fn write(out: &mut Vec<u8>, value: &Val) {
    match value {
        Val::Null => out.extend_from_slice(b"null"),
        Val::Bool(true) => out.extend_from_slice(b"true"),
        Val::Bool(false) => out.extend_from_slice(b"false"),
        Val::Num(number) => write_number(out, number),
        Val::TStr(text) | Val::BStr(text) => write_text(out, text),
        Val::Arr(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(out, item);
            }
            out.push(b']');
        }
        Val::Obj(entries) => {
            out.push(b'{');
            for (index, (key, value)) in entries.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_key(out, key);
                out.push(b':');
                write(out, value);
            }
            out.push(b'}');
        }
    }
}

fn write_key(out: &mut Vec<u8>, key: &Val) {
    if let Val::TStr(text) | Val::BStr(text) = key {
        write_text(out, text);
    } else {
        let mut text = Vec::new();
        write(&mut text, key);
        write_text(out, &text);
    }
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(text));
}

fn write_number(out: &mut Vec<u8>, number: &Num) {
    let _ = match number {
        Num::Int(number) => serde_json::to_writer(out, number),
        Num::Float(number) => serde_json::to_writer(out, number),
        // A literal of the expression, such as 1.50; what does not fit becomes infinite and so null.
        Num::Dec(literal) => serde_json::to_writer(out, &literal.parse::<f64>().unwrap_or(f64::NAN)),
        Num::BigInt(number) => write!(out, "{number}").map_err(serde_json::Error::io),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &'static str) -> String {
        let json = Json::parse(Bytes::from_static(text.as_bytes())).unwrap();
        String::from_utf8(Json::from(json.into_value()).text().to_vec()).unwrap()
    }

    #[test]
    fn documents_survive_reading_and_writing() {
        for text in [
            r#"{"b":[1,-2,2.5,true,false,null],"a":{"x":"ü\n\"\u0001"},"":""}"#,
            "18446744073709551615",
            "-9223372036854775808",
            "[]",
            r#""\\""#,
        ] {
            assert_eq!(rewritten(text), text);
        }
        assert_eq!(rewritten(r#" { "a" : "A\/" , "a" : 1e2 } "#), r#"{"a":100.0}"#);
    }

    #[test]
    fn single_values_are_told_apart() {
        let scalar = |text: &'static str| {
            let json = Json::parse(Bytes::from_static(text.as_bytes())).unwrap();
            format!("{:?}", json.scalar())
        };
        assert_eq!(scalar("null"), "Null");
        assert_eq!(scalar("-7"), "Int(-7)");
        assert_eq!(scalar("18446744073709551615"), "Float(1.8446744073709552e19)");
        assert_eq!(scalar("2.5"), "Float(2.5)");
        assert_eq!(scalar("\"ü\""), "Text(\"ü\")");
        assert_eq!(scalar("[1]"), "Other");
    }

    #[test]
    fn only_json_is_read() {
        for text in ["", "NaN", "{a:1}", "# x\n1", "1 2", "01", "b\"x\"", "\"\u{1}\"", "[1,]"] {
            assert!(Json::parse(Bytes::from_static(text.as_bytes())).is_err(), "{text}");
        }
        assert!(Json::parse(Bytes::from_static(b"\"\xff\"")).is_err());
        assert!(Json::parse(Bytes::from("[".repeat(100_000))).is_err());
    }

    #[test]
    fn what_json_cannot_say_is_still_written_as_json() {
        let entries = [(Val::from(1isize), Val::from(f64::NAN)), (Val::Null, Val::byte_str(&b"\xff"[..]))];
        let json = Json::from(Val::obj(entries.into_iter().collect()));
        assert_eq!(json.text(), "{\"1\":null,\"null\":\"\u{fffd}\"}");
    }
}
