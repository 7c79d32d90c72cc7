//! Reading lines from an offset, also while the file grows.
//!
//! A position is the byte behind a line feed, in one file ([`FileIdentity`]). A file that is replaced (rotated) while
//! it is read is finished first and its successor is read from its start; one that is cut shorter, or is not the one
//! the position was kept for, is read from its start. A line beyond the limit is handed out cut, once its end is
//! found, so that one bad line costs neither memory nor the lines behind it.

use std::fs::Metadata;
use std::io::{ErrorKind, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

use super::identity::FileIdentity;
use crate::files::{FileError, blocking};

/// Bytes asked of the file at a time: enough to spread the cost of going to a blocking thread.
const CHUNK: usize = 256 << 10;

/// A line without its end, and the position behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub text: Bytes,
    pub resume_at: u64,
    /// It was longer than the limit, and this is its start.
    pub truncated: bool,
}

/// Where to start reading.
#[derive(Debug, Clone, Copy, Default)]
pub struct Start {
    pub offset: u64,
    /// The file that the offset is good for; any if none.
    pub file: Option<FileIdentity>,
}

/// Reads a file's lines. Cancel-safe: a dropped call loses nothing.
pub struct LineReader {
    path: PathBuf,
    max_line: usize,
    opened: Opened,
    /// What was read and not yet handed out.
    buffer: BytesMut,
    /// Bytes at the start of the buffer known to hold no line feed.
    searched: usize,
    /// The buffer's place in the file.
    offset: u64,
    /// The start of a line whose end is still looked for; what followed it is not kept.
    long: Option<Bytes>,
    /// The file was seen to be replaced and had no more.
    replaced: bool,
}

struct Opened {
    file: File,
    /// The same file, for looking at its start.
    handle: Arc<std::fs::File>,
    identity: FileIdentity,
}

impl Opened {
    async fn open(path: &Path, start: Start) -> Result<(Self, u64), FileError> {
        let path = path.to_owned();
        blocking(move || {
            let failed = || FileError::doing("open", &path);
            let mut file = std::fs::File::open(&path).map_err(failed())?;
            let identity = FileIdentity::of(&file).map_err(failed())?;
            let offset = start.within(&path, identity, file.metadata().map_err(failed())?.len());
            file.seek(SeekFrom::Start(offset)).map_err(failed())?;
            let handle = Arc::new(file.try_clone().map_err(failed())?);
            Ok((Self { file: File::from_std(file), handle, identity }, offset))
        })
        .await
    }
}

impl Start {
    /// The offset, if it can be one of this file.
    fn within(self, path: &Path, file: FileIdentity, len: u64) -> u64 {
        let Self { offset, file: meant } = self;
        if offset > len {
            tracing::warn!(path = %path.display(), offset, len, "file is shorter than the kept position, reading it from its start");
            return 0;
        }
        if meant.is_some_and(|meant| !meant.is_same(file)) {
            tracing::warn!(path = %path.display(), offset, "file is not the one of the kept position, reading it from its start");
            return 0;
        }
        offset
    }
}

impl LineReader {
    /// Opens the file at a position, or at its start if the position is not one of this file.
    pub async fn open(path: impl Into<PathBuf>, start: Start, max_line: usize) -> Result<Self, FileError> {
        let path = path.into();
        let (opened, offset) = Opened::open(&path, start).await?;
        let buffer = BytesMut::new();
        Ok(Self { path, max_line, opened, buffer, searched: 0, offset, long: None, replaced: false })
    }

    /// The file that the lines handed out last are in.
    pub fn identity(&self) -> FileIdentity {
        self.opened.identity
    }

    /// At most `max` whole lines; none if the file has no more for now. Blank lines are left out.
    pub async fn lines(&mut self, max: usize) -> Result<Vec<Line>, FileError> {
        loop {
            if !self.opened.identity.is_final() && !self.buffer.is_empty() {
                self.look_at_start().await?; // before a position of this file is handed out
            }
            let lines = self.take_lines(max);
            if !lines.is_empty() || !self.fill().await? {
                return Ok(lines);
            }
        }
    }

    /// What follows the last line feed, as a line, once [`LineReader::lines`] has none left: for files that are
    /// known to be complete.
    pub fn last_line(&mut self) -> Option<Line> {
        let len = self.buffer.len();
        self.take_line(len)
    }

    /// Looks whether the file was replaced or cut, and if so goes on with what is there now. To be called when
    /// [`LineReader::lines`] had none; true if there may be more now.
    pub async fn follow(&mut self) -> Result<bool, FileError> {
        let current = match tokio::fs::metadata(&self.path).await {
            Ok(current) => current,
            // Between the two steps of a rotation there is no file; the old one is all there is.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(FileError::doing("look at", &self.path)(error)),
        };
        let opened = self.metadata().await?;
        let read_to = self.offset + self.buffer.len() as u64;
        if !is_same(&opened, &current) {
            if opened.len() > read_to {
                return Ok(true); // the old file has grown since: finish it first
            }
            if !self.replaced {
                // Its writer may not have noticed yet. And what was read last is given time to be settled while
                // positions are still those of the old file.
                self.replaced = true;
                return Ok(false);
            }
            tracing::info!(path = %self.path.display(), "file was replaced, reading the new one");
            return self.reopen().await;
        }
        if opened.len() < read_to {
            tracing::warn!(path = %self.path.display(), "file was cut, reading it from its start");
            return self.reopen().await;
        }
        Ok(opened.len() > read_to)
    }

    fn take_lines(&mut self, max: usize) -> Vec<Line> {
        let mut lines = Vec::new();
        while lines.len() < max {
            let feed = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            let Some(feed) = feed else {
                self.searched = self.buffer.len();
                self.forget_excess();
                break;
            };
            let len = self.searched + feed;
            let line = self.take_line(len);
            self.buffer.advance(1);
            self.offset += 1;
            lines.extend(line.map(|line| Line { resume_at: self.offset, ..line }));
        }
        lines
    }

    /// Takes `len` bytes, up to the end of a line, off the buffer; none if the line is blank.
    fn take_line(&mut self, len: usize) -> Option<Line> {
        let mut text = self.buffer.split_to(len).freeze();
        self.searched = 0;
        self.offset += len as u64;
        if text.ends_with(b"\r") {
            text.truncate(len - 1);
        }
        let is_long = self.long.is_some() || text.len() > self.max_line;
        if is_long {
            tracing::warn!(path = %self.path.display(), end = self.offset, max_line = self.max_line, "line is too long, only its start is read");
            text = self.long.take().unwrap_or(text);
            text.truncate(self.max_line);
        } else if text.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        Some(Line { text, resume_at: self.offset, truncated: is_long })
    }

    /// Of a line that is over the limit before its end is there, keeps the start and drops the rest.
    fn forget_excess(&mut self) {
        // One more may be a carriage return, which does not count.
        if self.long.is_none() && self.buffer.len() <= self.max_line + 1 {
            return;
        }
        self.offset += self.buffer.len() as u64;
        let dropped = self.buffer.split();
        self.searched = 0;
        // Copied, since a part of the buffer would keep all of it in memory.
        self.long.get_or_insert_with(|| Bytes::copy_from_slice(&dropped[..self.max_line]));
    }

    /// Reads on; false at the end of the file.
    async fn fill(&mut self) -> Result<bool, FileError> {
        self.buffer.reserve(CHUNK);
        // `read_buf` either puts bytes into the buffer or has not happened, so a dropped call loses none.
        let read = self.opened.file.read_buf(&mut self.buffer).await;
        Ok(read.map_err(FileError::doing("read", &self.path))? > 0)
    }

    async fn look_at_start(&mut self) -> Result<(), FileError> {
        let (handle, path) = (Arc::clone(&self.opened.handle), self.path.clone());
        let looked =
            blocking(move || FileIdentity::of(&handle).map_err(FileError::doing("look at", &path))).await?;
        self.opened.identity = looked;
        Ok(())
    }

    /// Opening instead of seeking: a dropped call leaves file and buffer as they were, both or neither.
    async fn reopen(&mut self) -> Result<bool, FileError> {
        *self = Self::open(&self.path, Start::default(), self.max_line).await?;
        Ok(true)
    }

    async fn metadata(&self) -> Result<Metadata, FileError> {
        self.opened.file.metadata().await.map_err(FileError::doing("look at", &self.path))
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
