//! From a stage's verdicts to what happens with each record.
//!
//! Pure decisions: what goes on, what ends, what is parked. The lane carries them out.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use tokio::time::Instant;

use super::Failure;
use super::backoff::Jitter;
use super::park::{KeyHash, Need, Park, Parked, Trials};
use super::wiring::Node;
use crate::ack::Disposition;
use crate::batch::{Acked, Batch, Output, Slot, Verdict};
use crate::config::OnError;
use crate::error::{Class, StageError};

/// A record that its stage gave up on.
pub(crate) struct Dead {
    pub(crate) acked: Acked,
    pub(crate) error: Arc<StageError>,
    pub(crate) attempts: u32,
}

/// What a call to a stage came to, apart from what was parked.
#[derive(Default)]
pub(crate) struct Settlement {
    pub(crate) outputs: Vec<(Output, Batch)>,
    /// Every verdict in here is a drop.
    pub(crate) dropped: Batch,
    /// Ended as delivered by the stage itself.
    pub(crate) finished: Batch,
    pub(crate) dead: Vec<Dead>,
    /// The first of the errors that are going to be retried, and how many there were.
    pub(crate) retrying: Option<(Arc<StageError>, u64)>,
}

impl Settlement {
    fn go_on(&mut self, output: Output, acked: Acked) {
        let slot = acked.into_slot(Verdict::Forward);
        if let Some((_, batch)) = self.outputs.iter_mut().find(|(name, _)| *name == output) {
            batch.slots.push(slot);
        } else {
            let mut batch = Batch::default();
            batch.slots.push(slot);
            self.outputs.push((output, batch));
        }
    }
}

/// A record on trial: the key it came with, what the stage said, and what was tried before.
pub(crate) type Tried = (KeyHash, Slot, Trials);

/// Decides about the records of a call; those that have to wait are parked.
pub(crate) fn settle(
    node: &Node,
    park: &mut Park,
    result: Result<(), StageError>,
    tried: impl IntoIterator<Item = Tried>,
) -> Result<Settlement, Failure> {
    let mut pass = Pass::after_call(node, park, result)?;
    let mut keys = FxHashSet::default();
    for (key, slot, trials) in tried {
        keys.insert(key);
        pass.slot(key, slot, trials)?;
    }
    pass.tell_circuit();
    Ok(pass.finish(keys))
}

/// Gives up on parked records whose time has run out, without calling the stage.
pub(crate) fn expire(node: &Node, park: &mut Park, now: Instant) -> Result<Settlement, Failure> {
    let keys = park.due_keys(now);
    let mut pass = Pass::new(node, park);
    let mut expired = FxHashSet::default();
    for key in keys {
        while let Some((acked, attempts, error)) = pass.park.take_expired(key) {
            expired.insert(key);
            pass.give_up(key, acked, attempts, &error)?;
        }
    }
    Ok(pass.finish(expired))
}

/// One pass over records in order, remembering which keys are stuck.
struct Pass<'a> {
    node: &'a Node,
    park: &'a mut Park,
    /// What the whole call failed with.
    failed: Option<Arc<StageError>>,
    stuck: FxHashSet<KeyHash>,
    /// What has to wait, in order.
    returned: Vec<(KeyHash, Parked)>,
    /// Records for which the dependency did answer, if only with a refusal.
    answered: u64,
    errors: [u64; Class::ALL.len()],
    settlement: Settlement,
}

impl<'a> Pass<'a> {
    fn new(node: &'a Node, park: &'a mut Park) -> Self {
        Self {
            node,
            park,
            failed: None,
            stuck: FxHashSet::default(),
            returned: Vec::new(),
            answered: 0,
            errors: [0; Class::ALL.len()],
            settlement: Settlement::default(),
        }
    }

    fn after_call(
        node: &'a Node,
        park: &'a mut Park,
        result: Result<(), StageError>,
    ) -> Result<Self, Failure> {
        match result {
            Err(error) if error.class == Class::Fatal => {
                node.metrics.error(Class::Fatal, 1);
                Err(Failure::new(&node.name, error))
            }
            result => Ok(Self { failed: result.err().map(Arc::new), ..Self::new(node, park) }),
        }
    }

    fn slot(&mut self, key: KeyHash, slot: Slot, trials: Trials) -> Result<(), Failure> {
        let Slot { record, ack, verdict } = slot;
        let acked = Acked { record, ack };
        match verdict {
            Verdict::Fail(error) => return self.fail(key, acked, trials, &error),
            Verdict::Forward => match self.failed.clone() {
                Some(error) => return self.fail(key, acked, trials, &error),
                None => self.go_on(key, 0, acked),
            },
            Verdict::To(output) => self.go_on(key, output, acked),
            Verdict::Drop(reason) => self.drop(acked, reason),
            Verdict::Finish => {
                self.answered += 1;
                self.settlement.finished.slots.push(acked.into_slot(Verdict::Finish));
            }
            Verdict::Hold => self.wait(key, acked, trials),
            Verdict::Replace(parts) if parts.is_empty() => self.drop(acked, "empty"),
            Verdict::Replace(parts) => {
                for (number, record) in (0..).zip(*parts) {
                    let ack = acked.ack.branch(None).into_part(number);
                    self.go_on(key, 0, Acked { record, ack });
                }
                // Its parts answer for it now; `Dropped` weighs least, so it does not colour their outcome.
                acked.ack.resolve(Disposition::Dropped, None, None);
            }
        }
        Ok(())
    }

    fn go_on(&mut self, key: KeyHash, output: Output, acked: Acked) {
        self.answered += 1;
        self.hand_on(key, output, acked);
    }

    fn hand_on(&mut self, key: KeyHash, output: Output, acked: Acked) {
        if !self.stuck.is_empty() && self.stuck.contains(&key) {
            self.returned.push((key, Parked { acked, need: Need::GoOn(output) }));
        } else {
            self.settlement.go_on(output, acked);
        }
    }

    fn drop(&mut self, acked: Acked, reason: &'static str) {
        self.answered += 1;
        self.settlement.dropped.slots.push(acked.into_slot(Verdict::Drop(reason)));
    }

    fn wait(&mut self, key: KeyHash, acked: Acked, trials: Trials) {
        self.stuck.insert(key);
        self.returned.push((key, Parked { acked, need: Need::Process(trials) }));
    }

    fn fail(
        &mut self,
        key: KeyHash,
        acked: Acked,
        trials: Trials,
        error: &Arc<StageError>,
    ) -> Result<(), Failure> {
        self.errors[error.class as usize] += 1;
        let trials = trials.failed(Arc::clone(error));
        let hopeless = match error.class {
            Class::Fatal => return Err(Failure::new(&self.node.name, error)),
            Class::Reject => {
                self.answered += 1;
                self.node.policy.on_error != OnError::Retry
            }
            Class::Retry => self.park.is_past_deadline(&trials),
        };
        if hopeless {
            return self.give_up(key, acked, trials.attempts, error);
        }
        self.settlement.retrying.get_or_insert_with(|| (Arc::clone(error), 0)).1 += 1;
        self.wait(key, acked, trials);
        Ok(())
    }

    fn give_up(
        &mut self,
        key: KeyHash,
        acked: Acked,
        attempts: u32,
        error: &Arc<StageError>,
    ) -> Result<(), Failure> {
        let on_error = self.node.policy.on_error;
        if on_error == OnError::Stop {
            return Err(Failure::new(&self.node.name, error));
        }
        if let Some(record) = self.node.stage.instead(&acked.record, error) {
            let ack = acked.ack.branch(None);
            self.hand_on(key, 0, Acked { record, ack });
        }
        match (on_error, error.class) {
            (OnError::Drop, Class::Reject) => self.drop(acked, "rejected"),
            (OnError::Drop, _) => self.drop(acked, "retries-exhausted"),
            _ => self.settlement.dead.push(Dead { acked, error: Arc::clone(error), attempts }),
        }
        Ok(())
    }

    /// The dependency is dead if it answered for no record at all.
    fn tell_circuit(&self) {
        if self.errors[Class::Retry as usize] > 0 && self.answered == 0 {
            self.node.circuit.failed();
        } else {
            self.node.circuit.succeeded();
        }
    }

    /// Parks what has to wait and lets go on what waited for the keys that are through.
    fn finish(mut self, keys: FxHashSet<KeyHash>) -> Settlement {
        for class in Class::ALL {
            let count = self.errors[class as usize];
            if count > 0 {
                self.node.metrics.error(class, count);
            }
        }
        self.park.give_back(self.returned);
        let jitter = Jitter::new();
        for key in keys {
            if self.stuck.contains(&key) {
                self.park.postpone(key, jitter);
            } else if self.park.holds(key) {
                for (output, acked) in self.park.advance(key) {
                    self.settlement.go_on(output, acked);
                }
            }
        }
        self.settlement
    }
}
