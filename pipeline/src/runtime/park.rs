//! Records of one lane that wait at a stage: for a retry, or behind a record of their key that does.
//!
//! Parking instead of blocking keeps a failing key from holding up the others. Order within a key holds because
//! whatever arrives for a parked key is parked behind it, and a record that got through while an earlier one of
//! its key did not waits here until that one has.

use std::collections::VecDeque;
use std::sync::Arc;

use metrics::Gauge;
use rustc_hash::{FxBuildHasher, FxHashMap};
use tokio::time::Instant;

use super::backoff::Backoff;
use crate::batch::Output;
use crate::config::{OnError, Policy};
use crate::error::StageError;
use crate::record::Record;
use crate::units::Span;

/// What a lane may hold back at one stage before it stops taking more: a few full batches.
const PARK_RECORDS: usize = 4096;

/// A record that waits.
pub(crate) struct Parked {
    pub(crate) record: Record,
    pub(crate) need: Need,
}

pub(crate) enum Need {
    /// To be given to the stage, again or for the first time.
    Process(Trials),
    /// Is through this stage; goes on when its predecessors have.
    GoOn(Output),
}

/// What has been tried with a record at this stage.
#[derive(Clone, Default)]
pub(crate) struct Trials {
    pub(crate) attempts: u32,
    /// The first failure and the last error, unless it only waits behind another.
    pub(crate) failing: Option<(Instant, Arc<StageError>)>,
}

impl Trials {
    #[must_use]
    pub(crate) fn failed(mut self, error: Arc<StageError>) -> Self {
        let since = self.failing.map_or_else(Instant::now, |(since, _)| since);
        self.attempts = self.attempts.saturating_add(1);
        self.failing = Some((since, error));
        self
    }
}

pub(crate) struct Park {
    waiting: VecDeque<Parked>,
    keys: FxHashMap<u64, usize>,
    backoff: Backoff,
    deadline: Option<Span>,
    due: Option<Instant>,
    depth: Gauge,
}

impl Park {
    pub(crate) fn new(policy: &Policy, depth: Gauge) -> Self {
        // Whoever says `retry` never gives up.
        let deadline = policy.retry.deadline.filter(|_| policy.on_error != OnError::Retry);
        Self {
            waiting: VecDeque::new(),
            keys: FxHashMap::with_hasher(FxBuildHasher),
            backoff: Backoff::new(policy.retry.initial, policy.retry.max),
            deadline,
            due: None,
            depth,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= PARK_RECORDS
    }

    pub(crate) fn holds_key_of(&self, record: &Record) -> bool {
        self.keys.contains_key(&record.key_hash())
    }

    pub(crate) fn push(&mut self, parked: Parked) {
        *self.keys.entry(parked.record.key_hash()).or_default() += 1;
        self.waiting.push_back(parked);
        self.depth.increment(1.0);
    }

    /// Takes everything out, in order; what still has to wait is pushed back.
    pub(crate) fn take_all(&mut self) -> VecDeque<Parked> {
        self.depth.decrement(self.waiting.len() as f64);
        self.keys.clear();
        self.due = None;
        std::mem::take(&mut self.waiting)
    }

    /// When something here has to be looked at.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// After a failure: look again when the back-off is over, or a record's time is up.
    pub(crate) fn retry_later(&mut self) {
        if self.due.is_none() {
            let after = Instant::now() + self.backoff.next();
            self.set_due(after);
        }
    }

    /// Look again at `at` for a reason of its own: the circuit's, or at once because there was no failure.
    pub(crate) fn set_due(&mut self, at: Instant) {
        self.due =
            (!self.waiting.is_empty()).then(|| self.earliest_deadline().map_or(at, |dies| at.min(dies)));
    }

    pub(crate) fn recovered(&mut self) {
        self.backoff.reset();
    }

    /// Whether a record's retries have run out.
    pub(crate) fn is_past_deadline(&self, trials: &Trials) -> bool {
        match (&trials.failing, self.deadline) {
            (Some((since, _)), Some(deadline)) => Instant::now() >= *since + deadline.0,
            _ => false,
        }
    }

    fn earliest_deadline(&self) -> Option<Instant> {
        let deadline = self.deadline?.0;
        let failing_since = |parked: &Parked| match &parked.need {
            Need::Process(trials) => trials.failing.as_ref().map(|(since, _)| *since),
            Need::GoOn(_) => None,
        };
        self.waiting.iter().filter_map(failing_since).min().map(|since| since + deadline)
    }
}

impl Drop for Park {
    fn drop(&mut self) {
        self.depth.decrement(self.waiting.len() as f64);
    }
}
