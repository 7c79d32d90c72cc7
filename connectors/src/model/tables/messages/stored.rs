//! A message where the store has it: what goes through whole tables looks at it in place.

use super::super::attributes::Attributes;
use super::{Message, SCHEMA};
use crate::model::Timestamp;
use crate::store::{PackedAttributes, PackedItem, PackedValue, Place, Result};

/// What a message's event tells of it. Checked once: everything is there.
#[derive(Debug, Clone)]
pub struct StoredMessage {
    item: PackedItem,
    found: Found,
}

/// What was found in an item, and where.
#[derive(Debug, Clone, Copy)]
struct Found {
    chat_id: Place,
    message_id: Place,
    sender_id: Place,
    content: Place,
    content_type: Place,
    sequence: u64,
    created_at: Timestamp,
}

impl Found {
    /// In an item as we write it: nothing else, in the order of the names.
    fn of(item: &PackedItem) -> Option<Self> {
        let next = &mut item.attributes();
        let chat_id = text(item, next, b"chat_id")?;
        let _ = next.named(b"client_message_id");
        let content = text(item, next, b"content")?;
        let content_type = text(item, next, b"content_type")?;
        let PackedValue::Text(created_at) = next.named(b"created_at")? else { return None };
        let message_id = text(item, next, b"message_id")?;
        let _ = next.named(b"origin");
        let sender_id = text(item, next, b"sender_id")?;
        let sequence = next.named(b"sequence")?.as_u64()?;
        let created_at = created_at.parse().ok()?;
        Some(Self { chat_id, message_id, sender_id, content, content_type, sequence, created_at })
    }
}

#[inline]
fn text<const N: usize>(item: &PackedItem, next: &mut PackedAttributes<'_>, name: &[u8; N]) -> Option<Place> {
    match next.named(name)? {
        PackedValue::Text(text) => Some(item.place_of(text)),
        _ => None,
    }
}

impl StoredMessage {
    pub fn of(item: PackedItem) -> Result<Self> {
        if let Some(found) = Found::of(&item) {
            return Ok(Self { item, found });
        }
        // Others may have added to it, or something is wrong with it, which is told as by every reader of messages.
        let written = Message::from_item(&item.unpack()?)?.to_item();
        let item = PackedItem::from(&written);
        match Found::of(&item) {
            Some(found) => Ok(Self { item, found }),
            None => Err(Attributes::of(&SCHEMA, &written).damaged("it is no message")),
        }
    }

    pub fn chat_id(&self) -> &str {
        self.item.text(self.found.chat_id)
    }

    /// Whether it is of this chat; cheaper than to look which it is of.
    pub fn is_of(&self, chat: &str) -> bool {
        self.item.bytes(self.found.chat_id) == chat.as_bytes()
    }

    pub fn sequence(&self) -> u64 {
        self.found.sequence
    }

    pub fn message_id(&self) -> &str {
        self.item.text(self.found.message_id)
    }

    pub fn sender_id(&self) -> &str {
        self.item.text(self.found.sender_id)
    }

    pub fn content(&self) -> &str {
        self.item.text(self.found.content)
    }

    pub fn content_type(&self) -> &str {
        self.item.text(self.found.content_type)
    }

    pub fn created_at(&self) -> Timestamp {
        self.found.created_at
    }

    /// How many bytes it takes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.item.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::message;
    use super::*;
    use crate::store::Item;

    fn packed(item: &Item) -> Result<StoredMessage> {
        StoredMessage::of(PackedItem::from(item))
    }

    #[test]
    fn a_message_is_read_where_it_is() {
        for sequence in [1, 1 << 40, u64::MAX] {
            let message = Message { content: "Grüße, 世界".into(), ..message(sequence) };
            let item = message.to_item();
            let from_somewhere = item.clone().with("origin", "conn_1");
            // what others add to an item is nobody's business here
            let with_more = item.clone().with("answers", 3).with("zone", true);
            for stored in [item, from_somewhere, with_more].map(|item| packed(&item).unwrap()) {
                assert_eq!(stored.chat_id(), message.chat_id.as_str());
                assert!(stored.is_of("chat_1") && !stored.is_of("chat_2"));
                assert_eq!(stored.sequence(), sequence);
                assert_eq!(stored.message_id(), message.message_id.as_str());
                assert_eq!(stored.sender_id(), message.sender_id.as_str());
                assert_eq!(stored.content(), message.content);
                assert_eq!(stored.content_type(), message.content_type);
                assert_eq!(stored.created_at(), message.created_at);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_told_as_by_every_reader() {
        let item = message(6).to_item();
        let told =
            ["chat_id", "sequence", "message_id", "sender_id", "content", "content_type", "created_at"];
        for name in told {
            let mut without = item.clone();
            without.remove(name);
            for wrong in [without.clone(), without.with(name, false)] {
                let error = packed(&wrong).unwrap_err();
                assert_eq!(error.to_string(), Message::from_item(&wrong).unwrap_err().to_string(), "{name}");
            }
        }
        let late = item.with("created_at", "noon");
        assert!(packed(&late).unwrap_err().to_string().contains("'noon' is not a time"));
    }
}
