//! How long to wait before trying again.

use std::time::Duration;

use crate::units::Span;

/// Exponential, with jitter so that many waiters do not return at the same instant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    initial: Duration,
    max: Duration,
}

/// Beyond this the doubling is past any sensible maximum, and the shift would overflow.
const MAX_DOUBLINGS: u32 = 20;
/// A wait of nothing would be a busy loop.
const MIN_WAIT: Duration = Duration::from_millis(1);

impl Backoff {
    pub(crate) fn new(initial: Span, max: Span) -> Self {
        Self { initial: initial.0.max(MIN_WAIT), max: max.0.max(MIN_WAIT) }
    }

    /// The wait after so many failures in a row, at least one: between half and all of the doubled time.
    pub(crate) fn after(&self, failures: u32, jitter: Jitter) -> Duration {
        let doubled = self.initial.saturating_mul(1 << failures.saturating_sub(1).min(MAX_DOUBLINGS));
        doubled.min(self.max).mul_f64(jitter.0)
    }
}

/// A random factor. Waits that share one end together, so what failed in one call is tried again in one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Jitter(f64);

impl Jitter {
    pub(crate) fn new() -> Self {
        Self(rand::random_range(0.5..=1.0))
    }
}

/// A back-off that counts for itself.
#[derive(Debug, Clone)]
pub(crate) struct Retries {
    backoff: Backoff,
    failures: u32,
}

impl Retries {
    pub(crate) fn new(initial: Span, max: Span) -> Self {
        Self { backoff: Backoff::new(initial, max), failures: 0 }
    }

    /// The wait after another failure.
    pub(crate) fn next(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.after(self.failures, Jitter::new())
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum_within_the_jitter() {
        let mut retries = Retries::new(Span::millis(100), Span::secs(1));
        for expected in [100, 200, 400, 800, 1000, 1000] {
            let wait = retries.next();
            let expected = Duration::from_millis(expected);
            assert!(wait >= expected / 2 && wait <= expected, "{wait:?} for {expected:?}");
        }
        retries.reset();
        assert!(retries.next() <= Duration::from_millis(100));
    }

    #[test]
    fn neither_a_long_outage_nor_a_wait_of_nothing_breaks_it() {
        let mut retries = Retries::new(Span::secs(3600), Span::secs(7200));
        for _ in 0..100 {
            assert!(retries.next() <= Duration::from_secs(7200));
        }
        assert!(!Retries::new(Span::default(), Span::default()).next().is_zero());
    }
}
