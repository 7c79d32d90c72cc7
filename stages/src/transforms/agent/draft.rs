//! An answer while it is written: as long as a message may be and no longer, shown to the chat as it grows.

use courant_pipeline::StageError;

use super::ASK;
use super::progress::Progress;

/// What stands for what was cut off.
const CUT: char = '…';

pub(super) struct Draft {
    text: String,
    /// In bytes.
    longest: usize,
    /// None if nobody is shown anything.
    progress: Option<Progress>,
}

/// Whether there is room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    More,
    Full,
}

impl Draft {
    pub(super) fn new(longest: usize, progress: Option<Progress>) -> Self {
        Self { text: String::new(), longest, progress }
    }

    /// Adds what was written next.
    pub(super) async fn push(&mut self, part: &str) -> Room {
        self.text += part;
        let room = if self.text.len() > self.longest { Room::Full } else { Room::More };
        if room == Room::Full {
            let most = self.longest.saturating_sub(CUT.len_utf8());
            let end = (0..=most).rev().find(|end| self.text.is_char_boundary(*end)).unwrap_or(0);
            self.text.truncate(end);
            self.text.push(CUT);
        }
        if let Some(progress) = &mut self.progress {
            progress.show(&self.text).await;
        }
        room
    }

    /// The answer; those who were shown a part of one that came to nothing hear that it did.
    pub(super) async fn finish(mut self, answered: Result<(), StageError>) -> Result<String, StageError> {
        let text = self.text.trim();
        let finished = match answered {
            // It came to its end like this, and would again.
            Ok(()) if text.is_empty() => Err(StageError::reject(ASK, "the answer is empty")),
            Ok(()) => return Ok(text.to_owned()),
            Err(error) => Err(error),
        };
        if let Some(progress) = &mut self.progress {
            progress.stop().await;
        }
        finished
    }
}
