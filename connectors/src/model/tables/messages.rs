//! Table `messages`: what was said, by chat and sequence. Catching up reads it directly, so those reads are strong: a
//! message that a client was acknowledged for must not be missing from its next look.

mod stored;

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::ops::Bound;

use super::Listing;
use super::attributes::{Attributes, listing};
use crate::model::{ChatId, ClientMessageId, MessageId, Timestamp, UserId};
use crate::store::{
    Capacity, Condition, Consistency, Direction, Get, Item, Key, KeyAttribute, Name, Query, ReadStore,
    Result, SortRange, Stream, TableSchema, Text, Value, Within, Write,
};

pub use stored::StoredMessage;

const TABLE: Name = Name::new_static("messages");

pub static SCHEMA: TableSchema = TableSchema {
    name: TABLE,
    partition: KeyAttribute::text("chat_id"),
    sort: Some(KeyAttribute::number("sequence")),
    indexes: Cow::Borrowed(&[]),
    ttl: None,
    stream: Stream::OldAndNewImages,
    capacity: Capacity::OnDemand,
    point_in_time_recovery: true,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub chat_id: ChatId,
    /// From 1 up, with gaps where a write failed after its sequence was allocated.
    pub sequence: u64,
    pub message_id: MessageId,
    pub sender_id: UserId,
    pub client_message_id: ClientMessageId,
    /// UTF-8, up to 4 KB.
    pub content: Text,
    /// A MIME type, usually `text/plain`.
    pub content_type: Text,
    pub created_at: Timestamp,
}

impl Message {
    pub fn to_item(&self) -> Item {
        Item::new()
            .with("chat_id", &self.chat_id)
            .with("sequence", self.sequence)
            .with("message_id", &self.message_id)
            .with("sender_id", &self.sender_id)
            .with("client_message_id", &self.client_message_id)
            .with("content", &self.content)
            .with("content_type", &self.content_type)
            .with("created_at", self.created_at)
    }

    pub fn from_item(item: &Item) -> Result<Self> {
        let item = Attributes::of(&SCHEMA, item);
        Ok(Self {
            chat_id: item.id("chat_id")?,
            sequence: item.u64("sequence")?,
            message_id: item.id("message_id")?,
            sender_id: item.id("sender_id")?,
            client_message_id: item.id("client_message_id")?,
            content: item.id("content")?,
            content_type: item.id("content_type")?,
            created_at: item.time("created_at")?,
        })
    }
}

/// The chat and sequence that a key of this table names.
pub fn named_by(key: &Key) -> Option<(&str, u64)> {
    let (_, sequence) = key.sort.as_ref()?;
    Some((key.partition.1.as_text()?, sequence.as_u64()?))
}

/// Get messages after sequence, oldest first. The cursor is the sequence to pass as `after` next.
pub async fn after(
    store: &dyn ReadStore,
    chat: &ChatId,
    after: u64,
    limit: NonZeroU32,
) -> Result<Listing<Message, u64>> {
    let mut query = query(chat, limit);
    query.range = Some(sequences(Bound::Excluded(after.into()), Bound::Unbounded));
    send(store, query).await
}

/// Get recent N messages, newest first. The cursor is the sequence to pass to [`before`] next.
pub async fn recent(
    store: &dyn ReadStore,
    chat: &ChatId,
    limit: NonZeroU32,
) -> Result<Listing<Message, u64>> {
    let mut query = query(chat, limit);
    query.direction = Direction::Backward;
    send(store, query).await
}

/// The messages before a sequence, newest first: [`recent`], further up.
pub async fn before(
    store: &dyn ReadStore,
    chat: &ChatId,
    before: u64,
    limit: NonZeroU32,
) -> Result<Listing<Message, u64>> {
    let mut query = query(chat, limit);
    query.range = Some(sequences(Bound::Unbounded, Bound::Excluded(before.into())));
    query.direction = Direction::Backward;
    send(store, query).await
}

/// The last message of a chat, for those who want no more of it than its sequence. Strong: counters are recovered from
/// it. The item is not read as a message, so that a damaged one tells its sequence too.
pub fn last_query(chat: &ChatId) -> Query {
    let mut query = query(chat, NonZeroU32::MIN);
    query.direction = Direction::Backward;
    query
}

fn query(chat: &ChatId, limit: NonZeroU32) -> Query {
    let mut query = Query::new(TABLE, "chat_id", chat);
    query.limit = Some(limit.get());
    query.consistency = Consistency::Strong;
    query
}

fn sequences(from: Bound<Value>, to: Bound<Value>) -> SortRange {
    SortRange { attribute: Name::new_static("sequence"), within: Within::Bounds(from, to) }
}

async fn send(store: &dyn ReadStore, query: Query) -> Result<Listing<Message, u64>> {
    let page = store.query(query).await?;
    listing(&SCHEMA, page, Message::from_item, |end| end.u64("sequence"))
}

/// The request of [`get`], for a batch of several.
pub fn lookup(chat: &ChatId, sequence: u64, consistency: Consistency) -> Get {
    Get { table: TABLE, key: Key::new("chat_id", chat).and("sequence", sequence), consistency }
}

/// Get specific message. Strong while catching up; eventual is enough to show one.
pub async fn get(
    store: &dyn ReadStore,
    chat: &ChatId,
    sequence: u64,
    consistency: Consistency,
) -> Result<Option<Message>> {
    store.get(lookup(chat, sequence, consistency)).await?.as_ref().map(Message::from_item).transpose()
}

/// Stores a message that has a sequence, in one transaction with its idempotency key. Never over another message,
/// whatever went wrong with the counter.
pub fn put_write(message: &Message) -> Write {
    put_from_write(message, None)
}

/// The attribute with the connection that a message came from, for those who make its event of the stored item: that
/// connection is not told of it.
pub const ORIGIN: &str = "origin";

/// Like [`put_write`], with where the message came from.
pub fn put_from_write(message: &Message, origin: Option<&str>) -> Write {
    let item = message.to_item().with_some(ORIGIN, origin);
    Write::put(TABLE, item).only_if(Condition::missing("sequence"))
}

#[cfg(test)]
mod tests {
    use super::super::recording::{Answer, RecordingStore, Request};
    use super::*;
    use crate::store::{Page, PageToken, StoreError};

    pub(super) fn message(sequence: u64) -> Message {
        Message {
            chat_id: "chat_1".into(),
            sequence,
            message_id: "msg_1".into(),
            sender_id: "user_1".into(),
            client_message_id: "c-1".into(),
            content: "hello".into(),
            content_type: "text/plain".into(),
            created_at: Timestamp::from_unix_millis(1_769_783_400_000),
        }
    }

    #[tokio::test]
    async fn a_page_says_where_to_go_on() {
        let page = Page {
            items: vec![message(6).to_item(), message(8).to_item()],
            next: Some(PageToken(Item::new().with("chat_id", "chat_1").with("sequence", 9))),
        };
        let store = RecordingStore::answering([Answer::Page(page)]);
        let limit = NonZeroU32::new(3).unwrap();
        let found = after(&store, &"chat_1".into(), 5, limit).await.unwrap();
        assert_eq!(found.items, [message(6), message(8)]);
        assert_eq!(found.next, Some(9), "of what was looked at, not of what was found");
        let Request::Query(query) = &store.asked()[0].request else { panic!("not a query") };
        let within = Within::Bounds(Bound::Excluded(5.into()), Bound::Unbounded);
        assert_eq!(query.range, Some(SortRange { attribute: "sequence".into(), within }));
        assert_eq!((query.limit, query.direction), (Some(3), Direction::Forward));
    }

    #[tokio::test]
    async fn a_damaged_item_is_named() {
        let told = async |item| {
            let store = RecordingStore::answering([Answer::Item(Some(item))]);
            match get(&store, &"chat_1".into(), 6, Consistency::Strong).await.unwrap_err() {
                StoreError::DamagedItem(reason) => reason,
                error => panic!("{error}"),
            }
        };
        let mut item = message(6).to_item();
        item.remove("content");
        assert_eq!(
            told(item.clone()).await,
            "item of table 'messages' with chat_id 'chat_1', sequence 6: 'content' is missing; correct or remove it"
        );
        item.set("content", 5);
        assert!(told(item).await.contains("'content' is number and not text"));
        let late = message(6).to_item().with("created_at", "noon");
        assert!(told(late).await.contains("'created_at': 'noon' is not a time"));
    }

    #[test]
    fn a_message_is_never_overwritten() {
        let put = put_write(&message(6));
        assert!(put.condition().unwrap().holds(None));
        assert!(!put.condition().unwrap().holds(Some(&message(6).to_item())));
    }
}
