//! Table `chats`: what a chat is called and of which type. Its members are in `chat_memberships`, its counter in
//! `chat_counters`: each has traffic of its own.
//!
//! Beyond the documented attributes an item says how many members and owners there are and what changed last about
//! them ([`ChatState`]). A large group is *forming* while its members are being written: it is hidden from every
//! function here but those that make it.

mod state;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::attributes::Attributes;
use super::{if_it_held, provisioned};
use crate::model::{ChatId, Timestamp, UserId};
use crate::store::{
    Condition, Consistency, Durability, Get, Item, Key, KeyAttribute, Name, ReadStore, Result, Returning,
    Stream, TableSchema, Update, Write, WriteStore,
};

pub use state::{
    ChatState, Roster, abandon_begun_write, abandon_write, begin_write, change_write, count_write,
    create_counted_write, form_write, state_lookup, still_absent, still_formed, still_forming,
};

const TABLE: Name = Name::new_static("chats");

/// People in a group, whoever made it among them.
pub const MAX_MEMBERS: u32 = 1000;
/// Bytes of a name: more than anybody reads, and little beside an item.
pub const MAX_NAME: usize = 256;

pub static SCHEMA: TableSchema = TableSchema {
    name: TABLE,
    partition: KeyAttribute::text("chat_id"),
    sort: None,
    indexes: Cow::Borrowed(&[]),
    ttl: None,
    stream: Stream::OldAndNewImages,
    // 30 eventual reads of half a unit; a write of up to 1 KB every other second.
    capacity: provisioned(15, 1),
    point_in_time_recovery: true,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChatType {
    /// Two people and no name.
    Direct,
    Group,
}

impl ChatType {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Group => "group",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Direct, Self::Group].into_iter().find(|chat_type| chat_type.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chat {
    pub chat_id: ChatId,
    pub chat_type: ChatType,
    /// `None` for direct chats.
    pub name: Option<String>,
    pub created_by: UserId,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Chat {
    pub fn to_item(&self) -> Item {
        Item::new()
            .with("chat_id", &self.chat_id)
            .with("chat_type", self.chat_type.as_str())
            .with_some("name", self.name.as_deref())
            .with("created_by", &self.created_by)
            .with("created_at", self.created_at)
            .with("updated_at", self.updated_at)
    }

    pub fn from_item(item: &Item) -> Result<Self> {
        let item = Attributes::of(&SCHEMA, item);
        Ok(Self {
            chat_id: item.id("chat_id")?,
            chat_type: item.word("chat_type", ChatType::parse)?,
            name: item.optional("name", Attributes::id)?,
            created_by: item.id("created_by")?,
            created_at: item.time("created_at")?,
            updated_at: item.time("updated_at")?,
        })
    }
}

/// The request of [`get`], for a batch of several.
pub fn lookup(chat: &ChatId) -> Get {
    Get { table: TABLE, key: Key::new("chat_id", chat), consistency: Consistency::Eventual }
}

/// Get chat metadata. Eventual: worst case, a new name shows a moment later.
pub async fn get(store: &dyn ReadStore, chat: &ChatId) -> Result<Option<Chat>> {
    store.get(lookup(chat)).await?.as_ref().and_then(visible).transpose()
}

/// Several chats at once, found or not in the order asked.
pub async fn get_many(store: &dyn ReadStore, chats: &[ChatId]) -> Result<Vec<Option<Chat>>> {
    let found = store.batch_get(chats.iter().map(lookup).collect()).await?;
    found.iter().map(|item| item.as_ref().and_then(visible).transpose()).collect()
}

/// The chat, unless it is forming.
fn visible(item: &Item) -> Option<Result<Chat>> {
    (!state::is_forming(item)).then(|| Chat::from_item(item))
}

/// Part of a transaction with the chat's counter and its members: a chat without a counter cannot be written to. Its
/// members are counted when they first change; [`create_counted_write`] says how many they are.
pub fn create_write(chat: &Chat) -> Write {
    Write::put(TABLE, chat.to_item()).only_if(Condition::missing("chat_id"))
}

pub fn rename_write(chat: &ChatId, name: &str, now: Timestamp) -> Write {
    let update = Update::new().set("name", name).set("updated_at", now);
    // An update makes an item where there is none, which would be a chat with nothing but a name.
    Write::update(TABLE, Key::new("chat_id", chat), update).only_if(state::has_formed())
}

/// The chat with its new name; `None` if there is no such chat.
pub async fn rename(
    store: &dyn WriteStore,
    chat: &ChatId,
    name: &str,
    now: Timestamp,
) -> Result<Option<Chat>> {
    let answer = store.write(rename_write(chat, name, now), Returning::New, Durability::Synced).await;
    if_it_held(answer)?.flatten().as_ref().map(Chat::from_item).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_read_back_as_written() {
        let time = Timestamp::from_unix_millis(1_769_783_400_000);
        let group = Chat {
            chat_id: "chat_1".into(),
            chat_type: ChatType::Group,
            name: Some("Team".to_owned()),
            created_by: "user_1".into(),
            created_at: time,
            updated_at: time,
        };
        let direct = Chat { chat_type: ChatType::Direct, name: None, ..group.clone() };
        assert_eq!(direct.to_item().get("name"), None);
        for chat in [group, direct] {
            assert_eq!(Chat::from_item(&chat.to_item()).unwrap(), chat);
        }
    }

    #[test]
    fn no_chat_is_made_by_renaming() {
        let rename = rename_write(&"chat_1".into(), "Team", Timestamp::from_unix_millis(0));
        assert!(!rename.condition().unwrap().holds(None));
    }
}
