//! Table `users`: who somebody is. Read by id everywhere; by phone number at sign-in and when looking for people.
//!
//! Beyond the documented attributes an item holds what sign-in needs: `password_hash` (argon2id), and of the code that
//! proves the phone number `code_hash`, `code_expires_at` and `code_attempts`. A [`User`] has none of them, so that
//! they get into no answer and no log.
//!
//! A phone number belongs to one user. The index cannot promise that, since it follows the table with a delay; so
//! each number has an item of its own, under `user_id = "phone#<number>"` and with no more than `owner_id`, that is
//! written in one transaction with the user. It is no user, and it is how sign-in finds one without delay.

mod sign_up;

use std::borrow::Cow;
use std::fmt;

use super::attributes::Attributes;
use super::{if_it_held, provisioned};
use crate::model::{Timestamp, UserId};
use crate::store::{
    Condition, Consistency, Durability, Get, IndexSchema, Item, Key, KeyAttribute, Name, Projection, Query,
    ReadStore, Result, Returning, Stream, TableSchema, Update, Write, WriteStore,
};

pub use sign_up::{
    CodeHash, MAX_ATTEMPTS, NewCode, Verification, count_attempt_write, register_writes, renew_write,
    verify_write,
};

const TABLE: Name = Name::new_static("users");
const BY_PHONE: Name = Name::new_static("phone_number-index");

/// Bytes of a display name: more than anybody reads, and little beside an item.
pub const MAX_DISPLAY_NAME: usize = 256;

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

    /// An agent as others see it. Nobody can sign in as one, and none has a phone number: its id stands there, since the
    /// index wants something.
    pub fn agent(user_id: UserId, display_name: String, now: Timestamp) -> Self {
        let phone_number = user_id.to_string();
        Self { user_id, phone_number, phone_verified: false, display_name, created_at: now, updated_at: now }
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

/// Whether a text is a phone number as E.164 writes it: a plus and up to fifteen digits, the first of which is not zero.
pub fn is_phone_number(text: &str) -> bool {
    let Some(digits) = text.strip_prefix('+') else { return false };
    let all = digits.bytes().all(|byte| byte.is_ascii_digit());
    all && (FEWEST_DIGITS..=15).contains(&digits.len()) && !digits.starts_with('0')
}

/// The shortest numbers there are with their country: a code of three digits and four more.
const FEWEST_DIGITS: usize = 7;

/// A user with what proves that it is them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: User,
    /// Argon2id, in PHC form.
    pub password_hash: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A user with the code that was sent to their phone last, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    pub user: User,
    pub verification: Option<Verification>,
}

fn get_by(user: &UserId, consistency: Consistency) -> Get {
    Get { table: TABLE, key: Key::new("user_id", user), consistency }
}

/// The request of [`get`], for a batch of several.
pub fn lookup(user: &UserId) -> Get {
    get_by(user, Consistency::Eventual)
}

/// Whether there is such a user, for a batch of several. Strong: what is found decides. [`is_user`] tells of what is
/// found whether it is one.
pub fn existence_lookup(user: &UserId) -> Get {
    get_by(user, Consistency::Strong)
}

/// A phone number's item is none.
pub fn is_user(item: &Item) -> bool {
    item.get("owner_id").is_none()
}

fn user_of(item: &Item) -> Option<Result<User>> {
    is_user(item).then(|| User::from_item(item))
}

/// Get user by ID. Eventual: a stale display name is cosmetic.
pub async fn get(store: &dyn ReadStore, user: &UserId) -> Result<Option<User>> {
    store.get(lookup(user)).await?.as_ref().and_then(user_of).transpose()
}

/// Several users at once, found or not in the order asked.
pub async fn get_many(store: &dyn ReadStore, users: &[UserId]) -> Result<Vec<Option<User>>> {
    let found = store.batch_get(users.iter().map(lookup).collect()).await?;
    found.iter().map(|item| item.as_ref().and_then(user_of).transpose()).collect()
}

/// Who registered a phone number. Strong: this decides who signs in, and whether a number is taken.
pub async fn owner_of_phone(store: &dyn ReadStore, phone_number: &str) -> Result<Option<UserId>> {
    let reserved = store.get(get_by(&sign_up::reservation(phone_number), Consistency::Strong)).await?;
    reserved.as_ref().map(|item| Attributes::of(&SCHEMA, item).id("owner_id")).transpose()
}

/// Whoever registered a phone number, with what they sign in by; `None` if that is nothing. Strong: a password that
/// was replaced is good for nothing.
pub async fn credentials(store: &dyn ReadStore, phone_number: &str) -> Result<Option<Credentials>> {
    let Some(item) = item_by_phone(store, phone_number).await? else { return Ok(None) };
    let password_hash = Attributes::of(&SCHEMA, &item).optional("password_hash", Attributes::id)?;
    let user = User::from_item(&item)?;
    Ok(password_hash.map(|password_hash| Credentials { user, password_hash }))
}

/// Whoever registered a phone number, with the state of its verification. Strong: attempts are counted.
pub async fn registered(store: &dyn ReadStore, phone_number: &str) -> Result<Option<Registered>> {
    let Some(item) = item_by_phone(store, phone_number).await? else { return Ok(None) };
    let verification = Verification::from_item(&item)?;
    Ok(Some(Registered { user: User::from_item(&item)?, verification }))
}

async fn item_by_phone(store: &dyn ReadStore, phone_number: &str) -> Result<Option<Item>> {
    let Some(owner) = owner_of_phone(store, phone_number).await? else { return Ok(None) };
    if let Some(item) = store.get(existence_lookup(&owner)).await? {
        return Ok(Some(item));
    }
    let reserved = Item::new().with("user_id", &sign_up::reservation(phone_number));
    let why = format!("'owner_id' is '{owner}', and there is no such user");
    Err(Attributes::of(&SCHEMA, &reserved).damaged(&why))
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

/// Without a phone number of its own: nobody can sign in as this user. [`register_writes`] makes one who can.
pub fn create_write(user: &User) -> Write {
    Write::put(TABLE, user.to_item()).only_if(Condition::missing("user_id"))
}

/// Makes the user. Fails with [`ConditionFailed`](crate::store::StoreError::ConditionFailed) if the id is taken.
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
    Write::update(TABLE, Key::new("user_id", user), update.set("updated_at", now)).only_if(is_stored())
}

/// A user is there, and not only a phone number of that name.
fn is_stored() -> Condition {
    Condition::exists("user_id").and(Condition::missing("owner_id"))
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

    #[test]
    fn phone_numbers_have_a_country_and_no_blanks() {
        for number in ["+41791234567", "+2905123", "+123456789012345"] {
            assert!(is_phone_number(number), "{number}");
        }
        for other in [
            "",
            "+",
            "41791234567",
            "+0791234567",
            "+41 79 123",
            "+1234567890123456",
            "+4179123456x",
            "+290512",
        ] {
            assert!(!is_phone_number(other), "{other}");
        }
    }

    #[tokio::test]
    async fn a_phone_number_is_no_user() {
        let reserved = Item::new().with("user_id", "phone#+41791234567").with("owner_id", "user_1");
        let answers = [Answer::Item(Some(reserved.clone())), Answer::Item(Some(reserved.clone()))];
        let store = RecordingStore::answering(answers);
        let id = UserId::from("phone#+41791234567");
        assert_eq!(get(&store, &id).await.unwrap(), None);
        assert_eq!(get_many(&store, std::slice::from_ref(&id)).await.unwrap(), [None]);
        let edit = edit_write(&id, Edit::PhoneVerified, Timestamp::from_unix_millis(0));
        assert!(!edit.condition().unwrap().holds(Some(&reserved)));
    }

    #[tokio::test]
    async fn secrets_are_apart_from_the_user_and_not_printed() {
        let reserved = Item::new().with("user_id", "phone#+41791234567").with("owner_id", "user_1");
        let stored = user().to_item().with("password_hash", "$argon2id$secret");
        let store = RecordingStore::answering([Answer::Item(Some(reserved)), Answer::Item(Some(stored))]);
        let found = credentials(&store, "+41791234567").await.unwrap().unwrap();
        assert_eq!((&found.user, found.password_hash.as_str()), (&user(), "$argon2id$secret"));
        assert!(!format!("{found:?}").contains("secret"), "{found:?}");
    }

    #[tokio::test]
    async fn a_number_without_its_user_is_damage() {
        let reserved = Item::new().with("user_id", "phone#+41791234567").with("owner_id", "user_1");
        let store = RecordingStore::answering([Answer::Item(Some(reserved)), Answer::Item(None)]);
        let error = registered(&store, "+41791234567").await.unwrap_err().to_string();
        assert!(error.contains("phone#+41791234567") && error.contains("no such user"), "{error}");
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
