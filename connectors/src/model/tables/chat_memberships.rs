//! Table `chat_memberships`: who is in which chat, and as what. Somebody may send to a chat if and only if they have
//! an item here, so every read that decides something is strong; only a user's own list of chats, which comes from
//! the index, may lag.

use std::borrow::Cow;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::attributes::{Attributes, listing};
use super::{Listing, if_it_held, provisioned};
use crate::model::{ChatId, Timestamp, UserId};
use crate::store::{
    Condition, Consistency, Durability, Get, IndexSchema, Item, Key, KeyAttribute, Name, PageToken,
    Projection, Query, ReadStore, Result, Returning, Stream, TableSchema, Update, Write, WriteStore,
};

const TABLE: Name = Name::new_static("chat_memberships");
const BY_USER: Name = Name::new_static("user_chats-index");

pub static SCHEMA: TableSchema = TableSchema {
    name: TABLE,
    partition: KeyAttribute::text("chat_id"),
    sort: Some(KeyAttribute::text("user_id")),
    indexes: Cow::Borrowed(&INDEXES),
    ttl: None,
    stream: Stream::OldAndNewImages,
    // 50 strong reads of one unit; one write of up to 1 KB a second.
    capacity: provisioned(50, 1),
    point_in_time_recovery: true,
};

static INDEXES: [IndexSchema; 1] = [IndexSchema {
    name: BY_USER,
    partition: KeyAttribute::text("user_id"),
    sort: Some(KeyAttribute::text("chat_id")),
    // Read at every start of a client; keys alone would mean a second look-up per chat.
    projection: Projection::All,
}];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Owner,
    Admin,
    Member,
}

impl Role {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Admin => "admin",
            Self::Member => "member",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Owner, Self::Admin, Self::Member].into_iter().find(|role| role.as_str() == text)
    }
}

/// What happened to somebody's membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeType {
    Added,
    Removed,
    RoleChanged,
}

impl ChangeType {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::RoleChanged => "role_changed",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Added, Self::Removed, Self::RoleChanged].into_iter().find(|change| change.as_str() == text)
    }
}

/// A change of somebody's membership, as its chat remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub user_id: UserId,
    pub change_type: ChangeType,
    /// After the change; of somebody who was removed, the last one.
    pub role: Role,
    pub by: UserId,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    pub chat_id: ChatId,
    pub user_id: UserId,
    pub role: Role,
    pub joined_at: Timestamp,
    /// `None` if the member wants to hear of everything.
    pub muted_until: Option<Timestamp>,
}

impl Membership {
    pub fn to_item(&self) -> Item {
        Item::new()
            .with("chat_id", &self.chat_id)
            .with("user_id", &self.user_id)
            .with("role", self.role.as_str())
            .with("joined_at", self.joined_at)
            .with_some("muted_until", self.muted_until)
    }

    pub fn from_item(item: &Item) -> Result<Self> {
        let item = Attributes::of(&SCHEMA, item);
        Ok(Self {
            chat_id: item.id("chat_id")?,
            user_id: item.id("user_id")?,
            role: item.word("role", Role::parse)?,
            joined_at: item.time("joined_at")?,
            muted_until: item.optional("muted_until", Attributes::time)?,
        })
    }
}

fn key(chat: &ChatId, user: &UserId) -> Key {
    Key::new("chat_id", chat).and("user_id", user)
}

/// List chat members, by user id. Strong: who is not in it any more must not be delivered to.
pub async fn list(
    store: &dyn ReadStore,
    chat: &ChatId,
    after: Option<&UserId>,
    limit: Option<NonZeroU32>,
) -> Result<Listing<Membership, UserId>> {
    let mut query = Query::new(TABLE, "chat_id", chat);
    query.start_after = after.map(|user| PageToken(key(chat, user).into_item()));
    query.limit = limit.map(NonZeroU32::get);
    query.consistency = Consistency::Strong;
    let page = store.query(query).await?;
    listing(&SCHEMA, page, Membership::from_item, |end| end.id("user_id"))
}

/// List user's chats, by chat id. From the index, so a chat that was made this very moment may not be in it.
pub async fn of_user(
    store: &dyn ReadStore,
    user: &UserId,
    after: Option<&ChatId>,
    limit: Option<NonZeroU32>,
) -> Result<Listing<Membership, ChatId>> {
    let mut query = Query::new(TABLE, "user_id", user);
    query.index = Some(BY_USER);
    query.start_after = after.map(|chat| PageToken(key(chat, user).into_item()));
    query.limit = limit.map(NonZeroU32::get);
    let page = store.query(query).await?;
    listing(&SCHEMA, page, Membership::from_item, |end| end.id("chat_id"))
}

/// The request of [`check`], for a batch together with other look-ups.
pub fn lookup(chat: &ChatId, user: &UserId) -> Get {
    Get { table: TABLE, key: key(chat, user), consistency: Consistency::Strong }
}

/// Check user in chat. Strong: this decides whether somebody may send.
pub async fn check(store: &dyn ReadStore, chat: &ChatId, user: &UserId) -> Result<Option<Membership>> {
    store.get(lookup(chat, user)).await?.as_ref().map(Membership::from_item).transpose()
}

/// [`check`] for several chats of a user, at most a hundred, in their order.
pub async fn check_many(
    store: &dyn ReadStore,
    chats: &[ChatId],
    user: &UserId,
) -> Result<Vec<Option<Membership>>> {
    let found = store.batch_get(chats.iter().map(|chat| lookup(chat, user)).collect()).await?;
    found.iter().map(|item| item.as_ref().map(Membership::from_item).transpose()).collect()
}

pub fn add_write(membership: &Membership) -> Write {
    Write::put(TABLE, membership.to_item()).only_if(Condition::missing("user_id"))
}

/// A member of a group that is forming. Without a condition: writing the same group again changes nothing, and a
/// group that has formed is closed to this by [`still_forming`](super::chats::still_forming).
pub fn stage_write(membership: &Membership) -> Write {
    Write::put(TABLE, membership.to_item())
}

/// Part of a transaction that rests on somebody's role: it fails if that has changed meanwhile.
pub fn still_has_role(chat: &ChatId, user: &UserId, role: Role) -> Write {
    Write::Check { table: TABLE, key: key(chat, user), condition: has_role(role) }
}

fn has_role(role: Role) -> Condition {
    Condition::equals("role", role.as_str())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    Now,
    /// Nothing was changed, the role neither.
    Before,
}

/// Add member. Adding twice changes nothing, so a repeated command cannot reset somebody's role.
pub async fn add(store: &dyn WriteStore, membership: &Membership) -> Result<Added> {
    let answer = store.write(add_write(membership), Returning::Nothing, Durability::Synced).await;
    Ok(if if_it_held(answer)?.is_some() { Added::Now } else { Added::Before })
}

pub fn remove_write(chat: &ChatId, user: &UserId) -> Write {
    Write::delete(TABLE, key(chat, user))
}

/// Part of a transaction that counted on the member's role.
pub fn remove_from_role_write(chat: &ChatId, user: &UserId, role: Role) -> Write {
    remove_write(chat, user).only_if(has_role(role))
}

/// Remove member. The membership that there was, or `None` if there was none.
pub async fn remove(store: &dyn WriteStore, chat: &ChatId, user: &UserId) -> Result<Option<Membership>> {
    let old = store.write(remove_write(chat, user), Returning::Old, Durability::Synced).await?;
    old.as_ref().map(Membership::from_item).transpose()
}

pub fn set_role_write(chat: &ChatId, user: &UserId, role: Role) -> Write {
    // Without the condition, a member who was removed meanwhile would come back.
    Write::update(TABLE, key(chat, user), Update::new().set("role", role.as_str()))
        .only_if(Condition::exists("user_id"))
}

/// Part of a transaction that counted on the member's role.
pub fn change_role_write(chat: &ChatId, user: &UserId, from: Role, to: Role) -> Write {
    set_role_write(chat, user, to).only_if(has_role(from))
}

/// The membership with its new role; `None` if they are not a member.
pub async fn set_role(
    store: &dyn WriteStore,
    chat: &ChatId,
    user: &UserId,
    role: Role,
) -> Result<Option<Membership>> {
    let answer = store.write(set_role_write(chat, user, role), Returning::New, Durability::Synced).await;
    if_it_held(answer)?.flatten().as_ref().map(Membership::from_item).transpose()
}

#[cfg(test)]
mod tests {
    use super::super::recording::{Answer, RecordingStore, Request, condition_of};
    use super::*;

    fn membership() -> Membership {
        Membership {
            chat_id: "chat_1".into(),
            user_id: "user_1".into(),
            role: Role::Admin,
            joined_at: Timestamp::from_unix_millis(1_769_783_400_000),
            muted_until: Some(Timestamp::from_unix_millis(1_769_783_460_000)),
        }
    }

    #[test]
    fn items_read_back_as_written() {
        let loud = Membership { muted_until: None, ..membership() };
        for membership in [membership(), loud] {
            assert_eq!(Membership::from_item(&membership.to_item()).unwrap(), membership);
        }
        let nulled = membership().to_item().with("muted_until", crate::store::Value::Null);
        assert_eq!(Membership::from_item(&nulled).unwrap().muted_until, None);
        let error = Membership::from_item(&membership().to_item().with("role", "king")).unwrap_err();
        assert!(error.to_string().contains("'role' is 'king', which has no meaning"), "{error}");
    }

    #[tokio::test]
    async fn adding_twice_changes_nothing() {
        let store = RecordingStore::answering([Answer::Item(None), Answer::ConditionFailed]);
        assert_eq!(add(&store, &membership()).await.unwrap(), Added::Now);
        assert_eq!(add(&store, &membership()).await.unwrap(), Added::Before);
        assert!(!condition_of(&store.asked()[0]).holds(Some(&membership().to_item())));
        assert!(condition_of(&store.asked()[0]).holds(None));
    }

    #[tokio::test]
    async fn a_role_is_given_to_members_only() {
        let store = RecordingStore::answering([Answer::ConditionFailed]);
        let changed = set_role(&store, &"chat_1".into(), &"user_1".into(), Role::Owner).await.unwrap();
        assert_eq!(changed, None);
        assert!(!condition_of(&store.asked()[0]).holds(None), "who was removed does not come back");
    }

    #[test]
    fn what_rests_on_a_role_fails_with_another_one() {
        let (chat, user) = ("chat_1".into(), "user_1".into());
        let writes = [
            still_has_role(&chat, &user, Role::Admin),
            remove_from_role_write(&chat, &user, Role::Admin),
            change_role_write(&chat, &user, Role::Admin, Role::Owner),
        ];
        let owner = Membership { role: Role::Owner, ..membership() };
        for condition in writes.iter().map(|write| write.condition().unwrap()) {
            assert!(condition.holds(Some(&membership().to_item())));
            assert!(!condition.holds(Some(&owner.to_item())));
            assert!(!condition.holds(None));
        }
    }

    #[tokio::test]
    async fn pages_go_on_after_the_last_one_seen() {
        let store = RecordingStore::default();
        let end = || PageToken(Item::new().with("chat_id", "chat_1").with("user_id", "user_1"));
        list(&store, &"chat_1".into(), Some(&"user_1".into()), NonZeroU32::new(2)).await.unwrap();
        of_user(&store, &"user_1".into(), Some(&"chat_1".into()), None).await.unwrap();
        for (asked, limit) in store.asked().iter().zip([Some(2), None]) {
            let Request::Query(query) = &asked.request else { panic!("not a query") };
            assert_eq!(query.start_after, Some(end()));
            assert_eq!(query.limit, limit);
        }
    }
}
