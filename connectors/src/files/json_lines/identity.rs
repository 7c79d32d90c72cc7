//! Which file it is that stands at a path.
//!
//! A position is a byte of one file, and rotation puts another file at the same path. A file is told from another by
//! its inode and its first line together: inodes are used again, and files may begin alike. Neither changes while a
//! file grows. Where that errs, as with a copy put in place of the original, a file is read again and not skipped.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

/// How much of the first line is looked at.
const HEAD: usize = 1 << 10;

/// A file, whatever its path and however long it has become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    inode: u64,
    /// A hash of the first line, without its end.
    first_line: u64,
    /// There is nothing to come that would change it.
    is_final: bool,
}

impl FileIdentity {
    /// Of the file at a path; none if it cannot be read. Blocks for one small read.
    pub fn at(path: &Path) -> Option<Self> {
        if !std::fs::metadata(path).is_ok_and(|about| about.is_file()) {
            return None; // opening a pipe would wait for its writer
        }
        File::open(path).and_then(|file| Self::of(&file)).ok()
    }

    pub(super) fn of(file: &File) -> io::Result<Self> {
        let mut head = [0; HEAD];
        let mut len = 0;
        while len < HEAD {
            match file.read_at(&mut head[len..], len as u64) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let feed = head[..len].iter().position(|byte| *byte == b'\n');
        Ok(Self {
            inode: file.metadata()?.ino(),
            first_line: fnv1a(&head[..feed.unwrap_or(len)]),
            is_final: feed.is_some() || len == HEAD,
        })
    }

    /// False as long as the first line may still grow.
    pub(super) fn is_final(self) -> bool {
        self.is_final
    }

    pub fn is_same(self, other: Self) -> bool {
        (self.inode, self.first_line) == (other.inode, other.first_line)
    }
}

impl fmt::Display for FileIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:016x}", self.inode, self.first_line)
    }
}

/// FNV-1a, written out because the result is kept on disk: the standard library's hash may change with its version.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(path: &Path, content: &str) -> String {
        std::fs::write(path, content).unwrap();
        FileIdentity::at(path).unwrap().to_string()
    }

    #[test]
    fn growing_changes_nothing_and_another_file_or_content_does() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        let was = identity(&path, "one");
        assert_eq!(identity(&path, "one\ntwo\n"), was);
        assert_eq!(identity(&path, &format!("one\n{}", "x".repeat(5000))), was);
        assert_ne!(identity(&path, "two\n"), was, "cut and written anew");
        assert_ne!(identity(&other, "one\n"), was, "another file that begins alike");
        let long = identity(&path, &"x".repeat(2000));
        assert_eq!(identity(&path, &"x".repeat(3000)), long);
        assert_eq!(FileIdentity::at(&folder.path().join("none")), None);
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
