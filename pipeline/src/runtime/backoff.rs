//! How long to wait before trying again.

use std::time::Duration;

use crate::units::Span;

/// Exponential, with jitter so that many waiters do not return at the same instant.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    initial: Duration,
    max: Duration,
    failures: u32,
}

/// Beyond this the doubling is past any sensible maximum, and the shift would overflow.
const MAX_DOUBLINGS: u32 = 20;

impl Backoff {
    pub(crate) fn new(initial: Span, max: Span) -> Self {
        Self { initial: initial.0, max: max.0, failures: 0 }
    }

    /// The wait after another failure: between half and all of the doubled time.
    pub(crate) fn next(&mut self) -> Duration {
        let doubled = self.initial.saturating_mul(1 << self.failures.min(MAX_DOUBLINGS));
        self.failures = self.failures.saturating_add(1);
        doubled.min(self.max).mul_f64(rand::random_range(0.5..=1.0))
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
        let mut backoff = Backoff::new(Span::millis(100), Span::secs(1));
        for expected in [100, 200, 400, 800, 1000, 1000] {
            let wait = backoff.next();
            let expected = Duration::from_millis(expected);
            assert!(wait >= expected / 2 && wait <= expected, "{wait:?} for {expected:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }

    #[test]
    fn a_long_outage_does_not_overflow() {
        let mut backoff = Backoff::new(Span::secs(3600), Span::secs(7200));
        for _ in 0..100 {
            assert!(backoff.next() <= Duration::from_secs(7200));
        }
    }
}
