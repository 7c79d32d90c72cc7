//! What a process has left of somebody's limit.

use std::time::Duration;

use courant_connectors::live::Count;
use tokio::time::Instant;

/// A portion that was counted already and can be handed out.
#[derive(Default)]
pub(super) struct Lease {
    left: u32,
    /// When the window ends in which it was counted. Never begun if none.
    ends: Option<Instant>,
    /// There is nothing more to lease before the window ends.
    is_last: bool,
    /// What this process counts while live state is down.
    pub(super) alone: Window,
}

/// A window of time that this process counts in alone.
#[derive(Default)]
pub(super) struct Window {
    value: u64,
    ends: Option<Instant>,
}

impl Lease {
    /// One of the portion, or how long to wait for the next window; `None` if another portion is to be leased.
    pub(super) fn take(&mut self, now: Instant) -> Option<Result<(), Duration>> {
        let ends = self.ends.filter(|ends| now < *ends)?;
        if self.left > 0 {
            self.left -= 1;
            return Some(Ok(()));
        }
        self.is_last.then(|| Err(ends - now))
    }

    /// Takes one of a new portion, as much of which is good as fits the limit.
    pub(super) fn grant(
        &mut self,
        portion: u32,
        limit: u32,
        count: Count,
        now: Instant,
    ) -> Result<(), Duration> {
        let before = count.value.saturating_sub(portion.into());
        let room = u64::from(limit).saturating_sub(before).min(portion.into());
        self.left = u32::try_from(room).unwrap_or(portion);
        self.is_last = self.left < portion;
        self.ends = Some(now + count.resets_in);
        self.take(now).unwrap_or(Err(count.resets_in))
    }

    pub(super) fn has_ended(&self, now: Instant) -> bool {
        let over = |ends: Option<Instant>| ends.is_none_or(|ends| ends <= now);
        over(self.ends) && over(self.alone.ends)
    }
}

impl Window {
    pub(super) fn count(&mut self, by: u32, per: Duration, now: Instant) -> Count {
        let ends = match self.ends {
            Some(ends) if now < ends => ends,
            _ => {
                self.value = 0;
                now + per
            }
        };
        self.ends = Some(ends);
        self.value += u64::from(by);
        Count { value: self.value, resets_in: ends - now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn part_of_a_portion_is_good_at_the_end() {
        let (now, mut lease) = (Instant::now(), Lease::default());
        // 57 were counted before these 6; 3 of them fit 60
        let count = Count { value: 63, resets_in: WINDOW };
        assert_eq!(lease.grant(6, 60, count, now), Ok(()));
        assert_eq!(lease.take(now), Some(Ok(())));
        assert_eq!(lease.take(now), Some(Ok(())));
        assert_eq!(lease.take(now), Some(Err(WINDOW)), "the last portion was not whole");
        assert_eq!(lease.take(now + WINDOW), None, "a new window is asked for");
        assert!(lease.has_ended(now + WINDOW) && !lease.has_ended(now));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_whole_portion_is_not_known_to_be_the_last() {
        let (now, mut lease) = (Instant::now(), Lease::default());
        assert_eq!(lease.grant(1, 5, Count { value: 5, resets_in: WINDOW }, now), Ok(()));
        assert_eq!(lease.take(now), None);
        assert_eq!(lease.grant(1, 5, Count { value: 6, resets_in: WINDOW }, now), Err(WINDOW));
        assert_eq!(lease.take(now), Some(Err(WINDOW)), "nobody is asked again");
    }
}
