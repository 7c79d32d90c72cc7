//! Table `chat_counters`: the last sequence that was allocated in each chat. Every message passes here, so the table
//! holds nothing else.
//!
//! A counter is made with its chat and never removed. Were a missing one made again on the fly, it would start at
//! one and sequences would be given out twice; so allocation fails with [`AllocateError::CounterMissing`] instead,
//! and a person recovers the counter from the chat's messages.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use super::attributes::Attributes;
use crate::model::{ChatId, Timestamp};
use crate::store::{
    Capacity, Condition, Consistency, Durability, Get, Item, Key, KeyAttribute, Name, ReadStore, Remedy,
    Result, Returning, StoreError, Stream, TableSchema, Update, Write, WriteStore,
};

const TABLE: Name = Name::new_static("chat_counters");

pub static SCHEMA: TableSchema = TableSchema {
    name: TABLE,
    partition: KeyAttribute::text("chat_id"),
    sort: None,
    indexes: Cow::Borrowed(&[]),
    ttl: None,
    stream: Stream::Off,
    capacity: Capacity::OnDemand,
    point_in_time_recovery: true,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatCounter {
    pub chat_id: ChatId,
    /// The last sequence that was allocated; zero in a new chat. Messages may be missing up to it, never beyond it.
    pub sequence_counter: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl ChatCounter {
    pub fn new(chat_id: ChatId, now: Timestamp) -> Self {
        Self { chat_id, sequence_counter: 0, created_at: now, updated_at: now }
    }

    pub fn to_item(&self) -> Item {
        Item::new()
            .with("chat_id", &self.chat_id)
            .with("sequence_counter", self.sequence_counter)
            .with("created_at", self.created_at)
            .with("updated_at", self.updated_at)
    }

    pub fn from_item(item: &Item) -> Result<Self> {
        let item = Attributes::of(&SCHEMA, item);
        Ok(Self {
            chat_id: item.id("chat_id")?,
            sequence_counter: item.u64("sequence_counter")?,
            created_at: item.time("created_at")?,
            updated_at: item.time("updated_at")?,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// An incident: nothing can be sent to this chat until a person acts.
    #[error(
        "chat '{chat}' has no sequence counter; recover it with 'courant counters recover --chat {chat}'"
    )]
    CounterMissing { chat: ChatId },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AllocateError {
    /// An unknown outcome is retried: if it happened after all, its sequences are a gap.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::CounterMissing { .. } => Remedy::Stop,
            Self::Store(StoreError::UnknownOutcome(_)) => Remedy::Retry,
            Self::Store(error) => error.remedy(),
        }
    }
}

pub fn allocate_write(chat: &ChatId, count: NonZeroU32, now: Timestamp) -> Write {
    let update = Update::new().add("sequence_counter", count.get()).set("updated_at", now);
    Write::update(TABLE, Key::new("chat_id", chat), update).only_if(Condition::exists("sequence_counter"))
}

/// Allocate sequence: takes the next `count` of them, which nobody else will get. What is not used stays a gap. Not
/// synced by itself: the messages that carry the sequences are, and the allocation with them.
pub async fn allocate(
    store: &dyn WriteStore,
    chat: &ChatId,
    count: NonZeroU32,
    now: Timestamp,
) -> std::result::Result<RangeInclusive<u64>, AllocateError> {
    let write = allocate_write(chat, count, now);
    let updated = match store.write(write, Returning::UpdatedNew, Durability::Ordered).await {
        Err(StoreError::ConditionFailed { .. }) => {
            return Err(AllocateError::CounterMissing { chat: chat.clone() });
        }
        answer => answer?,
    };
    let last = updated.as_ref().and_then(|item| item.u64("sequence_counter")).unwrap_or_default();
    match (last + 1).checked_sub(count.get().into()) {
        Some(first) if first >= 1 => Ok(first..=last),
        _ => Err(AllocateError::Store(StoreError::DamagedItem(format!(
            "after adding {count}, the sequence counter of chat '{chat}' is {last}; recover it from the messages"
        )))),
    }
}

pub fn create_write(counter: &ChatCounter) -> Write {
    Write::put(TABLE, counter.to_item()).only_if(Condition::missing("chat_id"))
}

/// Makes a counter that is missing. New chats get theirs in the transaction that makes the chat. Fails with
/// [`StoreError::ConditionFailed`] if there is one: it is never set back.
pub async fn create(store: &dyn WriteStore, counter: &ChatCounter) -> Result<()> {
    store.write(create_write(counter), Returning::Nothing, Durability::Synced).await.map(drop)
}

/// Recovers a counter that is missing, or behind what its chat has used: it is at `sequence` then, and says so. A
/// counter that is there or further is never set back: then the condition fails. Part of a transaction with
/// [`still_formed`](super::chats::still_formed), since an update makes an item where there is none.
pub fn recover_write(chat: &ChatId, sequence: u64, now: Timestamp) -> Write {
    let update = Update::new()
        .set("sequence_counter", sequence)
        .set_if_missing("created_at", now)
        .set("updated_at", now)
        .set("recovered_at", now)
        .set("recovered_from_sequence", sequence);
    let behind = Condition::less("sequence_counter", sequence);
    Write::update(TABLE, Key::new("chat_id", chat), update)
        .only_if(Condition::missing("sequence_counter").or(behind))
}

/// Part of a transaction that rests on the chat never having had messages: it would have a counter.
pub fn still_missing(chat: &ChatId) -> Write {
    Write::Check { table: TABLE, key: Key::new("chat_id", chat), condition: Condition::missing("chat_id") }
}

/// The request of [`get`], for a batch of several.
pub fn lookup(chat: &ChatId, consistency: Consistency) -> Get {
    Get { table: TABLE, key: Key::new("chat_id", chat), consistency }
}

/// How far a chat has come, to show what is unread or to verify it. Never to allocate from.
pub async fn get(
    store: &dyn ReadStore,
    chat: &ChatId,
    consistency: Consistency,
) -> Result<Option<ChatCounter>> {
    store.get(lookup(chat, consistency)).await?.as_ref().map(ChatCounter::from_item).transpose()
}

/// Several counters at once, found or not in the order asked. Eventual, for lists.
pub async fn get_many(store: &dyn ReadStore, chats: &[ChatId]) -> Result<Vec<Option<ChatCounter>>> {
    let gets = chats.iter().map(|chat| lookup(chat, Consistency::Eventual)).collect();
    let found = store.batch_get(gets).await?;
    found.iter().map(|item| item.as_ref().map(ChatCounter::from_item).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::recording::{Answer, RecordingStore, Request, condition_of};
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_millis(1_769_783_400_000);

    async fn allocated(
        count: u32,
        answer: Answer,
    ) -> std::result::Result<RangeInclusive<u64>, AllocateError> {
        let store = RecordingStore::answering([answer]);
        let count = NonZeroU32::new(count).unwrap();
        let range = allocate(&store, &"chat_1".into(), count, NOW).await;
        let asked = store.asked();
        let Request::Write(Write::Update { update, .. }, returning, durability) = &asked[0].request else {
            panic!("not an update")
        };
        assert_eq!((*returning, *durability), (Returning::UpdatedNew, Durability::Ordered));
        let before = Item::new().with("sequence_counter", 41);
        let after = update.apply(before.clone()).unwrap();
        assert_eq!(after.u64("sequence_counter"), Some(41 + u64::from(count.get())));
        assert_eq!(after.text("updated_at"), Some("2026-01-30T14:30:00.000Z"));
        assert!(condition_of(&asked[0]).holds(Some(&before)));
        assert!(!condition_of(&asked[0]).holds(None), "a missing counter is not made");
        range
    }

    fn counter_at(sequence: u64) -> Answer {
        Answer::Item(Some(Item::new().with("sequence_counter", sequence)))
    }

    #[tokio::test]
    async fn the_counter_is_the_last_sequence_of_those_allocated() {
        assert_eq!(allocated(1, counter_at(42)).await.unwrap(), 42..=42);
        assert_eq!(allocated(3, counter_at(44)).await.unwrap(), 42..=44);
        assert_eq!(allocated(1, counter_at(1)).await.unwrap(), 1..=1);
    }

    #[tokio::test]
    async fn a_missing_counter_is_an_error_of_its_own() {
        let error = allocated(1, Answer::ConditionFailed).await.unwrap_err();
        assert!(matches!(&error, AllocateError::CounterMissing { chat } if chat.as_str() == "chat_1"));
        assert_eq!(error.remedy(), Remedy::Stop);
        let unknown = AllocateError::from(StoreError::UnknownOutcome("timeout".into()));
        assert_eq!(unknown.remedy(), Remedy::Retry, "at worst a gap");
    }

    #[test]
    fn recovering_never_sets_a_counter_back() {
        let Write::Update { update, condition, .. } = recover_write(&"chat_1".into(), 40, NOW) else {
            panic!("not an update")
        };
        let condition = condition.unwrap();
        let at = |sequence: u64| Item::new().with("chat_id", "chat_1").with("sequence_counter", sequence);
        assert!(condition.holds(None) && condition.holds(Some(&at(39))));
        assert!(condition.holds(Some(&Item::new().with("chat_id", "chat_1"))), "allocation misses it too");
        assert!(!condition.holds(Some(&at(40))) && !condition.holds(Some(&at(41))));
        let made = update.apply(Item::new().with("chat_id", "chat_1")).unwrap();
        assert_eq!(ChatCounter::from_item(&made).unwrap().sequence_counter, 40);
        assert_eq!(made.u64("recovered_from_sequence"), Some(40), "it can be told later");
    }

    #[tokio::test]
    async fn sequences_below_one_are_never_given_out() {
        // the counter was set below zero by hand: one of these three would be zero
        let error = allocated(3, counter_at(2)).await.unwrap_err().to_string();
        assert!(error.contains("chat 'chat_1' is 2;"), "{error}");
        assert!(allocated(1, Answer::Item(None)).await.is_err());
    }
}
