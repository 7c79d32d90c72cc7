//! Acks of clients: only the highest of each chat matters.
//!
//! A client may ack every message it gets, which is several times what is sent. What comes within a moment is one command
//! for each user and chat. An ack that is lost with the process is made up for by the next one.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use courant_connectors::model::commands::{Ack, Command, WEBSOCKET};
use courant_connectors::model::{ChatId, UserId};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::gateway::Shared;

/// How long acks wait for higher ones.
const COLLECT: Duration = Duration::from_millis(250);
/// Chats of users that may wait. Full: whoever acks another waits, and is not read.
const MAX_WAITING: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Watermarks {
    waiting: Mutex<FxHashMap<(UserId, ChatId), u64>>,
    arrived: Notify,
    taken: Notify,
}

impl Watermarks {
    /// Raises what waits for the same chat; false if nothing does.
    pub(super) fn raise(&self, user: &UserId, chat: &ChatId, sequence: u64) -> bool {
        let mut waiting = self.lock();
        let known = waiting.get_mut(&(user.clone(), chat.clone()));
        known.map(|highest| *highest = sequence.max(*highest)).is_some()
    }

    pub(super) async fn add(&self, user: UserId, chat: ChatId, sequence: u64) {
        loop {
            let taken = self.taken.notified();
            if self.try_add(&user, &chat, sequence) {
                self.arrived.notify_one();
                return;
            }
            taken.await;
        }
    }

    fn try_add(&self, user: &UserId, chat: &ChatId, sequence: u64) -> bool {
        let mut waiting = self.lock();
        let full = waiting.len() >= MAX_WAITING;
        match waiting.entry((user.clone(), chat.clone())) {
            Entry::Occupied(mut highest) => *highest.get_mut() = sequence.max(*highest.get()),
            Entry::Vacant(_) if full => return false,
            Entry::Vacant(entry) => drop(entry.insert(sequence)),
        }
        true
    }

    fn take(&self) -> FxHashMap<(UserId, ChatId), u64> {
        let taken = std::mem::take(&mut *self.lock());
        self.taken.notify_waiters();
        taken
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<(UserId, ChatId), u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        shared.watermarks.arrived.notified().await;
        sleep(COLLECT).await;
        hand_in(&shared).await;
    }
}

/// Hands in what waits. Nobody waits for the answers.
pub(super) async fn hand_in(shared: &Shared) {
    for ((user_id, chat_id), sequence) in shared.watermarks.take() {
        let command = Command::Ack(Ack { chat_id, user_id, sequence });
        if let Err(refusal) = shared.commands.submit(WEBSOCKET, command, None).await {
            tracing::debug!(reason = refusal.message, "an ack was not taken");
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn the_highest_of_a_chat_stands() {
        let marks = Watermarks::default();
        let (user, chat) = (UserId::from("user_1"), ChatId::from("chat_1"));
        assert!(!marks.raise(&user, &chat, 3), "nothing waits");
        marks.add(user.clone(), chat.clone(), 3).now_or_never().unwrap();
        assert!(marks.raise(&user, &chat, 9) && marks.raise(&user, &chat, 5));
        marks.add("user_2".into(), chat.clone(), 1).now_or_never().unwrap();
        let taken = marks.take();
        assert_eq!((taken[&(user.clone(), chat.clone())], taken.len()), (9, 2));
        assert!(!marks.raise(&user, &chat, 10));
    }

    #[test]
    fn no_more_than_its_bound_waits() {
        let marks = Watermarks::default();
        let add = |chat: usize| marks.add("user_1".into(), format!("chat_{chat}").into(), 1);
        for chat in 0..MAX_WAITING {
            add(chat).now_or_never().unwrap();
        }
        let mut beyond = Box::pin(add(MAX_WAITING));
        assert!((&mut beyond).now_or_never().is_none());
        assert_eq!(marks.take().len(), MAX_WAITING);
        assert!(beyond.now_or_never().is_some());
    }
}
