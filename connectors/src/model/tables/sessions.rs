//! Table `sessions`: who is signed in on which device, until when. A session is found by its id on every request of
//! its device, and by its user when they look at their devices or sign out of all of them.

use std::borrow::Cow;
use std::num::NonZeroU32;

use super::attributes::{Attributes, listing};
use super::{Listing, if_it_held, provisioned};
use crate::model::{DeviceId, SessionId, Timestamp, UserId};
use crate::store::{
    BatchWrite, Condition, Consistency, Durability, Get, IndexSchema, Item, Key, KeyAttribute, Name,
    PageToken, Projection, Query, ReadStore, ReadWriteStore, Result, Returning, Stream, TableSchema, Update,
    Write, WriteStore,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub session_id: SessionId,
    pub user_id: UserId,
    pub device_id: DeviceId,
    /// SHA-256 of the refresh token, which itself is stored nowhere.
    pub refresh_token_hash: String,
    pub created_at: Timestamp,
    /// The item's time to live as well.
    pub expires_at: Timestamp,
}

impl Session {
    pub fn to_item(&self) -> Item {
        Item::new()
            .with("session_id", &self.session_id)
            .with("user_id", &self.user_id)
            .with("device_id", &self.device_id)
            .with("refresh_token_hash", self.refresh_token_hash.as_str())
            .with("created_at", self.created_at)
            .with("expires_at", self.expires_at)
            .with("ttl", self.expires_at.unix_seconds())
    }

    pub fn from_item(item: &Item) -> Result<Self> {
        let item = Attributes::of(&SCHEMA, item);
        Ok(Self {
            session_id: item.id("session_id")?,
            user_id: item.id("user_id")?,
            device_id: item.id("device_id")?,
            refresh_token_hash: item.id("refresh_token_hash")?,
            created_at: item.time("created_at")?,
            expires_at: item.time("expires_at")?,
        })
    }
}

pub fn create_write(session: &Session) -> Write {
    Write::put(TABLE, session.to_item()).only_if(Condition::missing("session_id"))
}

/// Signs a device in. Fails with [`ConditionFailed`](crate::store::StoreError::ConditionFailed) if the id is taken.
pub async fn create(store: &dyn WriteStore, session: &Session) -> Result<()> {
    store.write(create_write(session), Returning::Nothing, Durability::Synced).await.map(drop)
}

fn lookup(session: &SessionId) -> Get {
    Get { table: TABLE, key: Key::new("session_id", session), consistency: Consistency::Eventual }
}

/// Validate session: the session, if it goes on at this moment. Eventual: the token was verified before, and a
/// revocation is told to the gateways as well.
pub async fn validate(store: &dyn ReadStore, session: &SessionId, now: Timestamp) -> Result<Option<Session>> {
    let session = store.get(lookup(session)).await?.as_ref().map(Session::from_item).transpose()?;
    // The store hides ended items to the second only.
    Ok(session.filter(|session| session.expires_at > now))
}

/// Whether each of these sessions goes on at this moment, in the order asked. Strong: whoever asks may have missed a
/// revocation, and believes this instead.
pub async fn validate_all(
    store: &dyn ReadStore,
    sessions: &[SessionId],
    now: Timestamp,
) -> Result<Vec<bool>> {
    let gets = sessions.iter().map(|session| Get { consistency: Consistency::Strong, ..lookup(session) });
    let goes_on = |item: &Option<Item>| match item {
        Some(item) => Ok(Session::from_item(item)?.expires_at > now),
        None => Ok(false),
    };
    store.batch_get(gets.collect()).await?.iter().map(goes_on).collect()
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

/// A refresh token that replaces another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotation {
    pub spent_hash: String,
    pub new_hash: String,
    pub expires_at: Timestamp,
}

pub fn rotate_write(session: &SessionId, rotation: &Rotation) -> Write {
    let update = Update::new()
        .set("refresh_token_hash", rotation.new_hash.as_str())
        .set("expires_at", rotation.expires_at)
        .set("ttl", rotation.expires_at.unix_seconds());
    Write::update(TABLE, Key::new("session_id", session), update)
        .only_if(Condition::equals("refresh_token_hash", rotation.spent_hash.as_str()))
}

/// Replaces the refresh token, if it is still the one that was presented: of two who present the same one, one
/// succeeds. `None` if the session is gone or its token is another.
pub async fn rotate(
    store: &dyn WriteStore,
    session: &SessionId,
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
            refresh_token_hash: "hash".to_owned(),
            created_at: NOW,
            expires_at: NOW.plus(Duration::from_secs(60)),
        }
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
    async fn many_are_validated_by_one_strong_look() {
        let stored = session("sess_1").to_item();
        let store = RecordingStore::answering([Answer::Item(Some(stored.clone())), Answer::Item(None)]);
        let asked = [SessionId::from("sess_1"), SessionId::from("sess_2")];
        assert_eq!(validate_all(&store, &asked, NOW).await.unwrap(), [true, false]);
        assert!(store.asked().iter().all(|asked| asked.consistency == Some(Consistency::Strong)));
        let store = RecordingStore::answering([Answer::Item(Some(stored))]);
        let later = NOW.plus(Duration::from_secs(60));
        assert_eq!(validate_all(&store, &asked[..1], later).await.unwrap(), [false], "its time is over");
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

    #[test]
    fn a_spent_token_rotates_nothing() {
        let rotation = Rotation { spent_hash: "hash".into(), new_hash: "next".into(), expires_at: NOW };
        let write = rotate_write(&"sess_1".into(), &rotation);
        let condition = write.condition().unwrap();
        let mut stored = session("sess_1").to_item();
        assert!(condition.holds(Some(&stored)));
        assert!(!condition.holds(None), "a revoked session does not come back");
        stored.set("refresh_token_hash", "next");
        assert!(!condition.holds(Some(&stored)));
    }
}
