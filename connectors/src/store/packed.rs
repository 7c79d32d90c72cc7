//! An item in one piece of memory: what whole tables are read in.
//!
//! Whoever goes through millions of items looks at each once, and at a few of its attributes. Making an [`Item`] for that
//! costs many times what reading it does: here attributes are looked at where they are, and what is kept of them are places.

use bytes::Bytes;

use super::codec::{decode_item, encode_item, take_bytes, take_number, take_value};
use super::{Item, Number, Result, Value};

/// What a store has of an item, not looked at yet: whoever looks may find it damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedItem(Bytes);

/// A value of an attribute where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackedValue<'a> {
    Text(&'a str),
    Integer(i64),
    /// Any value, of those that few items have.
    Other(Value),
}

/// Where a text is in its item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    start: u32,
    end: u32,
}

impl PackedItem {
    /// What [`encode_item`] gave.
    pub(crate) fn encoded(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    pub fn unpack(&self) -> Result<Item> {
        decode_item(&self.0)
    }

    /// The attributes in the order of their names, which are taken for what they are written as. Ends with the first
    /// that cannot be read.
    pub fn attributes(&self) -> PackedAttributes<'_> {
        PackedAttributes { rest: &self.0, left: None }
    }

    pub fn get(&self, name: &str) -> Result<Option<PackedValue<'_>>> {
        for attribute in self.attributes() {
            let (known, value) = attribute?;
            if known == name.as_bytes() {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The place of a text that this item gave; an empty one of any other.
    pub fn place_of(&self, text: &str) -> Place {
        let place = || {
            let start = text.as_ptr().addr().checked_sub(self.0.as_ptr().addr())?;
            let end = start.checked_add(text.len()).filter(|end| *end <= self.0.len())?;
            Some(Place { start: start.try_into().ok()?, end: end.try_into().ok()? })
        };
        place().unwrap_or_default()
    }

    /// The text at a place that this item told; nothing at any other.
    pub fn text(&self, place: Place) -> &str {
        std::str::from_utf8(self.bytes(place)).unwrap_or_default()
    }

    /// The bytes of that text.
    pub fn bytes(&self, place: Place) -> &[u8] {
        self.0.get(place.start as usize..place.end as usize).unwrap_or_default()
    }

    /// How many bytes it takes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The attributes of a packed item, one after the other.
pub struct PackedAttributes<'a> {
    rest: &'a [u8],
    /// Written first, so not known before the first look.
    left: Option<u64>,
}

impl<'a> PackedAttributes<'a> {
    /// The value of the next attribute, if that has this name and can be read; otherwise it stays the next. For those
    /// who know what comes.
    #[inline]
    pub fn named<const N: usize>(&mut self, name: &[u8; N]) -> Option<PackedValue<'a>> {
        const { assert!(N < 0x80, "the length of a name is one byte") };
        let mut rest = self.rest;
        let left = match self.left {
            Some(left) => left,
            None => take_number(&mut rest).ok()?,
        };
        let (&length, behind) = rest.split_first()?;
        let (known, mut behind) = behind.split_first_chunk::<N>()?;
        if left == 0 || usize::from(length) != N || known != name {
            return None;
        }
        let value = take_value(&mut behind).ok()?;
        (self.rest, self.left) = (behind, Some(left - 1));
        Some(value)
    }

    #[inline]
    fn take(&mut self) -> Result<Option<(&'a [u8], PackedValue<'a>)>> {
        let left = match self.left {
            Some(left) => left,
            None => take_number(&mut self.rest)?,
        };
        self.left = Some(left.saturating_sub(1));
        if left == 0 {
            return Ok(None);
        }
        Ok(Some((take_bytes(&mut self.rest)?, take_value(&mut self.rest)?)))
    }
}

impl<'a> Iterator for PackedAttributes<'a> {
    type Item = Result<(&'a [u8], PackedValue<'a>)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let attribute = self.take();
        if attribute.is_err() {
            self.left = Some(0);
        }
        attribute.transpose()
    }
}

impl From<&Item> for PackedItem {
    fn from(item: &Item) -> Self {
        Self::encoded(encode_item(item, item.size()))
    }
}

impl PackedValue<'_> {
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Integer(number) => u64::try_from(*number).ok(),
            Self::Other(value) => value.as_u64(),
            Self::Text(_) => None,
        }
    }
}

impl From<PackedValue<'_>> for Value {
    fn from(value: PackedValue<'_>) -> Self {
        match value {
            PackedValue::Text(text) => Self::Text(text.into()),
            PackedValue::Integer(number) => Self::Number(Number::from(number)),
            PackedValue::Other(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::tests::any_item;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_attribute_is_found_where_it_is(item in any_item()) {
            let packed = PackedItem::from(&item);
            prop_assert_eq!(&packed.unpack().unwrap(), &item);
            let found: Vec<_> = packed.attributes().map(Result::unwrap).collect();
            prop_assert_eq!(found.len(), item.len());
            for ((name, value), (known, known_value)) in found.into_iter().zip(item.iter()) {
                prop_assert_eq!(name, known.as_bytes());
                prop_assert_eq!(packed.get(known).unwrap(), Some(value.clone()));
                if let PackedValue::Text(text) = value {
                    prop_assert_eq!(packed.text(packed.place_of(text)), text);
                }
                prop_assert_eq!(&Value::from(value), known_value);
            }
        }

        #[test]
        fn what_is_damaged_ends_with_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let packed = PackedItem::encoded(bytes);
            let looked_at: Result<Vec<_>> = packed.attributes().collect();
            // names are not looked into
            prop_assert!(looked_at.is_ok() || packed.unpack().is_err());
            prop_assert!(packed.attributes().filter(Result::is_err).count() <= 1);
        }
    }

    #[test]
    fn what_comes_next_is_found_by_its_name() {
        let item = PackedItem::from(&Item::new().with("a", "one").with("bb", 2).with("c", true));
        let mut next = item.attributes();
        assert_eq!(next.named(b"bb"), None, "it is not the next");
        assert_eq!(next.named(b"a"), Some(PackedValue::Text("one")));
        assert_eq!(next.named(b"b"), None);
        assert_eq!(next.named(b"bb"), Some(PackedValue::Integer(2)));
        let (name, value) = next.next().expect("one more").unwrap();
        assert_eq!((name, value), (&b"c"[..], PackedValue::Other(true.into())), "the rest as ever");
        assert!(next.named(b"c").is_none() && next.next().is_none());
        assert_eq!(PackedItem::encoded(&b""[..]).attributes().named(b"a"), None);
        assert_eq!(PackedItem::encoded(&b"\x01\x01a"[..]).attributes().named(b"a"), None, "it is cut short");
    }

    #[test]
    fn a_place_in_another_item_is_empty() {
        let (one, other) = (Item::new().with("a", "text"), Item::new().with("a", "another, longer text"));
        let (one, other) = (PackedItem::from(&one), PackedItem::from(&other));
        let Some(PackedValue::Text(text)) = other.get("a").unwrap() else { panic!("it is a text") };
        assert_eq!(one.text(one.place_of("elsewhere")), "");
        assert_eq!(one.text(other.place_of(text)), "");
        assert_eq!(one.get("b").unwrap(), None);
    }
}
