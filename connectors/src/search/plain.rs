//! Tantivy and nothing else: what [`IndexWriter`](super::IndexWriter) is measured against.
//!
//! The same schema, tokenizer, threads and memory, and none of what makes writing safe to repeat: no look at what is
//! there, no newest image, no readers that are brought up to date.

use std::path::{Path, PathBuf};

use tantivy::indexer::UserOperation;

use super::folder;
use super::message::Message;
use super::schema::Fields;
use super::writer::{HAND_OVER, begin, hand_over};
use super::{IndexOptions, SearchError};

/// Feeds an empty folder. Calls block.
pub struct PlainWriter {
    folder: PathBuf,
    fields: Fields,
    writer: tantivy::IndexWriter,
}

impl PlainWriter {
    pub fn create(folder: &Path, options: IndexOptions) -> Result<Self, SearchError> {
        let (index, fields) = folder::open_or_create(folder)?;
        let writer = begin(&index, options).map_err(|error| SearchError::of("open", folder, error))?;
        Ok(Self { folder: folder.to_owned(), fields, writer })
    }

    /// Adds messages that are not there yet, and commits.
    pub fn write(&mut self, messages: &[Message<'_>]) -> Result<(), SearchError> {
        let written = self.add(messages).and_then(|()| self.writer.commit());
        written.map(drop).map_err(|error| SearchError::of("write to", &self.folder, error))
    }

    fn add(&self, messages: &[Message<'_>]) -> tantivy::Result<()> {
        for part in messages.chunks(HAND_OVER) {
            let document = |message: &Message<'_>| self.fields.document(message, message.digest());
            let mut operations = part.iter().map(|message| UserOperation::Add(document(message))).collect();
            hand_over(&self.writer, &mut operations)?;
        }
        Ok(())
    }
}
