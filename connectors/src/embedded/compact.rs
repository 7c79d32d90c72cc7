//! Rewriting the folder's files so that what was removed or replaced takes no space any more.
//!
//! The engine below does that by itself as files come and go; asking for it is worth the time after much was removed. It
//! goes on beside reads and writes. What it can win ends with the journal: that is freed once all it tells of is in
//! files, 64 MiB at a time.

use std::time::Duration;

use fjall::Keyspace;

use super::Engine;
use super::care::{CareError, Progress, blocking};

/// Writing 32 MiB to a file takes a second on a slow disk; this long without an end means that it will not come.
const FLUSH_LIMIT: Duration = Duration::from_secs(300);
/// The engine below has no signal for the end of a flush, so it is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Engine {
    /// Puts what is in memory into files and rewrites every table, index and topic as a whole.
    pub async fn compact(&self, mut progress: impl FnMut(Progress<'_>) + Send) -> Result<(), CareError> {
        let parts = self.shared.parts();
        for (done, part) in parts.iter().enumerate() {
            progress(Progress { what: &part.name, done, of: parts.len() });
            for keyspace in &part.keyspaces {
                self.flush(keyspace).await?;
                let rewritten = keyspace.clone();
                blocking(move || rewritten.major_compact()).await.map_err(|error| self.care_error(&error))?;
            }
        }
        Ok(())
    }

    async fn flush(&self, keyspace: &Keyspace) -> Result<(), CareError> {
        let rotated = keyspace.clone();
        blocking(move || rotated.rotate_memtable()).await.map_err(|error| self.care_error(&error))?;
        let written = async {
            while keyspace.sealed_memtable_count() > 0 {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::time::timeout(FLUSH_LIMIT, written)
            .await
            .map_err(|_| self.care_error(&"writing a file does not end"))
    }
}
