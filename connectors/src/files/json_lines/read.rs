//! Reading lines from an offset, also while the file grows.
//!
//! A position is the byte behind a line feed. A file that is replaced (rotated) while it is read is finished
//! first and its successor is read from its start; one that is cut shorter is read from its start. While nobody
//! reads, a replacement shows only by being shorter than the position; telling files apart by their inode was
//! rejected, because inodes are used again and a false match would skip lines.

use std::fs::Metadata;
use std::io::{ErrorKind, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use crate::files::FileError;

/// Bytes asked of the file at a time: enough to spread the cost of going to a blocking thread.
const CHUNK: usize = 256 << 10;

/// A line without its end, and the position behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub text: Bytes,
    pub resume_at: u64,
}

/// Reads a file's lines. Cancel-safe: a dropped call loses nothing.
pub struct LineReader {
    path: PathBuf,
    max_line: usize,
    file: File,
    /// What was read and not yet handed out.
    buffer: BytesMut,
    /// Bytes at the start of the buffer known to hold no line feed.
    searched: usize,
    /// The buffer's place in the file.
    offset: u64,
}

impl LineReader {
    /// Opens the file at a position, or at its start if it is shorter than that.
    pub async fn open(path: impl Into<PathBuf>, offset: u64, max_line: usize) -> Result<Self, FileError> {
        let path = path.into();
        let file = File::open(&path).await.map_err(FileError::doing("open", &path))?;
        let mut reader = Self { path, max_line, file, buffer: BytesMut::new(), searched: 0, offset: 0 };
        let len = reader.metadata().await?.len();
        if offset <= len {
            let sought = reader.file.seek(SeekFrom::Start(offset)).await;
            reader.offset = sought.map_err(FileError::doing("read", &reader.path))?;
        } else {
            tracing::warn!(path = %reader.path.display(), offset, len, "file is shorter than the kept position, reading it from its start");
        }
        Ok(reader)
    }

    /// At most `max` whole lines; none if the file has no more for now. Blank lines are left out.
    pub async fn lines(&mut self, max: usize) -> Result<Vec<Line>, FileError> {
        loop {
            let lines = self.take_lines(max)?;
            if !lines.is_empty() || !self.fill().await? {
                return Ok(lines);
            }
        }
    }

    /// What follows the last line feed, as a line, once [`LineReader::lines`] has none left: for files that are
    /// known to be complete.
    pub fn last_line(&mut self) -> Option<Line> {
        let rest = self.buffer.split().freeze();
        self.searched = 0;
        self.offset += rest.len() as u64;
        trim(rest).map(|text| Line { text, resume_at: self.offset })
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
            tracing::info!(path = %self.path.display(), "file was replaced, reading the new one");
            return self.reopen().await;
        }
        if opened.len() < read_to {
            tracing::warn!(path = %self.path.display(), "file was cut, reading it from its start");
            return self.reopen().await;
        }
        Ok(opened.len() > read_to)
    }

    /// Bytes behind the last line handed out.
    pub async fn remaining(&self) -> Result<u64, FileError> {
        Ok(self.metadata().await?.len().saturating_sub(self.offset))
    }

    fn take_lines(&mut self, max: usize) -> Result<Vec<Line>, FileError> {
        let mut lines = Vec::new();
        while lines.len() < max {
            let feed = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            let len = feed.map_or(self.buffer.len(), |at| self.searched + at);
            if len > self.max_line {
                // The lines before it are handed out first; the next call comes back here.
                return if lines.is_empty() { Err(self.too_long()) } else { Ok(lines) };
            }
            if feed.is_none() {
                self.searched = len;
                break;
            }
            let text = self.buffer.split_to(len).freeze();
            self.buffer.advance(1);
            self.searched = 0;
            self.offset += len as u64 + 1;
            lines.extend(trim(text).map(|text| Line { text, resume_at: self.offset }));
        }
        Ok(lines)
    }

    fn too_long(&self) -> FileError {
        FileError::LineTooLong { path: self.path.clone(), offset: self.offset, max: self.max_line as u64 }
    }

    /// Reads on; false at the end of the file.
    async fn fill(&mut self) -> Result<bool, FileError> {
        self.buffer.reserve(CHUNK);
        // `read_buf` either puts bytes into the buffer or has not happened, so a dropped call loses none.
        let read =
            self.file.read_buf(&mut self.buffer).await.map_err(FileError::doing("read", &self.path))?;
        Ok(read > 0)
    }

    /// Opening instead of seeking: a dropped call leaves file and buffer as they were, both or neither.
    async fn reopen(&mut self) -> Result<bool, FileError> {
        self.file = File::open(&self.path).await.map_err(FileError::doing("open", &self.path))?;
        self.buffer.clear();
        self.searched = 0;
        self.offset = 0;
        Ok(true)
    }

    async fn metadata(&self) -> Result<Metadata, FileError> {
        self.file.metadata().await.map_err(FileError::doing("look at", &self.path))
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Without a carriage return at the end; none if the line is blank.
fn trim(line: Bytes) -> Option<Bytes> {
    let line = if line.ends_with(b"\r") { line.slice(..line.len() - 1) } else { line };
    (!line.iter().all(u8::is_ascii_whitespace)).then_some(line)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::Path;

    use super::*;

    fn append(path: &Path, text: &str) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    async fn texts(reader: &mut LineReader) -> Vec<String> {
        let lines = reader.lines(100).await.unwrap();
        lines.iter().map(|line| String::from_utf8(line.text.to_vec()).unwrap()).collect()
    }

    fn file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        (folder, path)
    }

    #[tokio::test]
    async fn every_position_resumes_at_the_line_after_it() {
        let (_folder, path) = file();
        append(&path, "one\r\n\n  \ntwo\nthree\nfo");
        let mut reader = LineReader::open(&path, 0, 10).await.unwrap();
        let lines = reader.lines(100).await.unwrap();
        assert_eq!(
            lines.iter().map(|line| &line.text[..]).collect::<Vec<_>>(),
            [b"one" as &[u8], b"two", b"three"]
        );
        for (index, line) in lines.iter().enumerate() {
            let mut resumed = LineReader::open(&path, line.resume_at, 10).await.unwrap();
            assert_eq!(resumed.lines(100).await.unwrap(), lines[index + 1..]);
        }
        assert_eq!(reader.last_line(), Some(Line { text: "fo".into(), resume_at: 21 }));
        assert_eq!(reader.last_line(), None);
    }

    #[tokio::test]
    async fn lines_come_in_portions_and_across_chunks() {
        let (_folder, path) = file();
        let long = "x".repeat(CHUNK - 3);
        append(&path, &format!("{long}\n{long}\nend\n"));
        let mut reader = LineReader::open(&path, 0, CHUNK).await.unwrap();
        assert_eq!(reader.lines(1).await.unwrap().len(), 1);
        assert_eq!(texts(&mut reader).await, [long, "end".into()]);
        assert_eq!(reader.remaining().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_named_even_without_its_end() {
        let (_folder, path) = file();
        append(&path, "ok\n12345678901");
        let mut reader = LineReader::open(&path, 0, 10).await.unwrap();
        assert_eq!(texts(&mut reader).await, ["ok"]);
        let error = reader.lines(1).await.unwrap_err().to_string();
        assert!(error.contains("at byte 3") && error.contains("10 bytes"), "{error}");
    }

    #[tokio::test]
    async fn growth_waits_for_the_whole_line() {
        let (_folder, path) = file();
        append(&path, "one\ntw");
        let mut reader = LineReader::open(&path, 0, 10).await.unwrap();
        assert_eq!(texts(&mut reader).await, ["one"]);
        assert!(texts(&mut reader).await.is_empty());
        assert!(!reader.follow().await.unwrap());
        append(&path, "o\n");
        assert!(reader.follow().await.unwrap());
        assert_eq!(texts(&mut reader).await, ["two"]);
    }

    #[tokio::test]
    async fn a_rotated_file_is_finished_before_the_next() {
        let (folder, path) = file();
        append(&path, "one\n");
        let mut reader = LineReader::open(&path, 0, 10).await.unwrap();
        assert_eq!(texts(&mut reader).await, ["one"]);
        let old = folder.path().join("old");
        std::fs::rename(&path, &old).unwrap();
        assert!(!reader.follow().await.unwrap());
        append(&old, "late\n");
        append(&path, "new\n");
        assert!(reader.follow().await.unwrap());
        assert_eq!(texts(&mut reader).await, ["late"]);
        assert!(texts(&mut reader).await.is_empty());
        assert!(reader.follow().await.unwrap());
        assert_eq!(reader.lines(9).await.unwrap(), [Line { text: "new".into(), resume_at: 4 }]);
    }

    #[tokio::test]
    async fn a_cut_file_starts_over() {
        let (_folder, path) = file();
        append(&path, "one\ntwo\n");
        let mut reader = LineReader::open(&path, 0, 10).await.unwrap();
        assert_eq!(texts(&mut reader).await.len(), 2);
        std::fs::write(&path, "x\n").unwrap();
        assert!(reader.follow().await.unwrap());
        assert_eq!(texts(&mut reader).await, ["x"]);
        let mut reopened = LineReader::open(&path, 8, 10).await.unwrap();
        assert_eq!(texts(&mut reopened).await, ["x"]);
    }
}
