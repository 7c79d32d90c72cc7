//! What a connection has got of each chat, so that `message` frames never go backwards.
//!
//! Two processes can publish the events of one chat out of order, and a batch can be published twice. Sixteen bytes a
//! chat: the chat's hash and the last sequence. Two chats with one hash, which nobody can bring about and hardly ever
//! happens, cost a frame that is not sent; the frame after it says so with `previous_sequence`, and the client asks the
//! store as after any frame that was missed.

use std::hash::{BuildHasherDefault, Hasher};

use courant_connectors::model::ChatId;
use xxhash_rust::xxh3::xxh3_64;

/// A chat as connections remember it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChatHash(u64);

impl From<&ChatId> for ChatHash {
    fn from(chat: &ChatId) -> Self {
        Self(xxh3_64(chat.as_str().as_bytes()))
    }
}

/// The last sequence by chat. Costs nothing before the first message.
#[derive(Debug, Default)]
pub(super) struct Sequences(std::collections::HashMap<ChatHash, u64, BuildHasherDefault<AsItIs>>);

/// Chats that one connection may remember: a megabyte. No user is in that many.
const MAX_CHATS: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It comes after everything before it.
    Next,
    /// It was overtaken, or comes again.
    Late,
    /// The connection remembers too much to go on.
    Full,
}

impl Sequences {
    pub(super) fn advance(&mut self, chat: ChatHash, sequence: u64) -> Turn {
        if self.0.len() >= MAX_CHATS && !self.0.contains_key(&chat) {
            return Turn::Full;
        }
        let last = self.0.entry(chat).or_insert(0);
        if sequence <= *last {
            return Turn::Late;
        }
        *last = sequence;
        Turn::Next
    }
}

/// What is hashed already need not be hashed again.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes of chats are looked up")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chat_goes_forward_on_its_own() {
        let mut sequences = Sequences::default();
        let (one, two) = (ChatHash::from(&"chat_1".into()), ChatHash::from(&"chat_2".into()));
        let turns = [(one, 5), (two, 1), (one, 5), (one, 4), (two, 2), (one, 9)]
            .map(|(chat, sequence)| sequences.advance(chat, sequence));
        assert_eq!(turns, [Turn::Next, Turn::Next, Turn::Late, Turn::Late, Turn::Next, Turn::Next]);
    }

    #[test]
    fn memory_is_bounded_and_known_chats_go_on() {
        let mut sequences = Sequences::default();
        for chat in 0..MAX_CHATS as u64 {
            assert_eq!(sequences.advance(ChatHash(chat), 1), Turn::Next);
        }
        assert_eq!(sequences.advance(ChatHash(u64::MAX), 1), Turn::Full);
        assert_eq!(sequences.advance(ChatHash(3), 2), Turn::Next);
    }
}
