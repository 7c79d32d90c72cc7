//! From a stage's verdicts to what happens with each record.
//!
//! Pure decisions: what goes on, what ends, what is parked. The lane carries them out.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use tokio::time::Instant;

use super::Failure;
use super::park::{Need, Park, Parked, Trials};
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
    /// Why some of them have to be tried again.
    pub(crate) retrying: Option<Arc<StageError>>,
}

impl Settlement {
    fn go_on(&mut self, output: Output, record: Record) {
        match self.outputs.iter_mut().find(|(name, _)| *name == output) {
            Some((_, batch)) => batch.push(record),
            None => self.outputs.push((output, Batch::from(vec![record]))),
        }
    }
}

/// Decides about the records of a call; those that have to wait are parked.
pub(crate) fn settle(
    node: &Node,
    park: &mut Park,
    result: Result<(), StageError>,
    slots: impl Iterator<Item = (Slot, Trials)>,
) -> Result<Settlement, Failure> {
    let mut pass = Pass::new(node, park, result)?;
    for (slot, trials) in slots {
        pass.slot(slot, trials)?;
    }
    Ok(pass.finish())
}

/// One pass over records in order, remembering which keys are stuck.
struct Pass<'a> {
    node: &'a Node,
    park: &'a mut Park,
    /// What the whole call failed with.
    failed: Option<Arc<StageError>>,
    stuck: FxHashSet<u64>,
    errors: [u64; Class::ALL.len()],
    settlement: Settlement,
}

impl<'a> Pass<'a> {
    fn new(node: &'a Node, park: &'a mut Park, result: Result<(), StageError>) -> Result<Self, Failure> {
        let failed = match result {
            Ok(()) => {
                node.circuit.succeeded();
                None
            }
            Err(error) if error.class == Class::Fatal => {
                node.metrics.error(Class::Fatal, 1);
                return Err(Failure::new(&node.name, error));
            }
            Err(error) => {
                if error.class == Class::Retry {
                    node.circuit.failed();
                }
                Some(Arc::new(error))
            }
        };
        Ok(Self { failed, ..Self::over(node, park) })
    }

    fn over(node: &'a Node, park: &'a mut Park) -> Self {
        let settlement = Settlement::default();
        Self { node, park, failed: None, stuck: FxHashSet::default(), errors: [0; 3], settlement }
    }

    fn slot(&mut self, Slot { record, verdict }: Slot, trials: Trials) -> Result<(), Failure> {
        match verdict {
            Verdict::Fail(error) => return self.fail(record, trials, &error),
            Verdict::Forward => match self.failed.clone() {
                Some(error) => return self.fail(record, trials, &error),
                None => self.go_on(0, record),
            },
            Verdict::To(output) => self.go_on(output, record),
            Verdict::Drop(reason) => self.drop(record, reason),
            Verdict::Hold => self.wait(record, trials),
            Verdict::Replace(parts) if parts.is_empty() => self.drop(record, "empty"),
            Verdict::Replace(parts) => {
                for part in *parts {
                    self.go_on(0, part);
                }
                // Its parts answer for it now; `Dropped` weighs least, so it does not colour their outcome.
                record.ack.resolve(Disposition::Dropped, None, None);
            }
        }
        Ok(())
    }

    fn go_on(&mut self, output: Output, record: Record) {
        if self.is_stuck(&record) {
            self.park.push(Parked { record, need: Need::GoOn(output) });
        } else {
            self.settlement.go_on(output, record);
        }
    }

    fn drop(&mut self, record: Record, reason: &'static str) {
        self.settlement.dropped.slots.push(Slot { record, verdict: Verdict::Drop(reason) });
    }

    fn wait(&mut self, record: Record, trials: Trials) {
        self.stuck.insert(record.key_hash());
        self.park.push(Parked { record, need: Need::Process(trials) });
    }

    fn fail(&mut self, record: Record, trials: Trials, error: &Arc<StageError>) -> Result<(), Failure> {
        self.errors[error.class as usize] += 1;
        let trials = trials.failed(Arc::clone(error));
        let hopeless = match error.class {
            Class::Fatal => return Err(Failure::new(&self.node.name, error)),
            Class::Reject => self.node.policy.on_error != OnError::Retry,
            Class::Retry => self.park.is_past_deadline(&trials),
        };
        if hopeless {
            return self.give_up(record, trials.attempts, error);
        }
        self.settlement.retrying = Some(Arc::clone(error));
        self.wait(record, trials);
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

    fn is_stuck(&self, record: &Record) -> bool {
        !self.stuck.is_empty() && self.stuck.contains(&record.key_hash())
    }

    /// Ends a first try: what failed is looked at again after the back-off.
    fn finish(self) -> Settlement {
        if self.count_errors() > 0 {
            self.park.retry_later();
        }
        self.settlement
    }

    /// Ends a further try: without a failure the rest, if the round could not hold it, follows at once.
    fn finish_round(self) -> Settlement {
        if self.count_errors() > 0 {
            self.park.retry_later();
        } else {
            self.park.recovered();
            self.park.set_due(Instant::now());
        }
        self.settlement
    }

    fn count_errors(&self) -> u64 {
        for class in Class::ALL {
            let count = self.errors[class as usize];
            if count > 0 {
                self.node.metrics.error(class, count);
            }
        }
        self.errors.iter().sum()
    }
}

/// A second try of what is parked at a stage: a batch, and everything that waits with it in order.
pub(crate) struct Round {
    pub(crate) batch: Batch,
    order: VecDeque<Entry>,
}

enum Entry {
    /// The next record of the batch.
    Tried(Trials),
    Waiting(Parked),
}

impl Round {
    pub(crate) fn gather(node: &Node, park: &mut Park) -> Self {
        let limit = node.policy.batch.records.get() as usize;
        let mut batch = Batch::default();
        let mut order = VecDeque::new();
        for parked in park.take_all() {
            match parked.need {
                Need::Process(trials) if batch.len() < limit => {
                    batch.push(parked.record);
                    order.push_back(Entry::Tried(trials));
                }
                _ => order.push_back(Entry::Waiting(parked)),
            }
        }
        Self { batch, order }
    }

    pub(crate) fn settle(
        self,
        node: &Node,
        park: &mut Park,
        result: Result<(), StageError>,
    ) -> Result<Settlement, Failure> {
        let mut pass = Pass::new(node, park, result)?;
        let mut tried = self.batch.slots.into_iter();
        for entry in self.order {
            match entry {
                Entry::Tried(trials) => {
                    let slot = tried.next().expect("as many slots as entries");
                    pass.slot(slot, trials)?;
                }
                Entry::Waiting(Parked { record, need: Need::GoOn(output) }) => pass.go_on(output, record),
                Entry::Waiting(Parked { record, need: Need::Process(trials) }) => pass.wait(record, trials),
            }
        }
        Ok(pass.finish_round())
    }
}

/// Gives up on parked records whose time has run out, without calling the stage.
pub(crate) fn expire(node: &Node, park: &mut Park) -> Result<Settlement, Failure> {
    let parked = park.take_all();
    let mut pass = Pass::over(node, park);
    for Parked { record, need } in parked {
        match need {
            Need::GoOn(output) => pass.go_on(output, record),
            Need::Process(trials) if pass.park.is_past_deadline(&trials) => {
                let (_, error) = trials.failing.expect("only a failing record has a deadline");
                pass.give_up(record, trials.attempts, &error)?;
            }
            Need::Process(trials) => pass.wait(record, trials),
        }
    }
    Ok(pass.settlement)
}
