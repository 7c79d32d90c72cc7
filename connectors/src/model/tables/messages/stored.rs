//! A message where the store has it: what goes through whole tables looks at it in place.

use super::super::attributes::Attributes;
use super::{Message, SCHEMA};
use crate::model::Timestamp;
use crate::store::{Item, PackedItem, PackedValue, Place, Result, StoreError};

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
    /// None if something is missing.
    fn all(item: &PackedItem) -> Result<Option<Self>> {
        let (mut chat_id, mut message_id, mut sender_id) = (None, None, None);
        let (mut content, mut content_type) = (None, None);
        let (mut sequence, mut created_at) = (None, None);
        for attribute in item.attributes() {
            let (name, value) = attribute?;
            match (name, value) {
                (b"sequence", number) => sequence = number.as_u64(),
                (b"created_at", PackedValue::Text(time)) => created_at = time.parse().ok(),
                (_, PackedValue::Text(text)) => {
                    let place = match name {
                        b"chat_id" => &mut chat_id,
                        b"message_id" => &mut message_id,
                        b"sender_id" => &mut sender_id,
                        b"content" => &mut content,
                        b"content_type" => &mut content_type,
                        _ => continue,
                    };
                    *place = Some(item.place_of(text));
                }
                _ => {}
            }
        }
        let found = || {
            Some(Self {
                chat_id: chat_id?,
                message_id: message_id?,
                sender_id: sender_id?,
                content: content?,
                content_type: content_type?,
                sequence: sequence?,
                created_at: created_at?,
            })
        };
        Ok(found())
    }
}

impl StoredMessage {
    pub fn of(item: PackedItem) -> Result<Self> {
        match Found::all(&item)? {
            Some(found) => Ok(Self { item, found }),
            None => Err(what_is_wrong(&item.unpack()?)),
        }
    }

    pub fn chat_id(&self) -> &str {
        self.item.text(self.found.chat_id)
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

/// As every reader of messages tells it.
fn what_is_wrong(item: &Item) -> StoreError {
    let told = Message::from_item(item).err();
    told.unwrap_or_else(|| Attributes::of(&SCHEMA, item).damaged("it is no message"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::message;
    use super::*;

    fn packed(item: &Item) -> Result<StoredMessage> {
        StoredMessage::of(PackedItem::from(item))
    }

    #[test]
    fn a_message_is_read_where_it_is() {
        for sequence in [1, 1 << 40, u64::MAX] {
            let message = Message { content: "Grüße, 世界".into(), ..message(sequence) };
            // what others add to an item is nobody's business here
            let stored = packed(&message.to_item().with("origin", "conn_1").with("zone", true)).unwrap();
            assert_eq!(stored.chat_id(), message.chat_id.as_str());
            assert_eq!(stored.sequence(), sequence);
            assert_eq!(stored.message_id(), message.message_id.as_str());
            assert_eq!(stored.sender_id(), message.sender_id.as_str());
            assert_eq!(stored.content(), message.content);
            assert_eq!(stored.content_type(), message.content_type);
            assert_eq!(stored.created_at(), message.created_at);
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
