//! How long records take at the moment, for whoever should not make it worse.
//!
//! A histogram tells how it was since the process started; this tells how it is now: the slowest read batch of the last
//! seconds, or for how long nothing has ended although something is under way.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What counts as now is between one and two of these.
const SPAN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Latency(Mutex<Spans>);

#[derive(Default)]
struct Spans {
    /// When the present span began.
    since: Option<Instant>,
    /// The slowest of the present span, and of the one before it.
    present: Duration,
    before: Duration,
    under_way: u64,
    /// When records were last ended, or came to where none were.
    waits_since: Option<Instant>,
}

impl Spans {
    fn turn(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let spans = now.saturating_duration_since(since).as_millis() / SPAN.as_millis();
        match spans {
            0 => return,
            1 => self.before = self.present,
            _ => self.before = Duration::ZERO,
        }
        (self.since, self.present) = (Some(now), Duration::ZERO);
    }
}

impl Latency {
    fn spans(&self) -> MutexGuard<'_, Spans> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self, records: u64) {
        let mut spans = self.spans();
        if spans.under_way == 0 {
            spans.waits_since = Some(Instant::now());
        }
        spans.under_way += records;
    }

    pub(crate) fn ended(&self, records: u64, took: Duration) {
        let now = Instant::now();
        let mut spans = self.spans();
        spans.turn(now);
        spans.present = spans.present.max(took);
        spans.under_way = spans.under_way.saturating_sub(records);
        spans.waits_since = (spans.under_way > 0).then_some(now);
    }

    pub(crate) fn now(&self) -> Duration {
        let now = Instant::now();
        let mut spans = self.spans();
        spans.turn(now);
        let waits = spans.waits_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        spans.present.max(spans.before).max(waits)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn it_is_the_slowest_of_late_and_then_forgotten() {
        let latency = Latency::default();
        assert_eq!(latency.now(), Duration::ZERO);
        for took in [5, 30, 7] {
            latency.read(1);
            latency.ended(1, took * MILLI);
        }
        assert_eq!(latency.now(), 30 * MILLI);
        advance(1100 * MILLI).await;
        latency.ended(0, 10 * MILLI);
        assert_eq!(latency.now(), 30 * MILLI, "that was a second ago");
        advance(1100 * MILLI).await;
        assert_eq!(latency.now(), 10 * MILLI);
        advance(5000 * MILLI).await;
        assert_eq!(latency.now(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_is_slow_as_well() {
        let latency = Latency::default();
        advance(9000 * MILLI).await;
        latency.read(2);
        advance(400 * MILLI).await;
        assert_eq!(latency.now(), 400 * MILLI);
        latency.ended(1, 400 * MILLI);
        advance(3000 * MILLI).await;
        assert_eq!(latency.now(), 3000 * MILLI, "one is left");
        latency.ended(1, 10 * MILLI);
        advance(2000 * MILLI).await;
        assert_eq!(latency.now(), Duration::ZERO);
    }
}
