//! Following what changes, while it changes, across stops.
//!
//! Cases share a server, so each looks at its own chats among all that pass by.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{
    Change, ChangeBatch, FollowFrom, FollowOptions, Follower, Item, Name, Store,
};
use futures::FutureExt as _;
use rand::RngExt as _;
use tokio::task::JoinHandle;

use super::records::{new_membership, new_message, put_message};

const CHATS: usize = 4;
const MESSAGES_PER_CHAT: u64 = 40;

/// So small that there is always more than one batch, and looking again so soon that nobody waits.
fn options() -> FollowOptions {
    FollowOptions {
        batch: NonZeroUsize::new(5).unwrap(),
        idle_wait: Duration::from_millis(2),
        longest_idle_wait: Duration::from_millis(20),
        ..FollowOptions::default()
    }
}

fn follow(store: &Arc<dyn Store>, table: &Name, from: FollowFrom) -> Follower {
    Follower::new(Arc::clone(store) as Arc<_>, table.clone(), from, options())
}

async fn next(follower: &mut Follower) -> ChangeBatch {
    let next = tokio::time::timeout(crate::LIMIT, follower.next());
    next.await.expect("there is more to come").expect("the stream can be read")
}

fn image(change: &Change) -> &Item {
    change.new.as_ref().or(change.old.as_ref()).expect("a change has an image")
}

/// What passed by of some chats.
struct Seen {
    chats: BTreeSet<ChatId>,
    messages: Vec<Message>,
}

impl Seen {
    fn of(chats: &[ChatId]) -> Self {
        Self { chats: chats.iter().cloned().collect(), messages: Vec::new() }
    }

    fn take(&mut self, changes: &[Change]) {
        for change in changes {
            let message = Message::from_item(image(change)).unwrap();
            if self.chats.contains(&message.chat_id) {
                assert!(
                    change.old.is_none() && change.new.is_some(),
                    "messages are only ever added: {change:?}"
                );
                self.messages.push(message);
            }
        }
    }

    /// All of them, each once. Messages are items of their own, and a stream has an order per item only.
    fn assert_is(mut self, mut written: Vec<Message>) {
        let place = |message: &Message| (message.chat_id.clone(), message.sequence);
        self.messages.sort_by_key(place);
        written.sort_by_key(place);
        let places = |messages: &[Message]| messages.iter().map(place).collect::<Vec<_>>();
        assert_eq!(places(&self.messages), places(&written));
        assert_eq!(self.messages, written, "with everything they say");
    }
}

fn new_chats() -> Vec<ChatId> {
    (0..CHATS).map(|_| ChatId::generate()).collect()
}

/// Writes to all chats in turn, at its own pace.
fn start_writing(store: &Arc<dyn Store>, chats: &[ChatId]) -> JoinHandle<Vec<Message>> {
    let (store, chats) = (Arc::clone(store), chats.to_vec());
    tokio::spawn(async move {
        let mut written = Vec::new();
        for sequence in 1..=MESSAGES_PER_CHAT {
            for chat in &chats {
                let message = new_message(chat, sequence);
                put_message(&*store, &message).await.unwrap();
                written.push(message);
            }
        }
        written
    })
}

/// Follows until all that was written has passed, and then one more: what comes twice has had time to.
async fn to_the_end(
    store: &Arc<dyn Store>,
    mut follower: Follower,
    mut seen: Seen,
    writing: JoinHandle<Vec<Message>>,
) {
    let expected = CHATS * usize::try_from(MESSAGES_PER_CHAT).unwrap();
    while seen.messages.len() < expected {
        seen.take(&next(&mut follower).await.changes);
    }
    let mut written = writing.await.unwrap();
    let last = new_message(&written[0].chat_id, MESSAGES_PER_CHAT + 1);
    put_message(&**store, &last).await.unwrap();
    while !seen.messages.contains(&last) {
        seen.take(&next(&mut follower).await.changes);
    }
    written.push(last);
    seen.assert_is(written);
}

pub async fn messages_are_followed_while_they_are_written(store: Arc<dyn Store>) {
    let chats = new_chats();
    let writing = start_writing(&store, &chats);
    let follower = follow(&store, &messages::SCHEMA.name, FollowFrom::Oldest);
    to_the_end(&store, follower, Seen::of(&chats), writing).await;
}

/// Stopped at any moment, a call under way included; its positions are kept as text in between.
pub async fn a_follower_goes_on_where_it_stopped(store: Arc<dyn Store>) {
    let chats = new_chats();
    let writing = start_writing(&store, &chats);
    let mut seen = Seen::of(&chats);
    let mut follower = follow(&store, &messages::SCHEMA.name, FollowFrom::Oldest);
    for _ in 0..15 {
        for _ in 0..rand::rng().random_range(0..4) {
            let batch = next(&mut follower).await;
            seen.take(&batch.changes);
            follower.checkpoint(&batch.checkpoint);
            // a call that is given up: what it would have handed out comes with the next
            if let Some(batch) = follower.next().now_or_never() {
                let batch = batch.unwrap();
                seen.take(&batch.changes);
                follower.checkpoint(&batch.checkpoint);
            }
        }
        let kept = serde_json::to_string(&follower.positions()).unwrap();
        drop(follower);
        let positions = FollowFrom::Positions(serde_json::from_str(&kept).unwrap());
        follower = follow(&store, &messages::SCHEMA.name, positions);
    }
    to_the_end(&store, follower, seen, writing).await;
}

pub async fn what_was_not_done_comes_again(store: Arc<dyn Store>) {
    let chats = new_chats();
    let writing = start_writing(&store, &chats);
    let mut seen = Seen::of(&chats);
    let mut follower = follow(&store, &messages::SCHEMA.name, FollowFrom::Oldest);
    let mut unfinished = Vec::new();
    for batch_number in 0..6 {
        let batch = next(&mut follower).await;
        // those of one shard are checkpointed in order, so one that is not done keeps those after it
        if batch_number < 3 {
            seen.take(&batch.changes);
            follower.checkpoint(&batch.checkpoint);
        } else {
            unfinished.extend(batch.changes);
        }
    }
    let positions = FollowFrom::Positions(follower.positions());
    drop(follower);
    let mut again = follow(&store, &messages::SCHEMA.name, positions.clone());
    let mut handed_out = Vec::new();
    while !unfinished.iter().all(|change| handed_out.contains(change)) {
        handed_out.extend(next(&mut again).await.changes);
    }
    let resumed = follow(&store, &messages::SCHEMA.name, positions);
    to_the_end(&store, resumed, seen, writing).await;
}

/// Whoever begins now sees nothing of before, and everything since the first they see. In one chat, which is
/// one partition: shards begin each at its own moment.
pub async fn a_follower_can_begin_now(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    for sequence in 1..=10 {
        put_message(&*store, &new_message(&chat, sequence)).await.unwrap();
    }
    // the store may be late: until the stream has them, they would count as new
    let mut before = follow(&store, &messages::SCHEMA.name, FollowFrom::Oldest);
    let mut seen = Seen::of(std::slice::from_ref(&chat));
    while seen.messages.len() < 10 {
        seen.take(&next(&mut before).await.changes);
    }
    let following = tokio::spawn({
        let (store, mut seen) = (Arc::clone(&store), Seen::of(std::slice::from_ref(&chat)));
        async move {
            let mut follower = follow(&store, &messages::SCHEMA.name, FollowFrom::Latest);
            while seen.messages.len() < 20 {
                seen.take(&next(&mut follower).await.changes);
            }
            seen.messages
        }
    });
    // which message is the first after it began only the follower knows, so there are always more
    for sequence in 11.. {
        if following.is_finished() {
            break;
        }
        put_message(&*store, &new_message(&chat, sequence)).await.unwrap();
    }
    let mut sequences: Vec<_> = following.await.unwrap().iter().map(|message| message.sequence).collect();
    sequences.sort_unstable();
    assert!(sequences[0] > 10, "{sequences:?}");
    assert!(sequences.windows(2).all(|pair| pair[1] == pair[0] + 1), "none left out: {sequences:?}");
}

/// The changes of one item come in order, with what it was and what it is.
pub async fn a_membership_is_followed_from_joining_to_leaving(store: Arc<dyn Store>) {
    let (chat, user) = (ChatId::generate(), UserId::generate());
    let member = new_membership(&chat, &user);
    let admin = Membership { role: Role::Admin, ..member.clone() };
    chat_memberships::add(&*store, &member).await.unwrap();
    chat_memberships::add(&*store, &admin).await.unwrap();
    chat_memberships::set_role(&*store, &chat, &user, Role::Admin).await.unwrap();
    chat_memberships::remove(&*store, &chat, &user).await.unwrap();
    chat_memberships::remove(&*store, &chat, &user).await.unwrap();
    chat_memberships::add(&*store, &admin).await.unwrap();
    let expected = [
        (None, Some(member.clone())),
        (Some(member), Some(admin.clone())),
        (Some(admin.clone()), None),
        (None, Some(admin)),
    ];
    let mut follower = follow(&store, &chat_memberships::SCHEMA.name, FollowFrom::Oldest);
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        let batch = next(&mut follower).await;
        let own =
            batch.changes.into_iter().filter(|change| image(change).text("chat_id") == Some(chat.as_str()));
        let read = |image: Option<Item>| image.as_ref().map(Membership::from_item).transpose().unwrap();
        seen.extend(own.map(|change| (read(change.old), read(change.new))));
    }
    assert_eq!(seen, expected);
}
