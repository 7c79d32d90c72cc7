//! How far a source may commit.
//!
//! Read batches stand in a queue per partition, in read order. A partition's position moves only over the
//! leading run of settled records: dispositions may arrive in any order, commits may not. A failed record holds
//! its partition's position until the pipeline starts again from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::ack::{ReadAcks, Settled, Tally};
use crate::latency::Latency;
use crate::metrics::SourceMetrics;
use crate::stage::{Partition, Positions};

/// What has been read and how it ended: shared by the source and every record under way.
#[derive(Default)]
pub(crate) struct Progress {
    read: AtomicU64,
    tally: Mutex<Tally>,
    moved: Notify,
    latency: Latency,
    metrics: SourceMetrics,
}

impl Progress {
    pub(crate) fn new(metrics: SourceMetrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    pub(crate) fn read(&self, count: u64) {
        self.read.fetch_add(count, Ordering::AcqRel);
        self.latency.read(count);
        self.metrics.read(count);
    }

    pub(crate) fn resolved(&self, batch: &Tally, since_read: Duration) {
        {
            let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.delivered += batch.delivered;
            tally.dropped += batch.dropped;
            tally.dead_lettered += batch.dead_lettered;
            tally.failed += batch.failed;
        }
        self.latency.ended(batch.sum(), since_read);
        self.metrics.resolved(batch, since_read);
        self.moved.notify_one();
    }

    /// Waits until a read batch has been resolved since the last call.
    pub(crate) async fn moved(&self) {
        self.moved.notified().await;
    }

    /// Publishes how far commits and reading are behind.
    pub(crate) fn behind(&self, uncommitted: usize, lag: Option<u64>) {
        self.metrics.commit_lag.set(uncommitted as f64);
        if let Some(lag) = lag {
            self.metrics.lag.set(lag as f64);
        }
    }

    pub(crate) fn records_read(&self) -> u64 {
        self.read.load(Ordering::Acquire)
    }

    /// How long records take at the moment.
    pub(crate) fn latency(&self) -> Duration {
        self.latency.now()
    }

    pub(crate) fn tally(&self) -> Tally {
        *self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The read batches that are not yet committed, by partition.
#[derive(Default)]
pub(crate) struct Ledger {
    partitions: BTreeMap<Partition, VecDeque<Arc<ReadAcks>>>,
    committed: Positions,
    outstanding: usize,
}

impl Ledger {
    pub(crate) fn push(&mut self, partition: Partition, batch: Arc<ReadAcks>) {
        self.outstanding += batch.len();
        self.partitions.entry(partition).or_default().push_back(batch);
    }

    /// Forgets a partition. If it comes back it is as if it had never been there: its positions may then be lower than
    /// before, and one that is reached again is reported again, since it may never have been committed.
    pub(crate) fn forget(&mut self, partition: &Partition) {
        let forgotten = self.partitions.remove(partition).unwrap_or_default();
        self.outstanding -= forgotten.iter().map(|batch| batch.len()).sum::<usize>();
        self.committed.remove(partition);
    }

    /// Up to where everything has ended that was read of the partition since it came; none if nothing has.
    pub(crate) fn settled(&self, partition: &Partition) -> Option<u64> {
        self.committed.get(partition).copied()
    }

    /// Records held in the queue: under way, or settled behind one that is.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes what is settled off the queues; positions that moved since the last call.
    pub(crate) fn settle(&mut self) -> Positions {
        let mut moved = Positions::new();
        for (partition, batches) in &mut self.partitions {
            let mut position = None;
            while let Some(front) = batches.front() {
                match front.settled() {
                    Settled::Whole(at) => {
                        position = at.or(position);
                        self.outstanding -= front.len();
                        batches.pop_front();
                    }
                    Settled::Part(at) => {
                        position = at.or(position);
                        break;
                    }
                }
            }
            if let Some(position) = position
                && self.committed.get(partition) != Some(&position)
            {
                self.committed.insert(partition.clone(), position);
                moved.insert(partition.clone(), position);
            }
        }
        self.partitions.retain(|_, batches| !batches.is_empty());
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ack::Disposition;
    use proptest::prelude::*;

    fn partition(name: &str) -> Partition {
        Partition::from(name)
    }

    #[test]
    fn a_later_batch_waits_for_an_earlier_one() {
        let progress = Arc::new(Progress::default());
        let mut ledger = Ledger::default();
        let one = ReadAcks::new(partition("0"), vec![10], Vec::new(), Arc::clone(&progress));
        let two = ReadAcks::new(partition("0"), vec![20], Vec::new(), Arc::clone(&progress));
        let (first, second) = (one.ack(0), two.ack(0));
        ledger.push(partition("0"), one);
        ledger.push(partition("0"), two);
        second.resolve(Disposition::Delivered, None, None);
        assert!(ledger.settle().is_empty());
        assert_eq!(ledger.outstanding(), 2);
        first.resolve(Disposition::Delivered, None, None);
        assert_eq!(ledger.settle(), Positions::from([(partition("0"), 20)]));
        assert_eq!(ledger.outstanding(), 0);
        assert!(ledger.settle().is_empty(), "a position is reported once");
    }

    /// What may happen to a partition that several readers share.
    #[derive(Debug, Clone)]
    enum Step {
        Read(usize),
        Resolve(prop::sample::Index, Disposition),
        /// Another reader gets as far as this part of what was read, and then the partition comes back.
        Away(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        let fate = prop::sample::select(Disposition::ALL.to_vec());
        prop_oneof![
            3 => (1usize..6).prop_map(Step::Read),
            6 => (any::<prop::sample::Index>(), fate).prop_map(|(at, fate)| Step::Resolve(at, fate)),
            1 => any::<prop::sample::Index>().prop_map(Step::Away),
        ]
    }

    proptest! {
        /// A partition that was away is read from wherever it is by then, and its position stands right before the
        /// first record that has not ended since it came back: what was read before it went away neither moves it
        /// nor holds it.
        #[test]
        fn a_partition_that_comes_back_begins_anew(steps in prop::collection::vec(step(), 1..60)) {
            let progress = Arc::new(Progress::default());
            let mut ledger = Ledger::default();
            let mut open: Vec<(u64, bool, crate::ack::Ack)> = Vec::new();
            let mut unsettled = std::collections::BTreeSet::new();
            let (mut next, mut committed) = (0u64, 0u64);
            for step in steps {
                match step {
                    Step::Read(count) => {
                        let end = next + count as u64;
                        let batch =
                            ReadAcks::new(partition("0"), (next + 1..=end).collect(), Vec::new(), Arc::clone(&progress));
                        for (index, at) in (0..).zip(next..end) {
                            open.push((at, true, batch.ack(index)));
                            unsettled.insert(at);
                        }
                        ledger.push(partition("0"), batch);
                        next = end;
                    }
                    Step::Resolve(pick, fate) if !open.is_empty() => {
                        let (at, is_current, ack) = open.swap_remove(pick.index(open.len()));
                        ack.resolve(fate, None, None);
                        if is_current && fate != Disposition::Failed {
                            unsettled.remove(&at);
                        }
                    }
                    Step::Resolve(..) => {}
                    Step::Away(resume) => {
                        ledger.forget(&partition("0"));
                        for (_, is_current, _) in &mut open {
                            *is_current = false;
                        }
                        unsettled.clear();
                        next = resume.index(usize::try_from(next).unwrap() + 1) as u64;
                        committed = next;
                        prop_assert_eq!(ledger.outstanding(), 0);
                    }
                }
                if let Some(position) = ledger.settle().get(&partition("0")) {
                    prop_assert!(*position > committed);
                    committed = *position;
                }
                prop_assert_eq!(committed, unsettled.first().copied().unwrap_or(next));
            }
        }

        /// Whatever the order of dispositions, a committed position never passes a record that is unresolved
        /// or failed, and once everything is resolved it stands right before the first failure.
        #[test]
        fn no_commit_passes_an_unresolved_record(
            sizes in prop::collection::vec(1usize..6, 1..8),
            order in prop::collection::vec(any::<prop::sample::Index>(), 40),
            fates in prop::collection::vec(0u8..10, 40),
        ) {
            let progress = Arc::new(Progress::default());
            let mut ledger = Ledger::default();
            let mut open = Vec::new();
            let mut next = 0u64;
            for size in sizes {
                let batch = ReadAcks::new(partition("0"), (next + 1..=next + size as u64).collect(), Vec::new(), Arc::clone(&progress));
                for index in 0..size {
                    open.push((next + index as u64, batch.ack(u32::try_from(index).unwrap())));
                }
                next += size as u64;
                ledger.push(partition("0"), batch);
            }
            let mut unsettled: std::collections::BTreeSet<u64> = open.iter().map(|(at, _)| *at).collect();
            let mut committed = 0;
            for (pick, fate) in order.iter().zip(fates).take(open.len()) {
                let (at, ack) = open.swap_remove(pick.index(open.len()));
                let disposition = Disposition::ALL[usize::from(fate % 4)];
                ack.resolve(disposition, None, None);
                if disposition != Disposition::Failed {
                    unsettled.remove(&at);
                }
                if let Some(position) = ledger.settle().get(&partition("0")) {
                    prop_assert!(*position > committed);
                    committed = *position;
                }
                prop_assert_eq!(committed, unsettled.first().copied().unwrap_or(next));
            }
        }
    }
}
