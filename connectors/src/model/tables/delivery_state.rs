//! Table `delivery_state`: up to which sequence each user got each chat's messages. It says that they arrived at a
//! client, not that somebody read them. Watermarks only move forward, whatever order acknowledgements come in.

use std::borrow::Cow;
use std::num::NonZeroU32;

use super::attributes::{Attributes, listing};
use super::{Listing, chat_counters, if_it_held};
use crate::model::{ChatId, Timestamp, UserId};
use crate::store::{
    Capacity, Condition, Consistency, Durability, Get, Item, Key, KeyAttribute, Name, PageToken, Query,
    ReadStore, Result, Returning, Stream, TableSchema, Update, Write, WriteStore,
};

const TABLE: Name = Name::new_static("delivery_state");

pub static SCHEMA: TableSchema = TableSchema {
    name: TABLE,
    partition: KeyAttribute::text("user_id"),
    sort: Some(KeyAttribute::text("chat_id")),
    indexes: Cow::Borrowed(&[]),
    ttl: None,
    stream: Stream::Off,
    capacity: Capacity::OnDemand,
    point_in_time_recovery: true,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryState {
    pub user_id: UserId,
    pub chat_id: ChatId,
    pub last_acked_sequence: u64,
    /// Up to where the user has read, where a client tells; beyond the documented attributes, and zero if absent.
    pub read_sequence: u64,
    pub updated_at: Timestamp,
}

impl DeliveryState {
    pub fn to_item(&self) -> Item {
        Item::new()
            .with("user_id", &self.user_id)
            .with("chat_id", &self.chat_id)
            .with("last_acked_sequence", self.last_acked_sequence)
            .with_some("read_sequence", (self.read_sequence > 0).then_some(self.read_sequence))
            .with("updated_at", self.updated_at)
    }

    pub fn from_item(item: &Item) -> Result<Self> {
        let item = Attributes::of(&SCHEMA, item);
        Ok(Self {
            user_id: item.id("user_id")?,
            chat_id: item.id("chat_id")?,
            last_acked_sequence: item.u64("last_acked_sequence")?,
            read_sequence: item.optional("read_sequence", Attributes::u64)?.unwrap_or(0),
            updated_at: item.time("updated_at")?,
        })
    }
}

fn key(user: &UserId, chat: &ChatId) -> Key {
    Key::new("user_id", user).and("chat_id", chat)
}

/// The request of [`get`], for a batch of several.
pub fn lookup(user: &UserId, chat: &ChatId) -> Get {
    Get { table: TABLE, key: key(user, chat), consistency: Consistency::Eventual }
}

/// Get delivery state. Eventual: an old watermark sends some messages twice, which clients recognize.
pub async fn get(store: &dyn ReadStore, user: &UserId, chat: &ChatId) -> Result<Option<DeliveryState>> {
    store.get(lookup(user, chat)).await?.as_ref().map(DeliveryState::from_item).transpose()
}

/// The states of one user in several chats, found or not in the order asked.
pub async fn get_many(
    store: &dyn ReadStore,
    user: &UserId,
    chats: &[ChatId],
) -> Result<Vec<Option<DeliveryState>>> {
    let found = store.batch_get(chats.iter().map(|chat| lookup(user, chat)).collect()).await?;
    found.iter().map(|item| item.as_ref().map(DeliveryState::from_item).transpose()).collect()
}

pub fn advance_write(user: &UserId, chat: &ChatId, sequence: u64, now: Timestamp) -> Write {
    let update = Update::new().set("last_acked_sequence", sequence).set("updated_at", now);
    let forward =
        Condition::missing("last_acked_sequence").or(Condition::less("last_acked_sequence", sequence));
    Write::update(TABLE, key(user, chat), update).only_if(forward)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    Moved,
    /// A later acknowledgement came first, or this one came twice: as good as done.
    AlreadyThere,
}

/// Update watermark, forward only.
pub async fn advance(
    store: &dyn WriteStore,
    user: &UserId,
    chat: &ChatId,
    sequence: u64,
    now: Timestamp,
) -> Result<Advance> {
    let write = advance_write(user, chat, sequence, now);
    let answer = store.write(write, Returning::Nothing, Durability::Synced).await;
    Ok(if if_it_held(answer)?.is_some() { Advance::Moved } else { Advance::AlreadyThere })
}

/// All delivery states of a user, by chat id, for a first sync. Eventual, as a single one is.
pub async fn of_user(
    store: &dyn ReadStore,
    user: &UserId,
    after: Option<&ChatId>,
    limit: Option<NonZeroU32>,
) -> Result<Listing<DeliveryState, ChatId>> {
    let mut query = Query::new(TABLE, "user_id", user);
    query.start_after = after.map(|chat| PageToken(key(user, chat).into_item()));
    query.limit = limit.map(NonZeroU32::get);
    let page = store.query(query).await?;
    listing(&SCHEMA, page, DeliveryState::from_item, |end| end.id("chat_id"))
}

/// A chat with messages that did not arrive yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    pub state: DeliveryState,
    /// The last sequence allocated there; some up to it may be gaps.
    pub chat_sequence: u64,
}

/// List unread chats, by chat id: one part of [`of_user`], without those where everything arrived. Chats in which the
/// user never acknowledged anything have no state and are not in it; they are among the user's memberships.
pub async fn unread_of_user(
    store: &dyn ReadStore,
    user: &UserId,
    after: Option<&ChatId>,
    limit: Option<NonZeroU32>,
) -> Result<Listing<Unread, ChatId>> {
    let states = of_user(store, user, after, limit).await?;
    let chats: Vec<_> = states.items.iter().map(|state| state.chat_id.clone()).collect();
    let counters = chat_counters::get_many(store, &chats).await?;
    let unread = states.items.into_iter().zip(counters).filter_map(|(state, counter)| {
        let chat_sequence = counter?.sequence_counter;
        (chat_sequence > state.last_acked_sequence).then_some(Unread { state, chat_sequence })
    });
    Ok(Listing { items: unread.collect(), next: states.next })
}

#[cfg(test)]
mod tests {
    use super::super::recording::{Answer, RecordingStore, Request, condition_of};
    use super::*;
    use crate::store::Page;

    const NOW: Timestamp = Timestamp::from_unix_millis(1_769_783_400_000);

    fn state(chat: &str, last_acked_sequence: u64) -> DeliveryState {
        DeliveryState {
            user_id: "user_1".into(),
            chat_id: chat.into(),
            last_acked_sequence,
            read_sequence: 0,
            updated_at: NOW,
        }
    }

    #[test]
    fn a_read_mark_may_be_there() {
        let read = DeliveryState { read_sequence: 4, ..state("chat_1", 5) };
        for state in [read, state("chat_1", 5)] {
            assert_eq!(DeliveryState::from_item(&state.to_item()).unwrap(), state);
        }
        assert_eq!(state("chat_1", 5).to_item().get("read_sequence"), None);
    }

    #[tokio::test]
    async fn a_late_acknowledgement_is_no_error() {
        let store = RecordingStore::answering([Answer::Item(None), Answer::ConditionFailed]);
        let (user, chat) = ("user_1".into(), "chat_1".into());
        assert_eq!(advance(&store, &user, &chat, 9, NOW).await.unwrap(), Advance::Moved);
        assert_eq!(advance(&store, &user, &chat, 5, NOW).await.unwrap(), Advance::AlreadyThere);
        let forward = condition_of(&store.asked()[0]).clone();
        assert!(forward.holds(None));
        assert!(forward.holds(Some(&state("chat_1", 8).to_item())));
        assert!(!forward.holds(Some(&state("chat_1", 9).to_item())));
    }

    #[tokio::test]
    async fn unread_is_where_the_chat_went_further() {
        let states = ["chat_1", "chat_2", "chat_3"].map(|chat| state(chat, 5).to_item());
        let end = PageToken(Item::new().with("user_id", "user_1").with("chat_id", "chat_3"));
        let counter = |sequence_counter| {
            let counter = chat_counters::ChatCounter::new("chat".into(), NOW);
            Answer::Item(Some(chat_counters::ChatCounter { sequence_counter, ..counter }.to_item()))
        };
        let page = Answer::Page(Page { items: states.into(), next: Some(end) });
        let store = RecordingStore::answering([page, counter(5), counter(7), Answer::Item(None)]);
        let user = "user_1".into();
        let unread = unread_of_user(&store, &user, Some(&"chat_0".into()), NonZeroU32::new(3)).await.unwrap();
        assert_eq!(unread.items, [Unread { state: state("chat_2", 5), chat_sequence: 7 }]);
        assert_eq!(unread.next, Some("chat_3".into()));
        let Request::Query(query) = &store.asked()[0].request else { panic!("not a query") };
        let start = Item::new().with("user_id", "user_1").with("chat_id", "chat_0");
        assert_eq!(query.start_after, Some(PageToken(start)));
        assert_eq!(query.limit, Some(3));
    }
}
