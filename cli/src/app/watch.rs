//! Notices that the configuration's files have changed.
//!
//! By looking at their content now and then. Notifications from the kernel were rejected: editors replace files,
//! orchestrators swap symlinks, network and bind mounts stay silent, and three small files a second cost nothing.
//!
//! A change counts once two looks in a row find the same: a file that is still being written may be in order by
//! chance, as an empty one is, and would stop what it does not name yet.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

pub(super) struct Watch {
    every: Option<Interval>,
    /// What the last look found.
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
        Self { every, seen: None }
    }

    /// Waits until the files are not as they were when they were last read, and have come to rest: `look` tells how
    /// they are, `read` how they were. Cancel-safe.
    pub(super) async fn next(&mut self, read: impl Fn() -> u64, look: impl AsyncFn() -> u64) {
        let Some(every) = &mut self.every else { return std::future::pending().await };
        loop {
            every.tick().await;
            let now = look().await;
            let at_rest = self.seen.replace(now) == Some(now);
            if at_rest && now != read() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const EVERY: Duration = Duration::from_secs(1);

    /// Files, as they were read and as they are.
    struct Files {
        read: Cell<u64>,
        now: Cell<u64>,
    }

    impl Files {
        async fn change_within(&self, watch: &mut Watch, time: Duration) -> bool {
            let change = watch.next(|| self.read.get(), async || self.now.get());
            let noticed = tokio::time::timeout(time, change).await.is_ok();
            if noticed {
                self.read.set(self.now.get()); // whether or not they are in order
            }
            noticed
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_noticed_once() {
        let files = Files { read: Cell::new(1), now: Cell::new(1) };
        let mut watch = Watch::new(EVERY);
        assert!(!files.change_within(&mut watch, 10 * EVERY).await, "nothing has changed");
        files.now.set(2);
        assert!(files.change_within(&mut watch, 10 * EVERY).await);
        assert!(!files.change_within(&mut watch, 10 * EVERY).await);
        files.now.set(3);
        files.read.set(3);
        assert!(!files.change_within(&mut watch, 10 * EVERY).await, "somebody else had them read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_before_the_first_look_is_noticed() {
        let files = Files { read: Cell::new(1), now: Cell::new(2) };
        assert!(files.change_within(&mut Watch::new(EVERY), 10 * EVERY).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_still_written_is_waited_for() {
        let files = Files { read: Cell::new(1), now: Cell::new(1) };
        let mut watch = Watch::new(EVERY);
        assert!(!files.change_within(&mut watch, EVERY * 3 / 2).await);
        files.now.set(2);
        assert!(!files.change_within(&mut watch, EVERY).await, "it was cut just now");
        files.now.set(3);
        assert!(files.change_within(&mut watch, 10 * EVERY).await);
        assert!(!files.change_within(&mut watch, 10 * EVERY).await, "the two writes are one change");
    }
}
