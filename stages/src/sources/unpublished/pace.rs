//! How far the log may be read before what is stored was read as far.
//!
//! Events are remembered for a while only. Where the stream of what is stored is far behind, as after hours without a
//! reader, a log that is read to its end at once would be forgotten again before the messages come that its events are
//! about, and all of those would be published a second time.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use courant_connectors::store::ShardId;
use tokio::time::Instant;

use super::remembered::REMEMBERED;

/// How far the log is read ahead, and how far the stream may be behind without anything being done about it.
const AHEAD: Duration = Duration::from_secs(REMEMBERED.as_secs() / 2);
/// A shard that has given nothing for so long has nothing, or is not to be waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How far each shard was read: when its last change was made, and when that came.
#[derive(Default)]
pub(super) struct Pace(BTreeMap<ShardId, (SystemTime, Instant)>);

impl Pace {
    pub(super) fn came(&mut self, shard: &ShardId, made: SystemTime, now: Instant) {
        self.0.insert(shard.clone(), (made, now));
    }

    pub(super) fn forget(&mut self, shard: &ShardId) {
        self.0.remove(shard);
    }

    /// Up to when the log may be read, by the clock of what is stored; to its end if no shard is behind.
    pub(super) fn read_log_to(&self, clock: SystemTime, now: Instant) -> Option<SystemTime> {
        let behind =
            self.0.values().filter(|(_, came)| *came + PATIENCE > now).map(|(made, _)| *made + AHEAD);
        behind.filter(|to| *to < clock).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_log_waits_for_the_slowest_shard_that_still_gives() {
        let seconds = Duration::from_secs;
        let (clock, now) = (SystemTime::UNIX_EPOCH + seconds(100_000), Instant::now());
        let shard = |name: &str| ShardId(name.into());
        let mut pace = Pace::default();
        assert_eq!(pace.read_log_to(clock, now), None, "nothing is known to be behind");
        pace.came(&shard("live"), clock - seconds(2), now);
        assert_eq!(pace.read_log_to(clock, now), None);
        pace.came(&shard("slow"), clock - seconds(7200), now);
        pace.came(&shard("slower"), clock - seconds(9000), now);
        assert_eq!(pace.read_log_to(clock, now), Some(clock - seconds(9000) + AHEAD));
        pace.forget(&shard("slower"));
        assert_eq!(pace.read_log_to(clock, now), Some(clock - seconds(7200) + AHEAD));
        assert_eq!(pace.read_log_to(clock, now + PATIENCE), None, "it is quiet, and was never behind");
        pace.came(&shard("slow"), clock - seconds(1), now);
        assert_eq!(pace.read_log_to(clock, now), None, "it has caught up");
    }
}
