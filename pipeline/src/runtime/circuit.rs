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
    closed_until: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admit {
    Call,
    /// Not now; nothing will be admitted before then.
    Wait(Instant),
}

impl Circuit {
    pub(crate) fn new(policy: RetryPolicy, open: Gauge) -> Self {
        open.set(0.0); // the last run may have ended while it was open
        Self { policy, state: Mutex::default(), open }
    }

    pub(crate) fn admit(&self) -> Admit {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match state.closed_until {
            None => Admit::Call,
            Some(until) if now < until => Admit::Wait(until),
            Some(_) => {
                // This caller is the probe; the others wait for what it finds.
                state.closed_until = Some(now + self.policy.circuit_pause.0);
                Admit::Call
            }
        }
    }

    pub(crate) fn succeeded(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures_in_a_row = 0;
        if state.closed_until.take().is_some() {
            self.open.set(0.0);
        }
    }

    /// A whole call failed for a reason that may pass.
    pub(crate) fn failed(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failures_in_a_row = state.failures_in_a_row.saturating_add(1);
        if state.failures_in_a_row >= self.policy.circuit_after.get() {
            state.closed_until = Some(Instant::now() + self.policy.circuit_pause.0);
            self.open.set(1.0);
        }
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
        assert_eq!(circuit.admit(), Admit::Wait(until + pause.0), "everybody else");
        circuit.succeeded();
        assert_eq!(circuit.admit(), Admit::Call);
    }
}
