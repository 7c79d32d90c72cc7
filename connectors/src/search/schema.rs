//! The fields of a document.

use tantivy::schema::{
    BytesOptions, FAST, Field, INDEXED, IndexRecordOption, STORED, Schema, TextFieldIndexing, TextOptions,
    Value as _,
};
use tantivy::{TantivyDocument, Term};

use super::message::{Message, chat_hash};
use crate::model::Timestamp;

/// The name under which [`Words`](super::words::Words) is registered. Indexes remember it: another way of cutting
/// texts needs another name, so that an index that was cut the old way is built again.
pub(super) const WORDS: &str = "courant-words-1";

/// Columns by name, as readers ask for them.
pub(super) const SEQUENCE: &str = "sequence";
pub(super) const CREATED_AT: &str = "created_at";
pub(super) const CHAT: &str = "chat";
pub(super) const VERSION: &str = "version";
pub(super) const DIGEST: &str = "digest";

#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    /// Chat and sequence: what a document is replaced by.
    key: Field,
    pub(super) content: Field,
    /// A hash of the chat: 8 bytes that are alike in every segment, for filtering by thousands of chats.
    chat: Field,
    sequence: Field,
    created_at: Field,
    version: Field,
    digest: Field,
    chat_id: Field,
    message_id: Field,
    sender_id: Field,
    content_type: Field,
}

/// The schema and its fields. Ranking is not asked for, so nothing is kept for it.
pub(super) fn schema() -> (Schema, Fields) {
    let mut schema = Schema::builder();
    let words = TextFieldIndexing::default()
        .set_tokenizer(WORDS)
        .set_index_option(IndexRecordOption::WithFreqsAndPositions)
        .set_fieldnorms(false);
    let fields = Fields {
        key: schema.add_bytes_field("key", BytesOptions::default().set_indexed()),
        content: schema
            .add_text_field("content", TextOptions::default().set_indexing_options(words).set_stored()),
        chat: schema.add_u64_field(CHAT, FAST | INDEXED),
        sequence: schema.add_u64_field(SEQUENCE, FAST),
        created_at: schema.add_u64_field(CREATED_AT, FAST),
        version: schema.add_u64_field(VERSION, FAST),
        digest: schema.add_u64_field(DIGEST, FAST),
        chat_id: schema.add_text_field("chat_id", STORED),
        message_id: schema.add_text_field("message_id", STORED),
        sender_id: schema.add_text_field("sender_id", STORED),
        content_type: schema.add_text_field("content_type", STORED),
    };
    (schema.build(), fields)
}

impl Fields {
    pub(super) fn document(&self, message: &Message<'_>, digest: u64) -> TantivyDocument {
        let mut document = TantivyDocument::default();
        document.add_bytes(self.key, &key(&message.chat_id, message.sequence));
        document.add_text(self.content, &message.content);
        document.add_u64(self.chat, chat_hash(&message.chat_id));
        document.add_u64(self.sequence, message.sequence);
        document.add_u64(self.created_at, message.created_at.unix_millis());
        document.add_u64(self.version, message.version);
        document.add_u64(self.digest, digest);
        document.add_text(self.chat_id, &message.chat_id);
        document.add_text(self.message_id, &message.message_id);
        document.add_text(self.sender_id, &message.sender_id);
        document.add_text(self.content_type, &message.content_type);
        document
    }

    /// The message of a document, its numbers taken from the columns; `None` if something is missing.
    pub(super) fn message(&self, document: &TantivyDocument, numbers: Numbers) -> Option<Message<'static>> {
        let text = |field| Some(document.get_first(field)?.as_str()?.to_owned().into());
        Some(Message {
            message_id: text(self.message_id)?,
            chat_id: text(self.chat_id)?,
            sequence: numbers.sequence,
            sender_id: text(self.sender_id)?,
            content: text(self.content)?,
            content_type: text(self.content_type)?,
            created_at: Timestamp::from_unix_millis(numbers.created_at),
            version: numbers.version,
        })
    }

    pub(super) fn key_term(&self, chat_id: &str, sequence: u64) -> Term {
        Term::from_field_bytes(self.key, &key(chat_id, sequence))
    }

    pub(super) fn chat_term(&self, chat_id: &str) -> Term {
        Term::from_field_u64(self.chat, chat_hash(chat_id))
    }

    pub(super) fn word_term(&self, word: &str) -> Term {
        Term::from_field_text(self.content, word)
    }
}

/// The numbers of a document, which are kept in columns and not with its texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    pub(super) sequence: u64,
    pub(super) created_at: u64,
    pub(super) version: u64,
}

/// Keys of a chat have the same beginning and are in order, which dictionaries make small.
fn key(chat_id: &str, sequence: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(chat_id.len() + 9);
    key.extend_from_slice(chat_id.as_bytes());
    key.push(0);
    key.extend_from_slice(&sequence.to_be_bytes());
    key
}
