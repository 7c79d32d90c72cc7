//! Messages and searches for tests.

use std::path::Path;
use std::time::Duration;

use super::{Ask, IndexOptions, IndexWriter, MEMORY_PER_THREAD, Message, Page, Query};
use crate::model::Timestamp;

/// When the first message of every chat was written; each is a second after the one before it.
pub(super) const BEGUN: u64 = 1_769_783_400_000;

pub(super) fn message(chat: &str, sequence: u64, content: &str) -> Message<'static> {
    Message {
        message_id: format!("msg_{chat}_{sequence}").into(),
        chat_id: chat.to_owned().into(),
        sequence,
        sender_id: "user_1".into(),
        content: content.to_owned().into(),
        content_type: "text/plain".into(),
        created_at: Timestamp::from_unix_millis(BEGUN + sequence * 1000),
        version: 0,
    }
}

pub(super) fn open(folder: &Path) -> IndexWriter {
    IndexWriter::open(folder, IndexOptions { threads: 1, memory: MEMORY_PER_THREAD }).unwrap()
}

pub(super) fn ask(query: &str, chats: &[&str]) -> Ask {
    Ask {
        query: Query::parse(query).unwrap(),
        chats: chats.iter().map(|chat| (*chat).into()).collect(),
        before: None,
        after: None,
        limit: 50,
        patience: Duration::from_secs(60),
    }
}

/// Chat and sequence of each hit.
pub(super) fn found(page: &Page) -> Vec<(String, u64)> {
    page.hits.iter().map(|hit| (hit.message.chat_id.to_string(), hit.message.sequence)).collect()
}
