//! Leaves a dead dependency alone.
//!
//! Back-off spaces the tries of one lane; with many lanes a dead server would still be hit by all of them. The
//! circuit is shared by a stage's lanes: after enough calls have failed in a row it opens, and after a pause one
//! lane tries for all.

use std::sync::{Mutex, PoisonError};

use metrics::Gauge;
use tokio::time::Instant;

use crate::config::RetryPolicy;

pub(crate) struct Circuit {
    policy: RetryPolicy,
    state: Mutex<State>,
    open: Gauge,
}

#[derive(Default)]
struct State {
    failures_in_a_row: u32,
    open: Option<Open>,
}

struct Open {
    /// Nobody calls before then.
    until: Instant,
    /// One lane has called and knows no answer yet.
    is_probed: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admit {
    Call,
    /// Not now; ask again then.
    Wait(Instant),
}

impl Circuit {
    pub(crate) fn new(policy: RetryPolicy, open: Gauge) -> Self {
        Self { policy, state: Mutex::default(), open }
    }

    pub(crate) fn admit(&self) -> Admit {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match &mut state.open {
            None => Admit::Call,
            // What the probe finds is good for all, and most often it is soon found.
            Some(open) if now < open.until && open.is_probed => {
                Admit::Wait(open.until.min(now + self.policy.initial.0))
            }
            Some(open) if now < open.until => Admit::Wait(open.until),
            Some(open) => {
                // This caller is the probe; should it never hear anything, another takes its place.
                *open = Open { until: now + self.policy.circuit_pause.0, is_probed: true };
                Admit::Call
            }
        }
    }

    pub(crate) fn succeeded(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures_in_a_row = 0;
        if state.open.take().is_some() {
            self.open.set(0.0);
        }
    }

    /// A whole call failed for a reason that may pass.
    pub(crate) fn failed(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures_in_a_row = state.failures_in_a_row.saturating_add(1);
        if state.failures_in_a_row >= self.policy.circuit_after.get() {
            let until = Instant::now() + self.policy.circuit_pause.0;
            state.open = Some(Open { until, is_probed: false });
            self.open.set(1.0);
        }
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        // With its run it is gone, open or not.
        self.succeeded();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Span;
    use std::num::NonZeroU32;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn opens_after_failures_in_a_row_and_lets_one_probe_through() {
        let pause = Span::secs(5);
        let policy = RetryPolicy {
            circuit_after: NonZeroU32::new(2).unwrap(),
            circuit_pause: pause,
            ..RetryPolicy::default()
        };
        let circuit = Circuit::new(policy, Gauge::noop());
        circuit.failed();
        assert_eq!(circuit.admit(), Admit::Call);
        circuit.failed();
        let until = Instant::now() + pause.0;
        assert_eq!(circuit.admit(), Admit::Wait(until));
        advance(pause.0).await;
        assert_eq!(circuit.admit(), Admit::Call, "the probe");
        let soon = until + RetryPolicy::default().initial.0;
        assert_eq!(circuit.admit(), Admit::Wait(soon), "everybody else, for a moment");
        advance(pause.0).await;
        assert_eq!(circuit.admit(), Admit::Call, "another, where the first hears nothing");
        circuit.failed();
        assert_eq!(circuit.admit(), Admit::Wait(until + 2 * pause.0));
        advance(pause.0).await;
        assert_eq!(circuit.admit(), Admit::Call);
        circuit.succeeded();
        assert_eq!(circuit.admit(), Admit::Call);
    }
}
