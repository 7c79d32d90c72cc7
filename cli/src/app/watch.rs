//! Notices that the configuration's files have changed.
//!
//! By looking at their content now and then. Notifications from the kernel were rejected: editors replace files,
//! orchestrators swap symlinks, network and bind mounts stay silent, and three small files a second cost nothing.
//!
//! A change counts once two looks in a row find the same: a file that is still being written may be in order by
//! chance, as an empty one is, and would stop what it does not name yet.

use std::hash::Hasher as _;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

pub(super) struct Watch {
    every: Option<Interval>,
    /// What was found when a change was last told of.
    told: Option<u64>,
    /// What was found by the last look.
    seen: Option<u64>,
}

impl Watch {
    /// Looks every so often; never if zero.
    pub(super) fn new(every: Duration) -> Self {
        let every = (!every.is_zero()).then(|| {
            let mut every = interval(every);
            every.set_missed_tick_behavior(MissedTickBehavior::Delay);
            every
        });
        Self { every, told: None, seen: None }
    }

    /// Waits until the files have changed since this last returned, and have come to rest. Cancel-safe.
    pub(super) async fn next(&mut self, files: impl Fn() -> Vec<PathBuf>) {
        let Some(every) = &mut self.every else { return std::future::pending().await };
        loop {
            every.tick().await;
            let now = fingerprint(&files());
            let at_rest = self.seen.replace(now) == Some(now);
            let told = *self.told.get_or_insert(now);
            if at_rest && told != now {
                self.told = Some(now);
                return;
            }
        }
    }
}

/// Of names and contents; a file that cannot be read counts as absent.
fn fingerprint(files: &[PathBuf]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    for file in files {
        hasher.write(file.as_os_str().as_encoded_bytes());
        match std::fs::read(file) {
            Ok(content) => hasher.write(&content),
            Err(_) => hasher.write_u8(0),
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_is_noticed_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pipelines.toml");
        std::fs::write(&file, "one").unwrap();
        let mut watch = Watch::new(Duration::from_secs(1));
        let files = || vec![file.clone()];
        let soon = Duration::from_secs(10);
        assert!(tokio::time::timeout(soon, watch.next(files)).await.is_err(), "nothing has changed");
        std::fs::write(&file, "two").unwrap();
        assert!(tokio::time::timeout(soon, watch.next(files)).await.is_ok());
        assert!(tokio::time::timeout(soon, watch.next(files)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_still_written_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pipelines.toml");
        std::fs::write(&file, "one").unwrap();
        let mut watch = Watch::new(Duration::from_secs(1));
        let files = || vec![file.clone()];
        let one_look = Duration::from_secs(1);
        let between_looks = Duration::from_millis(1_500);
        assert!(tokio::time::timeout(between_looks, watch.next(files)).await.is_err());
        std::fs::write(&file, "").unwrap();
        assert!(tokio::time::timeout(one_look, watch.next(files)).await.is_err(), "it was cut just now");
        std::fs::write(&file, "two").unwrap();
        let soon = Duration::from_secs(10);
        assert!(tokio::time::timeout(soon, watch.next(files)).await.is_ok());
        assert!(
            tokio::time::timeout(soon, watch.next(files)).await.is_err(),
            "the two writes are one change"
        );
    }
}
