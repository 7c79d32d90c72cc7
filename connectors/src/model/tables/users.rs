//! Table `users`: who somebody is. Read by id everywhere; by phone number at sign-in and when looking for people.

use std::borrow::Cow;

use super::attributes::Attributes;
use super::{if_it_held, provisioned};
use crate::model::{Timestamp, UserId};
use crate::store::{
    Condition, Consistency, Durability, Get, IndexSchema, Item, Key, KeyAttribute, Name, Projection, Query,
    ReadStore, Result, Returning, Stream, TableSchema, Update, Write, WriteStore,
};

const TABLE: Name = Name::new_static("users");
const BY_PHONE: Name = Name::new_static("phone_number-index");

pub static SCHEMA: TableSchema = TableSchema {
    name: TABLE,
    partition: KeyAttribute::text("user_id"),
    sort: None,
    indexes: Cow::Borrowed(&INDEXES),
    ttl: None,
    stream: Stream::Off,
    // 20 eventual reads of half a unit; a write of up to 2 KB every ten seconds.
    capacity: provisioned(10, 1),
    point_in_time_recovery: true,
};

static INDEXES: [IndexSchema; 1] = [IndexSchema {
    name: BY_PHONE,
    partition: KeyAttribute::text("phone_number"),
    sort: None,
    // Only the id is wanted; a copy of the profile would be written twice for nothing.
    projection: Projection::KeysOnly,
}];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub user_id: UserId,
    /// E.164, such as `+41791234567`.
    pub phone_number: String,
    pub phone_verified: bool,
    pub display_name: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl User {
    pub fn to_item(&self) -> Item {
        Item::new()
            .with("user_id", &self.user_id)
            .with("phone_number", self.phone_number.as_str())
            .with("phone_verified", self.phone_verified)
            .with("display_name", self.display_name.as_str())
            .with("created_at", self.created_at)
            .with("updated_at", self.updated_at)
    }

    pub fn from_item(item: &Item) -> Result<Self> {
        let item = Attributes::of(&SCHEMA, item);
        Ok(Self {
            user_id: item.id("user_id")?,
            phone_number: item.id("phone_number")?,
            phone_verified: item.bool("phone_verified")?,
            display_name: item.id("display_name")?,
            created_at: item.time("created_at")?,
            updated_at: item.time("updated_at")?,
        })
    }
}

/// The request of [`get`], for a batch of several.
pub fn lookup(user: &UserId) -> Get {
    Get { table: TABLE, key: Key::new("user_id", user), consistency: Consistency::Eventual }
}

/// Get user by ID. Eventual: a stale display name is cosmetic.
pub async fn get(store: &dyn ReadStore, user: &UserId) -> Result<Option<User>> {
    store.get(lookup(user)).await?.as_ref().map(User::from_item).transpose()
}

/// Several users at once, found or not in the order asked.
pub async fn get_many(store: &dyn ReadStore, users: &[UserId]) -> Result<Vec<Option<User>>> {
    let found = store.batch_get(users.iter().map(lookup).collect()).await?;
    found.iter().map(|item| item.as_ref().map(User::from_item).transpose()).collect()
}

/// Find user by phone. The index knows the id only and follows the table with a delay, so somebody who registered
/// this very moment may not be found.
pub async fn by_phone(store: &dyn ReadStore, phone_number: &str) -> Result<Option<UserId>> {
    let mut query = Query::new(TABLE, "phone_number", phone_number);
    query.index = Some(BY_PHONE);
    query.limit = Some(1);
    let page = store.query(query).await?;
    page.items.first().map(|item| Attributes::of(&SCHEMA, item).id("user_id")).transpose()
}

pub fn create_write(user: &User) -> Write {
    Write::put(TABLE, user.to_item()).only_if(Condition::missing("user_id"))
}

/// Makes the user. Fails with [`StoreError::ConditionFailed`](crate::store::StoreError::ConditionFailed) if the id is taken; whether the phone number is,
/// [`by_phone`] tells beforehand, as well as an index can.
pub async fn create(store: &dyn WriteStore, user: &User) -> Result<()> {
    store.write(create_write(user), Returning::Nothing, Durability::Synced).await.map(drop)
}

/// What a user may change about themselves, or verification changes about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    DisplayName(String),
    PhoneVerified,
}

pub fn edit_write(user: &UserId, edit: Edit, now: Timestamp) -> Write {
    let update = match edit {
        Edit::DisplayName(name) => Update::new().set("display_name", name),
        Edit::PhoneVerified => Update::new().set("phone_verified", true),
    };
    // An update makes an item where there is none: a nameless user with nothing but a display name.
    Write::update(TABLE, Key::new("user_id", user), update.set("updated_at", now))
        .only_if(Condition::exists("user_id"))
}

/// The user after the edit; `None` if there is no such user.
pub async fn edit(store: &dyn WriteStore, user: &UserId, edit: Edit, now: Timestamp) -> Result<Option<User>> {
    let answer = store.write(edit_write(user, edit, now), Returning::New, Durability::Synced).await;
    if_it_held(answer)?.flatten().as_ref().map(User::from_item).transpose()
}

#[cfg(test)]
mod tests {
    use super::super::recording::{Answer, RecordingStore};
    use super::*;
    use crate::store::Page;

    fn user() -> User {
        User {
            user_id: "user_1".into(),
            phone_number: "+41791234567".to_owned(),
            phone_verified: false,
            display_name: "Ada".to_owned(),
            created_at: Timestamp::from_unix_millis(1_769_783_400_000),
            updated_at: Timestamp::from_unix_millis(1_769_783_400_000),
        }
    }

    #[tokio::test]
    async fn the_index_answers_with_an_id() {
        let keys = Item::new().with("user_id", "user_1").with("phone_number", "+41791234567");
        let page = Page { items: vec![keys], next: None };
        let store = RecordingStore::answering([Answer::Page(page)]);
        assert_eq!(by_phone(&store, "+41791234567").await.unwrap(), Some("user_1".into()));
        assert_eq!(by_phone(&store, "+41791234567").await.unwrap(), None);
    }

    #[tokio::test]
    async fn an_edit_names_what_it_changes() {
        let later = Timestamp::from_unix_millis(1_769_783_500_000);
        let after = |edit| match edit_write(&"user_1".into(), edit, later) {
            Write::Update { update, condition, .. } => {
                assert!(!condition.unwrap().holds(None), "no user is made by an edit");
                User::from_item(&update.apply(user().to_item()).unwrap()).unwrap()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(
            after(Edit::DisplayName("Ada L.".to_owned())),
            User { display_name: "Ada L.".to_owned(), updated_at: later, ..user() }
        );
        assert_eq!(after(Edit::PhoneVerified), User { phone_verified: true, updated_at: later, ..user() });
        let store = RecordingStore::answering([Answer::ConditionFailed]);
        assert_eq!(edit(&store, &"user_9".into(), Edit::PhoneVerified, later).await.unwrap(), None);
    }
}
