//! Who answers for a record, and how.
//!
//! Every record read from a source holds an [`Ack`], a share in one slot of its read batch. A slot is resolved
//! when all its shares are: a record that was split or branched is done when every part is. A share that is
//! dropped unresolved fails its slot, so a stage that loses a record by mistake, a panic or a cancelled task
//! cannot make a source commit past it.
//!
//! One allocation serves a whole read batch and a slot is one atomic word. While records stay together their batch
//! holds the reference and each record only the number of its slot; a handle allocated for each record
//! costs more than the work of a small stage.

mod disposition;
mod reply;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::time::Instant;

pub use disposition::{Disposition, Tally};
use reply::Replies;
pub use reply::{Reply, ReplyTo};

use crate::ledger::Progress;
use crate::payload::Payload;
use crate::stage::Partition;

/// Shares of unresolved parts in the low bits, dispositions of the resolved ones above.
const SHARES: u32 = (1 << DISPOSITION_SHIFT) - 1;
/// 24 bits of shares: one record may split into 16 million parts.
const DISPOSITION_SHIFT: u32 = 24;

/// Where a record was read, for stages that keep how far they have come beside what they made of it.
///
/// A record that is read again has the same origin, `settled` apart: it is the same record if source, partition,
/// position and part are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// What is read, as [`Source::origin`](crate::Source::origin) calls it.
    pub source: &'a str,
    pub partition: &'a Partition,
    /// Where reading goes on after the record.
    pub resume_at: u64,
    /// Which of the records that stages made of the one that was read; zero for that one itself.
    pub part: u32,
    /// When it was read, everything of the partition up to here had come to an end other than failure. Whatever is read
    /// of that again was dealt with before; what is further may come in any order, since keys wait apart.
    pub settled: Option<u64>,
}

/// Where the records of a read batch come from.
pub(crate) struct Place {
    pub(crate) source: Arc<str>,
    pub(crate) partition: Partition,
    pub(crate) settled: Option<u64>,
    /// Whether positions mean the same when they are read again; what has none that last has no origin.
    pub(crate) positions_last: bool,
}

/// Where nothing was read before.
impl From<Partition> for Place {
    fn from(partition: Partition) -> Self {
        Self { source: Arc::from(""), partition, settled: None, positions_last: true }
    }
}

/// The slots of one read batch.
pub(crate) struct ReadAcks {
    place: Place,
    slots: Box<[AtomicU32]>,
    unresolved: AtomicU32,
    /// Set with the last resolution, unless a record failed.
    clean: AtomicBool,
    /// Where to read on after each record; see [`crate::stage::ReadBatch`].
    resume_at: Box<[u64]>,
    /// None if the source waits for no answers.
    replies: Option<Replies>,
    read_at: Instant,
    progress: Arc<Progress>,
}

impl ReadAcks {
    pub(crate) fn new(
        place: impl Into<Place>,
        resume_at: Vec<u64>,
        replies: Vec<Option<ReplyTo>>,
        progress: Arc<Progress>,
    ) -> Arc<Self> {
        let len = u32::try_from(resume_at.len()).expect("a read batch holds fewer than 2^32 records");
        progress.read(u64::from(len));
        Arc::new(Self {
            place: place.into(),
            slots: resume_at.iter().map(|_| AtomicU32::new(1)).collect(),
            unresolved: AtomicU32::new(len),
            clean: AtomicBool::new(false),
            resume_at: resume_at.into(),
            replies: (!replies.is_empty()).then(|| Replies::to(replies)),
            read_at: Instant::now(),
            progress,
        })
    }

    /// The handle of record `index`; each may be taken once.
    #[cfg(test)]
    pub(crate) fn ack(self: &Arc<Self>, index: u32) -> Ack {
        Ack { share: Some(Arc::clone(self)), index, part: 0 }
    }

    /// One more part of record `index` to wait for.
    pub(crate) fn add_share(&self, index: u32) {
        self.slots[index as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// Where reading may resume: past the leading records that are resolved and not failed.
    pub(crate) fn settled(&self) -> Settled {
        if self.clean.load(Ordering::Acquire) {
            return Settled::Whole(self.resume_at.last().copied());
        }
        let settled =
            self.slots.iter().take_while(|slot| disposition(slot).is_some_and(|d| d != Disposition::Failed));
        Settled::Part(settled.count().checked_sub(1).map(|last| self.resume_at[last]))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    fn origin(&self, index: u32, part: u32) -> Option<Origin<'_>> {
        let Place { source, partition, settled, positions_last } = &self.place;
        let resume_at = self.resume_at[index as usize];
        positions_last.then_some(Origin { source, partition, resume_at, part, settled: *settled })
    }

    /// Ends one part of a record; true if that resolved the record.
    fn end(
        &self,
        index: u32,
        disposition: Disposition,
        reason: Option<&str>,
        receipt: Option<Box<Payload>>,
    ) -> bool {
        let Some(replies) = &self.replies else { return self.give_back(index, disposition) };
        replies.note(index, disposition, reason, receipt);
        let resolved = self.give_back(index, disposition);
        if resolved {
            let ended_as = self::disposition(&self.slots[index as usize]);
            replies.send(index, ended_as.unwrap_or(Disposition::Failed));
        }
        resolved
    }

    /// Gives back one share of a slot; true if that resolved it.
    fn give_back(&self, index: u32, disposition: Disposition) -> bool {
        let slot = &self.slots[index as usize];
        let bit = (disposition as u32) << DISPOSITION_SHIFT;
        // The last share of an unsplit record, nearly all of them, needs no read-modify-write.
        if slot.load(Ordering::Acquire) == 1 {
            slot.store(bit, Ordering::Release);
            return true;
        }
        slot.fetch_or(bit, Ordering::AcqRel);
        let before = slot.fetch_sub(1, Ordering::AcqRel);
        before & SHARES == 1
    }

    fn resolved(&self, count: u32) {
        if self.unresolved.fetch_sub(count, Ordering::AcqRel) == count {
            let mut tally = Tally::default();
            for slot in &self.slots {
                if let Some(disposition) = disposition(slot) {
                    tally.add(disposition, 1);
                }
            }
            self.clean.store(tally.failed == 0, Ordering::Release);
            self.progress.resolved(&tally, self.read_at.elapsed());
        }
    }
}

fn disposition(slot: &AtomicU32) -> Option<Disposition> {
    let word = slot.load(Ordering::Acquire);
    (word & SHARES == 0).then(|| Disposition::heaviest((word >> DISPOSITION_SHIFT) as u8))
}

/// How far a read batch is settled, and where reading may resume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Whole(Option<u64>),
    Part(Option<u64>),
}

/// What answers for a record on its way; resolved once, failed if dropped. Two words wide, as every slot has one.
///
/// Most records stay together from source to sink. Such a record has a *seat*: its slot's number, in the read batch
/// that its [`Batch`](crate::Batch) stands for, so that a whole batch needs one reference and not one each. A record
/// that leaves its batch gets a *share* of its own.
pub(crate) struct Ack {
    /// Where the share is; none for a seat.
    share: Option<Arc<ReadAcks>>,
    /// [`NOBODY`] if nobody waits for the record, such as one that a test builds.
    index: u32,
    /// See [`Origin::part`]; stands where there would be padding.
    part: u32,
}

const NOBODY: u32 = u32::MAX;

impl Default for Ack {
    fn default() -> Self {
        Self { share: None, index: NOBODY, part: 0 }
    }
}

impl Ack {
    pub(crate) fn seat(index: u32) -> Self {
        Self { share: None, index, part: 0 }
    }

    /// Leaves a handle behind that nobody waits for.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    fn is_seat(&self) -> bool {
        self.share.is_none() && self.index != NOBODY
    }

    /// Makes a seat a share of its own, so that the record can leave its batch.
    pub(crate) fn own(&mut self, acks: &Arc<ReadAcks>) {
        if self.is_seat() {
            self.share = Some(Arc::clone(acks));
        }
    }

    /// Another share, or another seat, in the same record.
    pub(crate) fn branch(&self, acks: Option<&Arc<ReadAcks>>) -> Self {
        if let Some(batch) = self.batch(acks) {
            batch.add_share(self.index);
        }
        Self { share: self.share.clone(), index: self.index, part: self.part }
    }

    /// Says which of the records made of its record this one is for. A stage that makes the same records again numbers
    /// them the same; parts of parts are spread by the golden ratio, so that thousands of thousands get numbers of
    /// their own.
    #[must_use]
    pub(crate) fn into_part(mut self, number: u32) -> Self {
        self.part = self.part.wrapping_mul(0x9E37_79B1).wrapping_add(number);
        self
    }

    /// Where its record was read; nowhere if nobody waits for it, or its source cannot tell.
    pub(crate) fn origin<'a>(&'a self, acks: Option<&'a Arc<ReadAcks>>) -> Option<Origin<'a>> {
        self.batch(acks).and_then(|batch| batch.origin(self.index, self.part))
    }

    /// The read batch it is in, given the one its batch stands for.
    fn batch<'a>(&'a self, acks: Option<&'a Arc<ReadAcks>>) -> Option<&'a Arc<ReadAcks>> {
        self.share.as_ref().or(acks).filter(|_| self.index != NOBODY)
    }

    /// Ends a record that is out of its batch.
    pub(crate) fn resolve(
        mut self,
        disposition: Disposition,
        reason: Option<&str>,
        receipt: Option<Box<Payload>>,
    ) {
        debug_assert!(!self.is_seat(), "a seat is resolved by its batch");
        self.end(disposition, reason, receipt);
    }

    fn end(&mut self, disposition: Disposition, reason: Option<&str>, receipt: Option<Box<Payload>>) {
        if let Some(batch) = self.share.take()
            && batch.end(self.index, disposition, reason, receipt)
        {
            batch.resolved(1);
        }
    }

    /// Answers the client now; the record goes on (`reply_after`).
    pub(crate) fn reply_early(&self, acks: Option<&Arc<ReadAcks>>, receipt: Option<Box<Payload>>) {
        if let Some(replies) = self.batch(acks).and_then(|batch| batch.replies.as_ref()) {
            replies.note(self.index, Disposition::Delivered, None, receipt);
            replies.send(self.index, Disposition::Delivered);
        }
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        self.end(Disposition::Failed, Some(GIVEN_UP), None);
    }
}

/// What the client of a record hears that nobody resolved.
const GIVEN_UP: &str = "the record was given up unresolved";

impl fmt::Debug for ReadAcks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadAcks({} of {} unresolved)", self.unresolved.load(Ordering::Relaxed), self.slots.len())
    }
}

impl fmt::Debug for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            NOBODY => f.write_str("Ack(nobody)"),
            index => write!(f, "Ack({index})"),
        }
    }
}

/// Resolves the records of a batch the same way, touching the read batch's counter once for all its seats.
pub(crate) struct Resolver<'a> {
    disposition: Disposition,
    acks: Option<&'a Arc<ReadAcks>>,
    seats: u32,
}

impl<'a> Resolver<'a> {
    pub(crate) fn new(disposition: Disposition, acks: Option<&'a Arc<ReadAcks>>) -> Self {
        Self { disposition, acks, seats: 0 }
    }

    pub(crate) fn resolve(&mut self, ack: &mut Ack, reason: Option<&str>, receipt: Option<Box<Payload>>) {
        let mut ack = ack.take();
        match self.acks {
            Some(acks) if ack.is_seat() => {
                self.seats += u32::from(acks.end(ack.index, self.disposition, reason, receipt));
            }
            _ => ack.end(self.disposition, reason, receipt),
        }
    }
}

impl Drop for Resolver<'_> {
    fn drop(&mut self) {
        if let Some(acks) = self.acks
            && self.seats > 0
        {
            acks.resolved(self.seats);
        }
    }
}

#[cfg(test)]
mod tests;
