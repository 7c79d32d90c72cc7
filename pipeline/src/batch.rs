//! Records a stage works on together, and what the stage decides about each.
//!
//! A stage gets the batch by reference and changes it in place: records it leaves alone go on, the others get a
//! verdict. It cannot lose one, because the runtime still owns the batch when the stage returns, fails or
//! panics. A batch that passes whole moves on without a copy.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::ack::{Ack, Disposition, Origin, ReadAcks, Resolver};
use crate::error::{Class, StageError};
use crate::payload::Payload;
use crate::record::Record;

/// Which of a stage's named outputs a record leaves by; 0 is the only one of most stages.
pub type Output = u16;

/// What becomes of a record after a stage.
#[derive(Debug, Default)]
pub(crate) enum Verdict {
    #[default]
    Forward,
    To(Output),
    Drop(&'static str),
    /// All there was to do with it is done.
    Finish,
    #[allow(clippy::box_collection, reason = "keeps the verdict, and so every slot, two words wide")]
    Replace(Box<Vec<Record>>),
    Fail(Arc<StageError>),
    /// Not attempted, because an earlier record of its key failed in this call.
    Hold,
}

/// What a stage decided about a record, for those who look at a batch from outside, such as a stage's tests.
#[derive(Debug, Clone, Copy)]
pub enum Fate<'a> {
    Forward,
    To(Output),
    Dropped(&'static str),
    Finished,
    Replaced(&'a [Record]),
    Failed(&'a StageError),
    Held,
}

/// What the verdicts of a batch have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdicts {
    AllForward,
    /// Every record either goes on by the only output or ends here.
    SomeDropped,
    Mixed,
}

/// A record and its verdict.
#[derive(Debug)]
pub struct Slot {
    pub(crate) record: Record,
    pub(crate) ack: Ack,
    pub(crate) verdict: Verdict,
}

impl Slot {
    pub fn record(&self) -> &Record {
        &self.record
    }

    pub fn record_mut(&mut self) -> &mut Record {
        &mut self.record
    }

    /// Sends the record out by a named output instead of the first.
    pub fn send_to(&mut self, output: Output) {
        self.verdict = Verdict::To(output);
    }

    /// Ends the record here; `reason` is a metric label, so keep to a few fixed words.
    pub fn drop_as(&mut self, reason: &'static str) {
        self.verdict = Verdict::Drop(reason);
    }

    /// Ends the record here as delivered, whatever stages come after: there is nothing left to do with it, such as with
    /// a command that makes no event.
    pub fn finish(&mut self) {
        self.verdict = Verdict::Finish;
    }

    /// Puts any number of records in its place, such as those made with [`Record::derive`]; none at all drops it as
    /// `empty`. Its source learns of its end when all of them have ended.
    pub fn replace(&mut self, records: Vec<Record>) {
        self.verdict = Verdict::Replace(Box::new(records));
    }

    /// Replaces the payload by any number of payloads, keeping key and headers.
    pub fn replace_payloads(&mut self, mut payloads: Vec<Payload>) {
        match payloads.len() {
            1 => self.record.payload = payloads.swap_remove(0),
            _ => self.replace(payloads.into_iter().map(|payload| self.record.derive(payload)).collect()),
        }
    }

    /// The record could not be processed; the error's class and the stage's `on_error` decide what follows.
    pub fn fail(&mut self, error: impl Into<Arc<StageError>>) {
        self.verdict = Verdict::Fail(error.into());
    }

    /// The record was not attempted, because an earlier record of its key failed in this call with a
    /// retryable error. It is offered again together with that record.
    pub fn hold(&mut self) {
        self.verdict = Verdict::Hold;
    }

    pub fn fate(&self) -> Fate<'_> {
        match &self.verdict {
            Verdict::Forward => Fate::Forward,
            Verdict::To(output) => Fate::To(*output),
            Verdict::Drop(reason) => Fate::Dropped(reason),
            Verdict::Finish => Fate::Finished,
            Verdict::Replace(records) => Fate::Replaced(records),
            Verdict::Fail(error) => Fate::Failed(error),
            Verdict::Hold => Fate::Held,
        }
    }
}

/// The records of one call to a stage, in order.
#[derive(Debug, Default)]
pub struct Batch {
    pub(crate) slots: Vec<Slot>,
    /// The read batch in which the records with a seat have theirs.
    acks: Option<Arc<ReadAcks>>,
}

impl Batch {
    pub fn with_capacity(records: usize) -> Self {
        Self { slots: Vec::with_capacity(records), acks: None }
    }

    #[inline]
    pub fn push(&mut self, record: Record) {
        self.slots.push(Slot::from(record));
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.slots.iter().map(Slot::record)
    }

    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Where each record was read; none for records that no source gave, such as those of a stage's tests.
    pub fn origins(&self) -> impl Iterator<Item = Option<Origin<'_>>> {
        self.slots.iter().map(|slot| slot.ack.origin(self.acks.as_ref()))
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Slot> {
        self.slots.iter_mut()
    }

    /// Does `work` on each record in order and records its failure, if any, as that record's verdict.
    ///
    /// After a retryable failure later records of the same key are held, which is what a stage with effects
    /// owes to the order of keys.
    pub fn each(&mut self, mut work: impl FnMut(&mut Slot) -> Result<(), StageError>) {
        let mut stuck = FxHashSet::default();
        for slot in &mut self.slots {
            let key = slot.record.key_hash();
            if !stuck.is_empty() && stuck.contains(&key) {
                slot.hold();
            } else if let Err(error) = work(slot) {
                if error.class == Class::Retry {
                    stuck.insert(key);
                }
                slot.fail(error);
            }
        }
    }

    /// What the verdicts have in common, for the short cuts.
    pub(crate) fn verdicts(&self) -> Verdicts {
        let mut seen = Verdicts::AllForward;
        for slot in &self.slots {
            match slot.verdict {
                Verdict::Forward => {}
                Verdict::Drop(_) => seen = Verdicts::SomeDropped,
                _ => return Verdicts::Mixed,
            }
        }
        seen
    }

    pub(crate) fn weight(&self) -> usize {
        self.records().map(Record::weight).sum()
    }
}

impl From<Vec<Record>> for Batch {
    fn from(records: Vec<Record>) -> Self {
        records.into_iter().collect()
    }
}

/// A record out of its batch, with what answers for it.
#[derive(Debug)]
pub(crate) struct Acked {
    pub(crate) record: Record,
    pub(crate) ack: Ack,
}

impl Acked {
    pub(crate) fn into_slot(self, verdict: Verdict) -> Slot {
        Slot { record: self.record, ack: self.ack, verdict }
    }
}

impl From<Slot> for Acked {
    fn from(slot: Slot) -> Self {
        Self { record: slot.record, ack: slot.ack }
    }
}

impl From<Record> for Slot {
    fn from(record: Record) -> Self {
        Self { record, ack: Ack::default(), verdict: Verdict::Forward }
    }
}

impl FromIterator<Record> for Batch {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> Self {
        Self { slots: records.into_iter().map(Slot::from).collect(), acks: None }
    }
}

/// How records keep their acks while the runtime moves them about.
impl Batch {
    /// Gives every record its seat in the read batch it came in.
    pub(crate) fn take_seats(&mut self, acks: Arc<ReadAcks>) {
        for (index, slot) in (0u32..).zip(&mut self.slots) {
            slot.ack = Ack::seat(index);
        }
        self.acks = Some(acks);
    }

    /// The records, each with an ack of its own.
    pub(crate) fn into_slots(mut self) -> Vec<Slot> {
        self.own_all();
        std::mem::take(&mut self.slots)
    }

    fn own_all(&mut self) {
        if let Some(acks) = self.acks.take() {
            self.slots.iter_mut().for_each(|slot| slot.ack.own(&acks));
        }
    }

    /// Distributes the records over `parts` batches, in order.
    pub(crate) fn distribute(mut self, parts: usize, part_of: impl Fn(&Record) -> usize) -> Vec<Self> {
        let mut split: Vec<Self> =
            (0..parts).map(|_| Self { slots: Vec::new(), acks: self.acks.clone() }).collect();
        for slot in std::mem::take(&mut self.slots) {
            split[part_of(&slot.record)].slots.push(slot);
        }
        split
    }

    /// Cuts the batch off after `keep` records; the rest.
    pub(crate) fn split_off(&mut self, keep: usize) -> Self {
        Self { slots: self.slots.split_off(keep), acks: self.acks.clone() }
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        let same = match (&self.acks, &other.acks) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (one, two) => one.is_none() && two.is_none(),
        };
        if !same {
            self.own_all();
            other.own_all();
        }
        self.slots.append(&mut other.slots);
    }

    /// A copy for another branch, answered for by the same source records.
    pub(crate) fn branch(&self) -> Self {
        let copy = |slot: &Slot| Slot {
            record: slot.record.clone(),
            ack: slot.ack.branch(self.acks.as_ref()),
            verdict: Verdict::Forward,
        };
        Self { slots: self.slots.iter().map(copy).collect(), acks: self.acks.clone() }
    }

    /// Ends every record the same way.
    pub(crate) fn resolve(mut self, disposition: Disposition) {
        self.resolve_where(disposition, |_| Some(None));
    }

    /// Ends the records for which `reason` says so, leaving the others in place.
    pub(crate) fn resolve_where<'r>(
        &mut self,
        disposition: Disposition,
        mut reason: impl FnMut(&Slot) -> Option<Option<&'r str>>,
    ) {
        let mut resolver = Resolver::new(disposition, self.acks.as_ref());
        self.slots.retain_mut(|slot| {
            let Some(reason) = reason(slot) else { return true };
            resolver.resolve(&mut slot.ack, reason, slot.record.receipt.take());
            false
        });
    }

    /// Answers every record's client now; the records go on.
    pub(crate) fn reply_early(&self) {
        for slot in &self.slots {
            slot.ack.reply_early(self.acks.as_ref(), slot.record.receipt.clone());
        }
    }
}

/// Seats that were not resolved fail, as shares do by themselves.
impl Drop for Batch {
    fn drop(&mut self) {
        if self.acks.is_some() && !self.slots.is_empty() {
            self.resolve_where(Disposition::Failed, |_| Some(None));
        }
    }
}

impl<'a> IntoIterator for &'a mut Batch {
    type Item = &'a mut Slot;
    type IntoIter = std::slice::IterMut<'a, Slot>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retryable_failure_holds_the_rest_of_its_key() {
        let record = |key| Record::new(Payload::from_static("{}")).with_key(key);
        let mut batch = Batch::from(vec![record("a"), record("b"), record("a")]);
        let mut calls = 0;
        batch.each(|slot| {
            calls += 1;
            match slot.record().key.as_ref().unwrap().as_str() {
                "a" => Err(StageError::retry("test", "down")),
                _ => Ok(()),
            }
        });
        assert_eq!(calls, 2);
        assert!(matches!(batch.slots[0].verdict, Verdict::Fail(_)));
        assert!(matches!(batch.slots[1].verdict, Verdict::Forward));
        assert!(matches!(batch.slots[2].verdict, Verdict::Hold));
    }
}
