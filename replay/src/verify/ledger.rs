//! Which sequences of which chat were seen in the log and in the store. The only thing that grows with the deployment:
//! at most 225 bytes for a chat and 16 for a gap in one, so a million chats take 225 MB however many messages they have.
//! A chat is known by 128 bits of a hash of its id.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use courant_connectors::model::ChatId;
use courant_stages::runs::Runs;
use xxhash_rust::xxh3::xxh3_128;

/// Enough that workers rarely wait for each other.
const SHARDS: usize = 64;

/// What a chat is known by.
pub(crate) type Digest = u128;

pub(crate) fn digest(chat: &ChatId) -> Digest {
    xxh3_128(chat.as_str().as_bytes())
}

/// A digest is a hash already.
#[derive(Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers")
    }

    fn write_u128(&mut self, digest: u128) {
        #[allow(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
        let low = digest as u64;
        self.0 = low;
    }
}

pub(crate) type ByDigest<T> = HashMap<Digest, T, BuildHasherDefault<AsItIs>>;

#[derive(Default)]
struct Sequences {
    /// Where its first event was.
    partition: Option<u32>,
    published: Runs,
    stored: Runs,
}

/// How an event stands to those of its chat before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    InOrder,
    /// It was there before.
    Copy,
    /// For the first time, after one with this sequence.
    After(u64),
    /// Others of the chat are in this partition.
    Elsewhere(u32),
}

/// Whether a message's event was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Seen,
    /// And where others of the chat are, if there are any.
    NotSeen {
        partition: Option<u32>,
    },
}

pub(crate) struct Ledger {
    shards: Vec<Mutex<ByDigest<Sequences>>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Ledger {
    pub(crate) fn published(&self, chat: Digest, partition: u32, sequence: u64) -> Published {
        let mut shard = self.shard(chat);
        let known = shard.entry(chat).or_default();
        let home = *known.partition.get_or_insert(partition);
        let highest = known.published.highest();
        if !known.published.insert(sequence) {
            return Published::Copy;
        }
        match highest {
            _ if home != partition => Published::Elsewhere(home),
            Some(highest) if highest > sequence => Published::After(highest),
            _ => Published::InOrder,
        }
    }

    /// Whether it was not seen before.
    pub(crate) fn stored(&self, chat: Digest, sequence: u64) -> bool {
        self.shard(chat).entry(chat).or_default().stored.insert(sequence)
    }

    pub(crate) fn event(&self, chat: Digest, sequence: u64) -> Event {
        let shard = self.shard(chat);
        match shard.get(&chat) {
            Some(known) if known.published.contains(sequence) => Event::Seen,
            known => Event::NotSeen { partition: known.and_then(|known| known.partition) },
        }
    }

    /// The highest sequence of a chat that an event was seen of.
    pub(crate) fn highest_published(&self, chat: Digest) -> Option<u64> {
        self.shard(chat).get(&chat).and_then(|known| known.published.highest())
    }

    /// Sequences that no message has although later ones are used, and in how many chats.
    pub(crate) fn gaps(&self) -> (u64, u64) {
        let mut found = (0, 0);
        for shard in &self.shards {
            for known in lock(shard).values() {
                let gaps = known.stored.gaps();
                found = (found.0 + gaps, found.1 + u64::from(gaps > 0));
            }
        }
        found
    }

    fn shard(&self, chat: Digest) -> MutexGuard<'_, ByDigest<Sequences>> {
        #[allow(clippy::cast_possible_truncation, reason = "it is less than the number of shards")]
        let shard = ((chat >> 64) % SHARDS as u128) as usize;
        lock(&self.shards[shard])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_apart() {
        let (ledger, chat) = (Ledger::default(), digest(&"chat_1".into()));
        let published = |partition, sequence| ledger.published(chat, partition, sequence);
        assert_eq!(published(3, 1), Published::InOrder);
        assert_eq!(published(3, 4), Published::InOrder);
        assert_eq!(published(3, 4), Published::Copy);
        assert_eq!(published(3, 2), Published::After(4));
        assert_eq!(published(3, 2), Published::Copy);
        assert_eq!(published(5, 6), Published::Elsewhere(3));
        assert_eq!(ledger.event(chat, 4), Event::Seen);
        assert_eq!(ledger.event(chat, 3), Event::NotSeen { partition: Some(3) });
        assert_eq!(ledger.event(digest(&"chat_2".into()), 1), Event::NotSeen { partition: None });
    }

    #[test]
    fn what_is_kept_of_a_chat_is_as_small_as_promised() {
        // A map grows when seven of eight places are taken, to twice as many; each has a byte beside it.
        let place = size_of::<(Digest, Sequences)>() + 1;
        assert!(place * 16 / 7 <= 225, "{place}");
    }
}
