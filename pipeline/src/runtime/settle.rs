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
use crate::batch::{Batch, Output, Slot, Verdict};
use crate::config::OnError;
use crate::error::{Class, StageError};
use crate::record::Record;

/// A record that its stage gave up on.
pub(crate) struct Dead {
    pub(crate) record: Record,
    pub(crate) error: Arc<StageError>,
    pub(crate) attempts: u32,
}

/// What a call to a stage came to, apart from what was parked.
#[derive(Default)]
pub(crate) struct Settlement {
    pub(crate) outputs: Vec<(Output, Batch)>,
    /// Every verdict in here is a drop.
    pub(crate) dropped: Batch,
    pub(crate) dead: Vec<Dead>,
    /// The first of the errors that are going to be retried, and how many there were.
    pub(crate) retrying: Option<(Arc<StageError>, u64)>,
}

impl Settlement {
    fn go_on(&mut self, output: Output, record: Record) {
        match self.outputs.iter_mut().find(|(name, _)| *name == output) {
            Some((_, batch)) => batch.push(record),
            None => self.outputs.push((output, Batch::from(vec![record]))),
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
        while let Some((record, attempts, error)) = pass.park.take_expired(key) {
            expired.insert(key);
            pass.give_up(record, attempts, &error)?;
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

    fn slot(&mut self, key: KeyHash, Slot { record, verdict }: Slot, trials: Trials) -> Result<(), Failure> {
        match verdict {
            Verdict::Fail(error) => return self.fail(key, record, trials, &error),
            Verdict::Forward => match self.failed.clone() {
                Some(error) => return self.fail(key, record, trials, &error),
                None => self.go_on(key, 0, record),
            },
            Verdict::To(output) => self.go_on(key, output, record),
            Verdict::Drop(reason) => self.drop(record, reason),
            Verdict::Hold => self.wait(key, record, trials),
            Verdict::Replace(parts) if parts.is_empty() => self.drop(record, "empty"),
            Verdict::Replace(parts) => {
                for mut part in *parts {
                    part.ack = record.ack.branch();
                    self.go_on(key, 0, part);
                }
                // Its parts answer for it now; `Dropped` weighs least, so it does not colour their outcome.
                record.ack.resolve(Disposition::Dropped, None, None);
            }
        }
        Ok(())
    }

    fn go_on(&mut self, key: KeyHash, output: Output, record: Record) {
        self.answered += 1;
        if !self.stuck.is_empty() && self.stuck.contains(&key) {
            self.returned.push((key, Parked { record, need: Need::GoOn(output) }));
        } else {
            self.settlement.go_on(output, record);
        }
    }

    fn drop(&mut self, record: Record, reason: &'static str) {
        self.answered += 1;
        self.settlement.dropped.slots.push(Slot { record, verdict: Verdict::Drop(reason) });
    }

    fn wait(&mut self, key: KeyHash, record: Record, trials: Trials) {
        self.stuck.insert(key);
        self.returned.push((key, Parked { record, need: Need::Process(trials) }));
    }

    fn fail(
        &mut self,
        key: KeyHash,
        record: Record,
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
            return self.give_up(record, trials.attempts, error);
        }
        self.settlement.retrying.get_or_insert_with(|| (Arc::clone(error), 0)).1 += 1;
        self.wait(key, record, trials);
        Ok(())
    }

    fn give_up(&mut self, record: Record, attempts: u32, error: &Arc<StageError>) -> Result<(), Failure> {
        match self.node.policy.on_error {
            OnError::Stop => return Err(Failure::new(&self.node.name, error)),
            OnError::Drop if error.class == Class::Reject => self.drop(record, "rejected"),
            OnError::Drop => self.drop(record, "retries-exhausted"),
            OnError::DeadLetter | OnError::Retry => {
                self.settlement.dead.push(Dead { record, error: Arc::clone(error), attempts });
            }
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
                for (output, record) in self.park.advance(key) {
                    self.settlement.go_on(output, record);
                }
            }
        }
        self.settlement
    }
}
