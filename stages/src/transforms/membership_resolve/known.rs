//! What this process remembers of who is in which chat.
//!
//! A list that was read before an invalidation must not be remembered after it. So whoever asks gets a mark, and what it
//! found is kept only if no invalidation of that chat came since: the last ones are remembered for that, and when there
//! were more of them than that, nothing is kept. While nobody listens for invalidations nothing is remembered at all.
//!
//! One mutex: it is taken twice per batch, for as long as some look-ups take. `lru` over caches that are made for many
//! threads (moka, quick_cache): a fill and an invalidation must not overlap, and time is tokio's, so that tests can
//! pause it; a lock of our own gives both.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use courant_connectors::model::{ChatId, UserId};
use lru::LruCache;
use tokio::time::Instant;

use super::Config;

/// Invalidations that can come while the store is asked without voiding what it says about other chats.
const RECENT: usize = 1024;

pub(super) struct KnownMembers {
    remember: Duration,
    max_chats: usize,
    max_members: usize,
    memory: Mutex<Memory>,
}

struct Memory {
    chats: LruCache<ChatId, Known>,
    /// Of all chats together.
    members: usize,
    listening: bool,
    /// The last invalidations, oldest first.
    recent: VecDeque<ChatId>,
    /// How many there were ever.
    invalidations: u64,
}

struct Known {
    members: Arc<[UserId]>,
    until: Instant,
}

/// Which invalidations were there before a question.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark(u64);

impl KnownMembers {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            remember: config.remember.0,
            max_chats: config.max_chats.get() as usize,
            max_members: config.max_members.get() as usize,
            memory: Mutex::new(Memory {
                chats: LruCache::unbounded(),
                members: 0,
                listening: false,
                recent: VecDeque::new(),
                invalidations: 0,
            }),
        }
    }

    /// What is known of each chat; the mark is for [`keep`](Self::keep).
    pub(super) fn of<'a>(
        &self,
        chats: impl Iterator<Item = &'a ChatId>,
    ) -> (Mark, Vec<Option<Arc<[UserId]>>>) {
        let mut memory = self.lock();
        let now = Instant::now();
        let known = |chat: &ChatId| {
            let known = memory.chats.get(chat)?;
            (known.until > now).then(|| Arc::clone(&known.members))
        };
        let found = chats.map(known).collect();
        (Mark(memory.invalidations), found)
    }

    /// Remembers what was found out since the mark, unless it may be out of date by now.
    pub(super) fn keep(&self, since: Mark, found: impl Iterator<Item = (ChatId, Arc<[UserId]>)>) {
        let mut memory = self.lock();
        let until = Instant::now() + self.remember;
        for (chat, members) in found {
            if memory.listening && !memory.is_void(since, &chat) && members.len() <= self.max_members {
                memory.put(chat, Known { members, until });
            }
        }
        while memory.chats.len() > self.max_chats || memory.members > self.max_members {
            memory.drop_oldest();
        }
    }

    pub(super) fn forget(&self, chats: &[ChatId]) {
        let mut memory = self.lock();
        for chat in chats {
            memory.forget(chat);
        }
    }

    /// Forgets everything, also what is being found out: invalidations may have been missed.
    pub(super) fn forget_all(&self) {
        self.lock().forget_all();
    }

    /// From now on invalidations are heard, or are not.
    pub(super) fn listening(&self, listening: bool) {
        let mut memory = self.lock();
        memory.forget_all();
        memory.listening = listening;
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        // nothing in here panics half-way
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn put(&mut self, chat: ChatId, known: Known) {
        self.members += known.members.len();
        if let Some(before) = self.chats.put(chat, known) {
            self.members -= before.members.len();
        }
    }

    fn forget(&mut self, chat: &ChatId) {
        if let Some(known) = self.chats.pop(chat) {
            self.members -= known.members.len();
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(chat.clone());
        self.invalidations += 1;
    }

    fn forget_all(&mut self) {
        self.chats.clear();
        self.members = 0;
        // One more than are remembered: every mark from before is too old.
        self.recent.clear();
        self.invalidations += 1;
    }

    fn drop_oldest(&mut self) {
        if let Some((_, known)) = self.chats.pop_lru() {
            self.members -= known.members.len();
        }
    }

    fn is_void(&self, since: Mark, chat: &ChatId) -> bool {
        let missed = usize::try_from(self.invalidations - since.0).unwrap_or(usize::MAX);
        missed > self.recent.len() || self.recent.iter().rev().take(missed).any(|recent| recent == chat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use courant_pipeline::units::Span;
    use std::num::NonZeroU32;
    use tokio::time::advance;

    fn memory(max_chats: u32, max_members: u32) -> KnownMembers {
        let known = KnownMembers::new(&Config {
            remember: Span::secs(30),
            max_chats: NonZeroU32::new(max_chats).unwrap(),
            max_members: NonZeroU32::new(max_members).unwrap(),
        });
        known.listening(true);
        known
    }

    fn members(count: usize) -> Arc<[UserId]> {
        (0..count).map(|n| UserId::from(format!("user_{n}"))).collect()
    }

    fn mark(known: &KnownMembers) -> Mark {
        known.of([].into_iter()).0
    }

    fn keep(known: &KnownMembers, since: Mark, chat: &str, count: usize) {
        known.keep(since, [(ChatId::from(chat), members(count))].into_iter());
    }

    fn knows(known: &KnownMembers, chat: &str) -> bool {
        known.of([ChatId::from(chat)].iter()).1[0].is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_found_before_an_invalidation_is_not_kept_after_it() {
        let known = memory(10, 100);
        let before = mark(&known);
        known.forget(&["a".into()]);
        keep(&known, before, "a", 2);
        keep(&known, before, "b", 2);
        assert!(!knows(&known, "a") && knows(&known, "b"));
        keep(&known, mark(&known), "a", 2);
        assert!(knows(&known, "a"), "asked after it");
        known.forget_all();
        assert!(!knows(&known, "a") && !knows(&known, "b"));
        keep(&known, before, "c", 2);
        assert!(!knows(&known, "c"), "what is under way is void too");
    }

    #[tokio::test(start_paused = true)]
    async fn more_invalidations_than_are_remembered_void_everything() {
        let known = memory(10, 100);
        let before = mark(&known);
        let others = vec![ChatId::from("other"); RECENT];
        known.forget(&others);
        keep(&known, before, "a", 1);
        assert!(knows(&known, "a"));
        known.forget(&["other".into()]);
        keep(&known, before, "b", 1);
        assert!(!knows(&known, "b"));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_bounded_by_chats_members_and_time() {
        let known = memory(3, 100);
        let since = mark(&known);
        for chat in ["a", "b", "c"] {
            keep(&known, since, chat, 1);
        }
        assert!(knows(&known, "a"), "and was used last");
        keep(&known, since, "d", 1);
        assert!(knows(&known, "a") && !knows(&known, "b"));
        keep(&known, since, "big", 99);
        assert!(knows(&known, "big") && knows(&known, "a") && !knows(&known, "c") && !knows(&known, "d"));
        keep(&known, since, "bigger", 101);
        assert!(!knows(&known, "bigger") && knows(&known, "big"), "one that never fits drives nobody out");
        advance(Duration::from_millis(29_999)).await;
        assert!(knows(&known, "big"));
        advance(Duration::from_millis(1)).await;
        assert!(!knows(&known, "big"));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_remembered_while_nobody_listens() {
        let known = memory(10, 100);
        let before = mark(&known);
        keep(&known, before, "a", 1);
        known.listening(false);
        assert!(!knows(&known, "a"));
        keep(&known, mark(&known), "a", 1);
        assert!(!knows(&known, "a"));
        let deaf = mark(&known);
        known.listening(true);
        keep(&known, deaf, "a", 1);
        assert!(!knows(&known, "a"), "a change may have been missed since the question");
    }
}
