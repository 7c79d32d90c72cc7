//! Table `sessions`: who is signed in on which device, until when. A session is found by its id on every request of
//! its device, and by its user when they look at their devices or sign out of all of them.
//!
//! Beyond the documented attributes a session has its device's name, when its token was last renewed, and the traces
//! of the last refresh tokens that were spent: one that comes again was stolen from somebody, and the session ends.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;

use subtle::{Choice, ConstantTimeEq as _};

use super::attributes::{Attributes, listing};
use super::{Listing, if_it_held, provisioned};
use crate::model::{DeviceId, SessionId, Timestamp, UserId};
use crate::store::{
    BatchWrite, Condition, Consistency, Durability, Get, IndexSchema, Item, Key, KeyAttribute, Name,
    PageToken, Projection, Query, ReadStore, ReadWriteStore, Result, Returning, Stream, TableSchema, Update,
    Value, Write, WriteStore,
};

const TABLE: Name = Name::new_static("sessions");
const BY_USER: Name = Name::new_static("user_sessions-index");

pub static SCHEMA: TableSchema = TableSchema {
    name: TABLE,
    partition: KeyAttribute::text("session_id"),
    sort: None,
    indexes: Cow::Borrowed(&INDEXES),
    ttl: Some(Name::new_static("ttl")),
    stream: Stream::Off,
    // 10 eventual reads of half a unit; one write of up to 1 KB a second.
    capacity: provisioned(5, 1),
    point_in_time_recovery: true,
};

static INDEXES: [IndexSchema; 1] = [IndexSchema {
    name: BY_USER,
    partition: KeyAttribute::text("user_id"),
    sort: None,
    projection: Projection::All,
}];

/// Spent tokens that a session remembers: a day's worth, renewed every quarter of an hour.
pub const MAX_SPENT: usize = 100;
/// How much of a spent token's hash is kept: at least 96 bits, whether it is written in hex or base64, which is enough
/// to know it again and takes a third of the space.
const TRACE_CHARS: usize = 24;

#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    pub session_id: SessionId,
    pub user_id: UserId,
    pub device_id: DeviceId,
    /// As its owner calls it.
    pub device_name: Option<String>,
    /// SHA-256 of the refresh token, which itself is stored nowhere.
    pub refresh_token_hash: String,
    /// What is left of the hashes of the last [`MAX_SPENT`] tokens before it, oldest first.
    pub spent: Vec<String>,
    pub created_at: Timestamp,
    /// When the session began or its token was last renewed.
    pub last_used_at: Timestamp,
    /// The item's time to live as well.
    pub expires_at: Timestamp,
}

/// Without anything that was made of tokens.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("session_id", &self.session_id)
            .field("user_id", &self.user_id)
            .field("device_id", &self.device_id)
            .field("device_name", &self.device_name)
            .field("created_at", &self.created_at)
            .field("last_used_at", &self.last_used_at)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// What a refresh token is to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Current,
    /// It was replaced by another.
    Spent,
    /// It never was this session's, or so long ago that it is forgotten.
    Unknown,
}

impl Session {
    pub fn to_item(&self) -> Item {
        Item::new()
            .with("session_id", &self.session_id)
            .with("user_id", &self.user_id)
            .with("device_id", &self.device_id)
            .with_some("device_name", self.device_name.as_deref())
            .with("refresh_token_hash", self.refresh_token_hash.as_str())
            .with_some("spent", (!self.spent.is_empty()).then(|| texts(&self.spent)))
            .with("created_at", self.created_at)
            .with("last_used_at", self.last_used_at)
            .with("expires_at", self.expires_at)
            .with("ttl", self.expires_at.unix_seconds())
    }

    pub fn from_item(item: &Item) -> Result<Self> {
        let item = Attributes::of(&SCHEMA, item);
        let created_at = item.time("created_at")?;
        Ok(Self {
            session_id: item.id("session_id")?,
            user_id: item.id("user_id")?,
            device_id: item.id("device_id")?,
            device_name: item.optional("device_name", Attributes::id)?,
            refresh_token_hash: item.id("refresh_token_hash")?,
            spent: item.optional("spent", Attributes::texts)?.unwrap_or_default(),
            created_at,
            last_used_at: item.optional("last_used_at", Attributes::time)?.unwrap_or(created_at),
            expires_at: item.time("expires_at")?,
        })
    }

    /// What the token of this hash is, in a time that does not tell how much of a hash is right.
    pub fn token(&self, hash: &str) -> Token {
        if hash.as_bytes().ct_eq(self.refresh_token_hash.as_bytes()).into() {
            return Token::Current;
        }
        let trace = trace(hash).as_bytes();
        let found =
            self.spent.iter().fold(Choice::from(0), |found, spent| found | trace.ct_eq(spent.as_bytes()));
        if found.into() { Token::Spent } else { Token::Unknown }
    }

    /// The traces once the current token is spent too.
    fn spent_after(&self) -> Vec<String> {
        let all = self.spent.iter().map(String::as_str).chain([trace(&self.refresh_token_hash)]);
        all.skip((self.spent.len() + 1).saturating_sub(MAX_SPENT)).map(str::to_owned).collect()
    }
}

fn trace(hash: &str) -> &str {
    hash.get(..TRACE_CHARS).unwrap_or(hash)
}

fn texts(texts: &[String]) -> Value {
    Value::List(texts.iter().map(|text| Value::from(text.as_str())).collect())
}

pub fn create_write(session: &Session) -> Write {
    Write::put(TABLE, session.to_item()).only_if(Condition::missing("session_id"))
}

/// Signs a device in. Fails with [`ConditionFailed`](crate::store::StoreError::ConditionFailed) if the id is taken.
pub async fn create(store: &dyn WriteStore, session: &Session) -> Result<()> {
    store.write(create_write(session), Returning::Nothing, Durability::Synced).await.map(drop)
}

fn lookup(session: &SessionId, consistency: Consistency) -> Get {
    Get { table: TABLE, key: Key::new("session_id", session), consistency }
}

/// Validate session: the session, if it goes on at this moment. Eventual: the token was verified before, and a
/// revocation is told to the gateways as well.
pub async fn validate(store: &dyn ReadStore, session: &SessionId, now: Timestamp) -> Result<Option<Session>> {
    read(store, lookup(session, Consistency::Eventual), now).await
}

/// The session, for whoever is about to change or end it. Strong: what is found decides.
pub async fn current(store: &dyn ReadStore, session: &SessionId, now: Timestamp) -> Result<Option<Session>> {
    read(store, lookup(session, Consistency::Strong), now).await
}

async fn read(store: &dyn ReadStore, get: Get, now: Timestamp) -> Result<Option<Session>> {
    let session = store.get(get).await?.as_ref().map(Session::from_item).transpose()?;
    // The store hides ended items to the second only.
    Ok(session.filter(|session| session.expires_at > now))
}

/// List user sessions, in no useful order. From the index, so one that began this very moment may not be in it.
pub async fn of_user(
    store: &dyn ReadStore,
    user: &UserId,
    after: Option<&SessionId>,
    limit: Option<NonZeroU32>,
) -> Result<Listing<Session, SessionId>> {
    let mut query = Query::new(TABLE, "user_id", user);
    query.index = Some(BY_USER);
    let end = |session| Key::new("user_id", user).and("session_id", session);
    query.start_after = after.map(|session| PageToken(end(session).into_item()));
    query.limit = limit.map(NonZeroU32::get);
    let page = store.query(query).await?;
    listing(&SCHEMA, page, Session::from_item, |end| end.id("session_id"))
}

/// The sessions of one device of a user. From the index, see [`of_user`].
pub async fn of_device(store: &dyn ReadStore, user: &UserId, device: &DeviceId) -> Result<Vec<Session>> {
    let mut found = Vec::new();
    let mut after: Option<SessionId> = None;
    loop {
        let part = of_user(store, user, after.as_ref(), None).await?;
        found.extend(part.items.into_iter().filter(|session| session.device_id == *device));
        after = part.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}

/// A refresh token that replaces the current one.
#[derive(Clone, PartialEq, Eq)]
pub struct Rotation {
    pub new_hash: String,
    pub at: Timestamp,
    pub expires_at: Timestamp,
}

pub fn rotate_write(session: &Session, rotation: &Rotation) -> Write {
    let update = Update::new()
        .set("refresh_token_hash", rotation.new_hash.as_str())
        .set("spent", texts(&session.spent_after()))
        .set("last_used_at", rotation.at)
        .set("expires_at", rotation.expires_at)
        .set("ttl", rotation.expires_at.unix_seconds());
    // What was spent only changes with the current token, so the list is still the one that was read.
    Write::update(TABLE, Key::new("session_id", &session.session_id), update)
        .only_if(Condition::equals("refresh_token_hash", session.refresh_token_hash.as_str()))
}

/// Replaces the refresh token, if it is still the one that was read: of two who present the same one, one succeeds.
/// `None` if the session is gone or its token is another.
pub async fn rotate(
    store: &dyn WriteStore,
    session: &Session,
    rotation: &Rotation,
) -> Result<Option<Session>> {
    let answer = store.write(rotate_write(session, rotation), Returning::New, Durability::Synced).await;
    if_it_held(answer)?.flatten().as_ref().map(Session::from_item).transpose()
}

pub fn revoke_write(session: &SessionId) -> Write {
    Write::delete(TABLE, Key::new("session_id", session))
}

/// Revoke session. The session that there was, or `None`.
pub async fn revoke(store: &dyn WriteStore, session: &SessionId) -> Result<Option<Session>> {
    let old = store.write(revoke_write(session), Returning::Old, Durability::Synced).await?;
    old.as_ref().map(Session::from_item).transpose()
}

/// Revoke all sessions of a user, and say which. An error may leave some of them; doing it again finds the rest. A
/// session that begins at the same moment may not be found, see [`of_user`].
pub async fn revoke_all(store: &dyn ReadWriteStore, user: &UserId) -> Result<Vec<SessionId>> {
    let mut revoked = Vec::new();
    let mut after: Option<SessionId> = None;
    loop {
        let part = of_user(store, user, after.as_ref(), None).await?;
        let sessions: Vec<_> = part.items.into_iter().map(|session| session.session_id).collect();
        if !sessions.is_empty() {
            let delete = |session| BatchWrite::Delete { table: TABLE, key: Key::new("session_id", session) };
            store.batch_write(sessions.iter().map(delete).collect()).await?;
        }
        revoked.extend(sessions);
        after = part.next;
        if after.is_none() {
            return Ok(revoked);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::recording::{Answer, RecordingStore, Request};
    use super::*;
    use crate::store::Page;

    const NOW: Timestamp = Timestamp::from_unix_millis(1_769_783_400_500);

    fn session(id: &str) -> Session {
        Session {
            session_id: id.into(),
            user_id: "user_1".into(),
            device_id: "dev_1".into(),
            device_name: None,
            refresh_token_hash: "hash".to_owned(),
            spent: Vec::new(),
            created_at: NOW,
            last_used_at: NOW,
            expires_at: NOW.plus(Duration::from_secs(60)),
        }
    }

    #[test]
    fn items_read_back_as_written_and_old_ones_too() {
        let named = Session {
            device_name: Some("Ada's phone".to_owned()),
            spent: vec!["a".to_owned(), "b".to_owned()],
            last_used_at: NOW.plus(Duration::from_secs(1)),
            ..session("sess_1")
        };
        for session in [session("sess_1"), named] {
            assert_eq!(Session::from_item(&session.to_item()).unwrap(), session);
        }
        let mut old = session("sess_1").to_item();
        old.remove("last_used_at");
        assert_eq!(Session::from_item(&old).unwrap(), session("sess_1"));
        assert!(!format!("{:?}", session("sess_1")).contains("hash"));
    }

    #[tokio::test]
    async fn a_session_ends_to_the_millisecond() {
        let stored = session("sess_1");
        assert_eq!(
            stored.to_item().u64("ttl"),
            Some(1_769_783_461),
            "the item lives until the session ended"
        );
        let valid = async |now| {
            let store = RecordingStore::answering([Answer::Item(Some(stored.to_item()))]);
            validate(&store, &"sess_1".into(), now).await.unwrap().is_some()
        };
        assert!(valid(NOW.plus(Duration::from_millis(59_999))).await);
        assert!(!valid(NOW.plus(Duration::from_secs(60))).await);
    }

    #[tokio::test]
    async fn signing_out_everywhere_reads_all_pages() {
        let end = Item::new().with("user_id", "user_1").with("session_id", "sess_2");
        let first = Page {
            items: vec![session("sess_1").to_item(), session("sess_2").to_item()],
            next: Some(PageToken(end.clone())),
        };
        // an empty page in the middle is not the end
        let empty = Page { items: Vec::new(), next: Some(PageToken(end.clone())) };
        let last = Page { items: vec![session("sess_3").to_item()], next: None };
        let done = Answer::Item(None);
        let store =
            RecordingStore::answering([Answer::Page(first), done, Answer::Page(empty), Answer::Page(last)]);
        let revoked = revoke_all(&store, &"user_1".into()).await.unwrap();
        assert_eq!(revoked, ["sess_1", "sess_2", "sess_3"].map(SessionId::from));
        let asked = store.asked();
        let Request::Query(second) = &asked[2].request else { panic!("not a query") };
        assert_eq!(second.start_after, Some(PageToken(end)));
        let deleted = asked.iter().filter_map(|asked| match &asked.request {
            Request::BatchWrite(writes) => Some(writes.len()),
            _ => None,
        });
        assert_eq!(deleted.collect::<Vec<_>>(), [2, 1]);
    }

    fn rotated(stored: &Item, new_hash: String) -> Item {
        let session = Session::from_item(stored).unwrap();
        let rotation = Rotation { new_hash, at: NOW, expires_at: NOW };
        let Write::Update { update, condition, .. } = rotate_write(&session, &rotation) else {
            panic!("not an update")
        };
        assert!(condition.unwrap().holds(Some(stored)));
        update.apply(stored.clone()).unwrap()
    }

    #[test]
    fn a_spent_token_rotates_nothing() {
        let stored = session("sess_1").to_item();
        let rotation = Rotation { new_hash: "next".into(), at: NOW, expires_at: NOW };
        let write = rotate_write(&session("sess_1"), &rotation);
        assert!(!write.condition().unwrap().holds(None), "a revoked session does not come back");
        assert!(!write.condition().unwrap().holds(Some(&rotated(&stored, "next".to_owned()))));
    }

    #[test]
    fn the_last_spent_tokens_are_known_again() {
        let hash = |n: usize| format!("{n:0>64}").chars().rev().collect::<String>();
        let mut stored = Session { refresh_token_hash: hash(0), ..session("sess_1") }.to_item();
        for n in 1..=MAX_SPENT + 1 {
            stored = rotated(&stored, hash(n));
        }
        let session = Session::from_item(&stored).unwrap();
        assert_eq!(session.spent.len(), MAX_SPENT);
        assert_eq!(session.token(&hash(MAX_SPENT + 1)), Token::Current);
        for spent in 1..=MAX_SPENT {
            assert_eq!(session.token(&hash(spent)), Token::Spent, "{spent}");
        }
        assert_eq!(session.token(&hash(0)), Token::Unknown, "forgotten");
        assert_eq!(session.token("never"), Token::Unknown);
        assert!(stored.size() < 4096, "{} bytes", stored.size());
    }
}
