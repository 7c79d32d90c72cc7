//! Who answers for a record, and how.
//!
//! Every record read from a source holds an [`Ack`], a share in one slot of its read batch. A slot is resolved
//! when all its shares are: a record that was split or branched is done when every part is. A share that is
//! dropped unresolved fails its slot, so a stage that loses a record by mistake, a panic or a cancelled task
//! cannot make a source commit past it.
//!
//! One allocation serves a whole read batch and a slot is one atomic word; a handle allocated for each record
//! was rejected because it costs more than the work of a small stage.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::ledger::Progress;
use crate::payload::Payload;

/// How a record ended. Ordered by weight: a record whose parts ended differently ends as the heaviest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Disposition {
    /// Left out on purpose, with a reason.
    Dropped = 1,
    /// Reached the end of its branch.
    Delivered = 2,
    /// Kept aside, durably, with the error.
    DeadLettered = 4,
    /// Not dealt with: its source will offer it again, or has told the client so.
    Failed = 8,
}

impl Disposition {
    pub const ALL: [Self; 4] = [Self::Delivered, Self::Dropped, Self::DeadLettered, Self::Failed];

    /// The label value in metrics and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Dropped => "dropped",
            Self::DeadLettered => "dead-lettered",
            Self::Failed => "failed",
        }
    }

    /// The heaviest of the dispositions in a slot's bits.
    fn heaviest(bits: u8) -> Self {
        match bits {
            8.. => Self::Failed,
            4..8 => Self::DeadLettered,
            2..4 => Self::Delivered,
            _ => Self::Dropped,
        }
    }
}

/// What a request/response source learns about its record.
#[derive(Debug, Clone)]
pub struct Reply {
    pub disposition: Disposition,
    /// Why it was dropped, dead-lettered or failed.
    pub reason: Option<Arc<str>>,
    /// What a stage attached to the record.
    pub receipt: Option<Box<Payload>>,
}

/// Where a request/response source waits for its [`Reply`].
pub type ReplyTo = oneshot::Sender<Reply>;

/// What is known so far of one record's reply.
#[derive(Default)]
struct Answer {
    to: Option<ReplyTo>,
    /// The reason of the heaviest part so far.
    reason: Option<(Disposition, Arc<str>)>,
    receipt: Option<Box<Payload>>,
}

impl Answer {
    fn to(to: Option<ReplyTo>) -> Self {
        Self { to, ..Self::default() }
    }
}

/// Shares of unresolved parts in the low bits, dispositions of the resolved ones above.
const SHARES: u32 = (1 << DISPOSITION_SHIFT) - 1;
/// 24 bits of shares: one record may split into 16 million parts.
const DISPOSITION_SHIFT: u32 = 24;

/// The slots of one read batch.
pub(crate) struct ReadAcks {
    slots: Box<[AtomicU32]>,
    unresolved: AtomicU32,
    /// Set with the last resolution, unless a record failed.
    clean: AtomicBool,
    /// Where to read on after each record; see [`crate::stage::ReadBatch`].
    resume_at: Box<[u64]>,
    replies: Option<Mutex<Box<[Answer]>>>,
    read_at: Instant,
    progress: Arc<Progress>,
}

impl ReadAcks {
    pub(crate) fn new(
        resume_at: Vec<u64>,
        replies: Vec<Option<ReplyTo>>,
        progress: Arc<Progress>,
    ) -> Arc<Self> {
        let len = u32::try_from(resume_at.len()).expect("a read batch holds fewer than 2^32 records");
        progress.read(u64::from(len));
        Arc::new(Self {
            slots: resume_at.iter().map(|_| AtomicU32::new(1)).collect(),
            unresolved: AtomicU32::new(len),
            clean: AtomicBool::new(false),
            resume_at: resume_at.into(),
            replies: (!replies.is_empty()).then(|| Mutex::new(replies.into_iter().map(Answer::to).collect())),
            read_at: Instant::now(),
            progress,
        })
    }

    /// The handle of record `index`; each may be taken once.
    pub(crate) fn ack(self: &Arc<Self>, index: u32) -> Ack {
        Ack(Some(Share { batch: Arc::clone(self), index }))
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

    /// Notes what one part of a record has to say: the heaviest part's reason and the first receipt stand.
    fn note(
        &self,
        index: u32,
        disposition: Disposition,
        reason: Option<&str>,
        receipt: Option<Box<Payload>>,
    ) {
        let Some(replies) = &self.replies else { return };
        let answer = &mut replies.lock().unwrap_or_else(PoisonError::into_inner)[index as usize];
        let heavier = answer.reason.as_ref().is_none_or(|(before, _)| *before < disposition);
        if heavier && let Some(reason) = reason {
            answer.reason = Some((disposition, Arc::from(reason)));
        }
        if answer.receipt.is_none() {
            answer.receipt = receipt;
        }
    }

    fn reply(&self, index: u32, disposition: Disposition) {
        let Some(replies) = &self.replies else { return };
        let answer = {
            let mut all = replies.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut all[index as usize])
        };
        if let Some(to) = answer.to {
            // The client may have gone; the record's fate does not depend on it.
            // A part that was left out says nothing about a record that was delivered otherwise.
            let reason = answer.reason.filter(|(of, _)| *of == disposition).map(|(_, reason)| reason);
            let _ = to.send(Reply { disposition, reason, receipt: answer.receipt });
        }
    }

    /// Ends one part of a record; true if that resolved the record.
    fn end(
        &self,
        index: u32,
        disposition: Disposition,
        reason: Option<&str>,
        receipt: Option<Box<Payload>>,
    ) -> bool {
        if self.replies.is_none() {
            return self.give_back(index, disposition);
        }
        self.note(index, disposition, reason, receipt);
        let resolved = self.give_back(index, disposition);
        if resolved {
            self.reply(index, self.disposition(index).unwrap_or(Disposition::Failed));
        }
        resolved
    }

    fn disposition(&self, index: u32) -> Option<Disposition> {
        disposition(&self.slots[index as usize])
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

/// Records by disposition.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tally {
    pub delivered: u64,
    pub dropped: u64,
    pub dead_lettered: u64,
    pub failed: u64,
}

impl Tally {
    pub fn add(&mut self, disposition: Disposition, count: u64) {
        match disposition {
            Disposition::Delivered => self.delivered += count,
            Disposition::Dropped => self.dropped += count,
            Disposition::DeadLettered => self.dead_lettered += count,
            Disposition::Failed => self.failed += count,
        }
    }

    pub fn of(&self, disposition: Disposition) -> u64 {
        match disposition {
            Disposition::Delivered => self.delivered,
            Disposition::Dropped => self.dropped,
            Disposition::DeadLettered => self.dead_lettered,
            Disposition::Failed => self.failed,
        }
    }

    pub fn sum(&self) -> u64 {
        self.delivered + self.dropped + self.dead_lettered + self.failed
    }
}

/// A share in a source record; resolved once, failed if dropped.
pub(crate) struct Ack(Option<Share>);

struct Share {
    batch: Arc<ReadAcks>,
    index: u32,
}

impl Ack {
    /// For records nobody waits for, such as those a test builds.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Leaves a handle behind that nobody waits for.
    pub(crate) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    pub(crate) fn branch(&self) -> Self {
        Self(self.0.as_ref().map(|share| {
            share.batch.slots[share.index as usize].fetch_add(1, Ordering::AcqRel);
            Share { batch: Arc::clone(&share.batch), index: share.index }
        }))
    }

    pub(crate) fn resolve(
        mut self,
        disposition: Disposition,
        reason: Option<&str>,
        receipt: Option<Box<Payload>>,
    ) {
        if let Some(share) = self.0.take()
            && share.batch.end(share.index, disposition, reason, receipt)
        {
            share.batch.resolved(1);
        }
    }

    /// Answers the client now; the record goes on (`reply_after`).
    pub(crate) fn reply_early(&self, receipt: Option<Box<Payload>>) {
        if let Some(share) = &self.0 {
            share.batch.note(share.index, Disposition::Delivered, None, receipt);
            share.batch.reply(share.index, Disposition::Delivered);
        }
    }
}

/// Resolves many records the same way, touching each read batch's counter once a run of neighbours.
pub(crate) struct Resolver {
    disposition: Disposition,
    run: Option<(Arc<ReadAcks>, u32)>,
}

impl Resolver {
    pub(crate) fn new(disposition: Disposition) -> Self {
        Self { disposition, run: None }
    }

    pub(crate) fn resolve(&mut self, mut ack: Ack, reason: Option<&str>, receipt: Option<Box<Payload>>) {
        let Some(share) = ack.0.take() else { return };
        let done = u32::from(share.batch.end(share.index, self.disposition, reason, receipt));
        match &mut self.run {
            Some((batch, count)) if Arc::ptr_eq(batch, &share.batch) => *count += done,
            run => {
                if let Some((batch, count)) = run.replace((share.batch, done))
                    && count > 0
                {
                    batch.resolved(count);
                }
            }
        }
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        if let Some((batch, count)) = self.run.take()
            && count > 0
        {
            batch.resolved(count);
        }
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        if self.0.is_some() {
            Self(self.0.take()).resolve(
                Disposition::Failed,
                Some("the record was given up unresolved"),
                None,
            );
        }
    }
}

impl fmt::Debug for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(share) => write!(f, "Ack({})", share.index),
            None => f.write_str("Ack(none)"),
        }
    }
}

#[cfg(test)]
mod tests;
