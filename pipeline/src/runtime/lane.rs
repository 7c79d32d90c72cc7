//! One lane of a segment: takes batches through the segment's stages, in order.
//!
//! Work is a stack, deepest stage first, so a batch is through before the next one starts and stages need no
//! channel between them. A batch that a stage passes whole moves on untouched; only verdicts cost a second look.
//! Retries, dead letters and taps happen here and nowhere else.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::time::{Instant, sleep_until};

use super::bury::bury;
use super::circuit::Admit;
use super::park::{KeyHash, Park, Parked, Trials};
use super::queue::{QueueReceiver, QueueSender};
use super::settle::{Settlement, expire, settle};
use super::supervisor::Shared;
use super::wiring::{Next, Node, Segment};
use super::{Failure, Host};
use crate::ack::Disposition;
use crate::batch::{Batch, Output, Verdict, Verdicts};
use crate::error::StageError;
use crate::record::Record;

/// What all lanes of a run share.
pub(crate) struct RunContext {
    pub(crate) pipeline: Arc<str>,
    pub(crate) host: Host,
    pub(crate) shared: Arc<Shared>,
}

impl RunContext {
    /// Says that records of a stage are being retried: in `/health` always, in the log now and then.
    fn complain(&self, node: &Node, error: &StageError, records: u64) {
        self.shared.note_error(&format_args!("stage `{}`: {error}", node.name));
        if node.complaints.is_due() {
            tracing::warn!(pipeline = %self.pipeline, stage = %node.name, records, %error, "stage failed, will retry");
        }
    }
}

pub(crate) struct Lane {
    pub(super) context: Arc<RunContext>,
    segment: Arc<Segment>,
    /// Queues into the other segments, by segment and lane; empty where this segment does not lead.
    exits: Vec<Vec<QueueSender>>,
    parks: Vec<Park>,
    work: Vec<(Next, Batch)>,
}

impl Lane {
    pub(crate) fn new(context: Arc<RunContext>, segment: Arc<Segment>, exits: Vec<Vec<QueueSender>>) -> Self {
        let parks =
            segment.nodes.iter().map(|node| Park::new(&node.policy, node.metrics.parked.clone())).collect();
        Self { context, segment, exits, parks, work: Vec::new() }
    }

    /// Works until the input is closed and nothing is parked.
    pub(crate) async fn run(mut self, mut input: QueueReceiver) -> Result<(), Failure> {
        let mut open = true;
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                () = wait_until(due), if due.is_some() => self.retry_due().await?,
                batch = input.next(), if open && !self.is_full() => match batch {
                    Some(batch) => self.feed(batch).await?,
                    None => open = false,
                },
                else => return Ok(()),
            }
        }
    }

    /// Takes a batch in and everything it leads to through.
    pub(crate) async fn feed(&mut self, batch: Batch) -> Result<(), Failure> {
        let segment = Arc::clone(&self.segment);
        self.hand_on(&segment.entry, batch);
        self.drive().await
    }

    /// Gives what is due another try.
    pub(crate) async fn retry_due(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        for index in 0..self.parks.len() {
            if self.parks[index].due().is_some_and(|due| due <= now) {
                self.retry(index, now).await?;
                self.drive().await?;
            }
        }
        Ok(())
    }

    /// When a parked record has to be looked at.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.parks.iter().filter_map(Park::due).min()
    }

    /// Too much is parked to take more.
    pub(crate) fn is_full(&self) -> bool {
        self.parks.iter().any(Park::is_full)
    }

    async fn drive(&mut self) -> Result<(), Failure> {
        while let Some((next, batch)) = self.work.pop() {
            match next {
                Next::Fused(index) => self.attempt(index, batch).await?,
                Next::Segment(index) => self.send(index, batch).await,
            }
        }
        Ok(())
    }

    /// Gives a batch to a stage, except what has to wait behind a parked record.
    async fn attempt(&mut self, index: usize, mut batch: Batch) -> Result<(), Failure> {
        let segment = Arc::clone(&self.segment);
        let node = &segment.nodes[index];
        if !self.parks[index].is_empty() {
            batch = self.park_stuck_keys(index, batch);
        }
        if batch.is_empty() {
            return Ok(());
        }
        if let Some(rest) = split(&mut batch, node) {
            self.work.push((Next::Fused(index), rest));
        }
        if let Admit::Wait(until) = node.circuit.admit() {
            self.park_until(index, batch, until);
            return Ok(());
        }
        // The stage may change keys, and order is owed to those the records came with.
        let keys: Vec<KeyHash> =
            if node.rekeys { batch.records().map(Record::key_hash).collect() } else { Vec::new() };
        let result = self.call(node, &mut batch).await?;
        let verdicts = if result.is_ok() { batch.verdicts() } else { Verdicts::Mixed };
        if verdicts != Verdicts::Mixed {
            node.circuit.succeeded();
            if verdicts == Verdicts::SomeDropped {
                leave_out(node, &mut batch);
            }
            self.forward(index, 0, batch);
            return Ok(());
        }
        let tried = batch.into_slots().into_iter().enumerate().map(|(at, slot)| {
            let key = keys.get(at).copied().unwrap_or_else(|| slot.record.key_hash());
            (key, slot, Trials::default())
        });
        let settlement = settle(node, &mut self.parks[index], result, tried)?;
        self.conclude(index, settlement).await
    }

    /// Gives what is due at a stage another try; what has run out of time is given up first.
    async fn retry(&mut self, index: usize, now: Instant) -> Result<(), Failure> {
        let segment = Arc::clone(&self.segment);
        let node = &segment.nodes[index];
        let expired = expire(node, &mut self.parks[index], now)?;
        self.conclude(index, expired).await?;
        self.drive().await?; // work is a stack: what waited for the expired goes first
        if self.parks[index].due().is_none_or(|due| due > now) {
            return Ok(()); // all of it had expired; nobody calls, so nobody asks to
        }
        if let Admit::Wait(until) = node.circuit.admit() {
            for key in self.parks[index].due_keys(now) {
                self.parks[index].set_due(key, until);
            }
            return Ok(());
        }
        let mut batch = Batch::default();
        let mut before = Vec::new();
        for (key, acked, trials) in self.parks[index].take_due(now, &node.policy.batch) {
            batch.slots.push(acked.into_slot(Verdict::Forward));
            before.push((key, trials));
        }
        if batch.is_empty() {
            return Ok(());
        }
        let result = self.call(node, &mut batch).await?;
        let tried =
            batch.into_slots().into_iter().zip(before).map(|(slot, (key, trials))| (key, slot, trials));
        let settlement = settle(node, &mut self.parks[index], result, tried)?;
        self.conclude(index, settlement).await
    }

    async fn call(&self, node: &Node, batch: &mut Batch) -> Result<Result<(), StageError>, Failure> {
        let records = batch.len();
        node.metrics.records_in.increment(records as u64);
        node.metrics.batch_records.record(records as f64);
        let started = Instant::now();
        let called = AssertUnwindSafe(node.stage.process(batch)).catch_unwind().await;
        node.metrics.seconds.record(started.elapsed().as_secs_f64());
        called.map_err(|panic| Failure::panicked(&node.name, &*panic))
    }

    /// Hands a stage's results on: records to their outputs, the rest to their ends.
    async fn conclude(&mut self, index: usize, mut settlement: Settlement) -> Result<(), Failure> {
        let segment = Arc::clone(&self.segment);
        let node = &segment.nodes[index];
        for (output, batch) in settlement.outputs {
            self.forward(index, output, batch);
        }
        leave_out(node, &mut settlement.dropped);
        settlement.finished.resolve(Disposition::Delivered);
        if let Some((error, records)) = settlement.retrying {
            self.context.complain(node, &error, records);
        }
        if settlement.dead.is_empty() { Ok(()) } else { bury(&self.context, node, settlement.dead).await }
    }

    fn forward(&mut self, index: usize, output: Output, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        let segment = Arc::clone(&self.segment);
        let node = &segment.nodes[index];
        node.metrics.records_out.increment(batch.len() as u64);
        if node.tap.is_watched() {
            node.tap.show(&self.context.pipeline, &node.name, batch.records());
        }
        if node.answers {
            batch.reply_early();
        }
        self.hand_on(&node.next[usize::from(output)], batch);
    }

    /// Queues the batch as work for every successor; the last one gets the records themselves.
    fn hand_on(&mut self, next: &[Next], batch: Batch) {
        let Some((last, others)) = next.split_last() else {
            return batch.resolve(Disposition::Delivered);
        };
        for &other in others {
            self.work.push((other, batch.branch()));
        }
        self.work.push((*last, batch));
    }

    /// Sends a batch to the lanes of another segment by key.
    async fn send(&self, segment: usize, batch: Batch) {
        let lanes = &self.exits[segment];
        let lane_of =
            |hash: u64| usize::try_from((u128::from(hash) * lanes.len() as u128) >> 64).unwrap_or(0);
        let Some(first) = batch.slots.first().map(|slot| lane_of(slot.record.key_hash())) else { return };
        if lanes.len() == 1 || batch.records().all(|record| lane_of(record.key_hash()) == first) {
            return send_or_wait(&lanes[first], batch).await;
        }
        let parts = batch.distribute(lanes.len(), |record| lane_of(record.key_hash()));
        for (lane, part) in lanes.iter().zip(parts) {
            if !part.is_empty() {
                send_or_wait(lane, part).await;
            }
        }
    }

    fn park_stuck_keys(&mut self, index: usize, batch: Batch) -> Batch {
        let park = &mut self.parks[index];
        let mut parts = batch.distribute(2, |record| usize::from(park.holds(record.key_hash())));
        for slot in parts.pop().map(Batch::into_slots).unwrap_or_default() {
            park.push_back(slot.record.key_hash(), Parked::new(slot.into()));
        }
        parts.pop().unwrap_or_default()
    }

    fn park_until(&mut self, index: usize, batch: Batch, until: Instant) {
        let park = &mut self.parks[index];
        for slot in batch.into_slots() {
            let key = slot.record.key_hash();
            park.push_back(key, Parked::new(slot.into()));
            park.set_due(key, until);
        }
    }
}

/// A queue closes before its senders only when the lane behind it failed, and that failure ends the run: waiting
/// for it keeps the cause from being hidden by its consequence.
async fn send_or_wait(queue: &QueueSender, batch: Batch) {
    if queue.send(batch).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Ends the records that a stage dropped, leaving the others in place.
fn leave_out(node: &Node, batch: &mut Batch) {
    let mut counted = ("", 0);
    batch.resolve_where(Disposition::Dropped, |slot| {
        let Verdict::Drop(reason) = slot.verdict else { return None };
        if counted.0 != reason {
            flush(node, counted);
            counted = (reason, 0);
        }
        counted.1 += 1;
        Some(Some(reason))
    });
    flush(node, counted);
}

fn flush(node: &Node, (reason, count): (&'static str, u64)) {
    if count > 0 {
        node.metrics.dropped(reason, count);
    }
}

/// Cuts a batch to the stage's limits; what is over them.
fn split(batch: &mut Batch, node: &Node) -> Option<Batch> {
    let limits = &node.policy.batch;
    let mut keep = limits.records.get() as usize;
    if batch.len().min(keep) > 1 && batch.weight() as u64 > limits.bytes.0 {
        let mut weight = 0;
        let fits = batch.records().take_while(|record| {
            weight += record.weight() as u64;
            weight <= limits.bytes.0
        });
        keep = keep.min(fits.count().max(1));
    }
    (batch.len() > keep).then(|| batch.split_off(keep))
}

pub(crate) async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
