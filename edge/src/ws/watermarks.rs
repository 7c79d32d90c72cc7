//! Acks of clients: only the highest of each chat matters.
//!
//! A client may ack every message it gets, which is several times what is sent. What comes within a moment is one command
//! for each user and chat, and a user who acks more chats than that waits instead of being refused: an ack has no
//! answer that could say so. An ack that is lost with the process is made up for by the next one.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use courant_connectors::model::commands::{Ack, Beyond, Command, WEBSOCKET};
use courant_connectors::model::{ChatId, UserId};
use rustc_hash::FxHashMap;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::gateway::Shared;

/// How long acks wait for higher ones.
const COLLECT: Duration = Duration::from_millis(250);
/// Chats that one user may ack within that time. Full: their socket waits, and is not read.
const MAX_CHATS_OF_USER: usize = 64;
/// Chats that may wait altogether, likewise.
const MAX_CHATS: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Watermarks {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    taken: Notify,
}

#[derive(Default)]
struct Waiting {
    by_user: FxHashMap<UserId, FxHashMap<ChatId, u64>>,
    chats: usize,
}

impl Waiting {
    /// Whether there was room.
    fn raise(&mut self, user: &UserId, chat: &ChatId, sequence: u64) -> bool {
        if !self.by_user.contains_key(user) {
            self.by_user.insert(user.clone(), FxHashMap::default());
        }
        let Some(of_user) = self.by_user.get_mut(user) else { return false };
        let full = of_user.len() >= MAX_CHATS_OF_USER || self.chats >= MAX_CHATS;
        match of_user.entry(chat.clone()) {
            Entry::Occupied(mut highest) => *highest.get_mut() = sequence.max(*highest.get()),
            Entry::Vacant(_) if full => return false,
            Entry::Vacant(entry) => {
                entry.insert(sequence);
                self.chats += 1;
            }
        }
        true
    }
}

impl Watermarks {
    /// Notes that everything up to a sequence has arrived; waits while too much waits already.
    pub(super) async fn raise(&self, user: UserId, chat: ChatId, sequence: u64) {
        loop {
            let taken = self.taken.notified();
            if self.lock().raise(&user, &chat, sequence) {
                self.arrived.notify_one();
                return;
            }
            taken.await;
        }
    }

    fn take(&self) -> Vec<Ack> {
        let taken = std::mem::take(&mut *self.lock());
        self.taken.notify_waiters();
        let acks = taken.by_user.into_iter().flat_map(|(user_id, chats)| {
            chats.into_iter().map(move |(chat_id, sequence)| Ack {
                chat_id,
                user_id: user_id.clone(),
                sequence,
                // It may have swallowed right ones.
                beyond: Beyond::AllThereIs,
            })
        });
        acks.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
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
    for ack in shared.watermarks.take() {
        if let Err(refusal) = shared.commands.submit(WEBSOCKET, Command::Ack(ack), None).await {
            tracing::debug!(reason = refusal.message, "an ack was not taken");
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn raise(marks: &Watermarks, user: &str, chat: &str, sequence: u64) -> bool {
        marks.raise(user.into(), chat.into(), sequence).now_or_never().is_some()
    }

    #[test]
    fn the_highest_of_a_chat_stands() {
        let marks = Watermarks::default();
        for sequence in [3, 9, 5] {
            assert!(raise(&marks, "user_1", "chat_1", sequence));
        }
        assert!(raise(&marks, "user_2", "chat_1", 1));
        let mut taken: Vec<_> =
            marks.take().into_iter().map(|ack| (ack.user_id.to_string(), ack.sequence)).collect();
        taken.sort();
        assert_eq!(taken, [("user_1".to_owned(), 9), ("user_2".to_owned(), 1)]);
        assert!(marks.take().is_empty());
    }

    #[test]
    fn a_user_with_too_many_chats_waits_and_nobody_else() {
        let marks = Watermarks::default();
        for chat in 0..MAX_CHATS_OF_USER {
            assert!(raise(&marks, "user_1", &format!("chat_{chat}"), 1));
        }
        let mut beyond = Box::pin(marks.raise("user_1".into(), "chat_beyond".into(), 1));
        assert!((&mut beyond).now_or_never().is_none());
        assert!(raise(&marks, "user_1", "chat_0", 2), "what waits can be raised");
        assert!(raise(&marks, "user_2", "chat_0", 1));
        assert_eq!(marks.take().len(), MAX_CHATS_OF_USER + 1);
        assert!(beyond.now_or_never().is_some());
    }

    #[test]
    fn no_more_than_its_bound_waits_altogether() {
        let marks = Watermarks::default();
        for n in 0..MAX_CHATS {
            assert!(raise(&marks, &format!("user_{}", n / 64), &format!("chat_{}", n % 64), 1));
        }
        assert!(!raise(&marks, "user_new", "chat_0", 1));
    }
}
