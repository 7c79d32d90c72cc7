//! A member of a consumer group.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use fjall::Readable as _;
use tokio::sync::{Notify, oneshot};

use super::super::Engine;
use super::super::committer::{CommitError, Committer, Job};
use super::super::group::Group;
use super::super::shared::Shared;
use super::groups::{Event, Handover, LetGo, MemberId, REVOCATION_LIMIT};
use super::read::PartitionReaders;
use super::topic::StoredTopic;
use super::{read_error, settle};
use crate::log::{
    Assigned, Consumer, Fetch, LogError, Offsets, Reader, Result, StartAt, Subscription, TopicPartition,
};
use crate::store::Durability;

pub(super) struct Member {
    shared: Arc<Shared>,
    committer: Arc<Committer>,
    subscription: Subscription,
    id: MemberId,
    wake: Arc<Notify>,
    /// Given to this member, and its holder was not told yet.
    arriving: Vec<TopicPartition>,
    readers: PartitionReaders,
}

impl Member {
    pub(super) fn join(engine: &Engine, subscription: Subscription) -> Result<Self> {
        for topic in &subscription.topics {
            engine.topic(topic)?;
        }
        let (shared, committer) = (Arc::clone(&engine.shared), Arc::clone(&engine.committer));
        let (id, wake) =
            shared.groups.join(&subscription.group, subscription.topics.iter().cloned().collect());
        rebalance(&shared, &subscription.group);
        let (arriving, readers) = (Vec::new(), PartitionReaders::default());
        Ok(Self { shared, committer, subscription, id, wake, arriving, readers })
    }

    /// What the holder is to hear of it at once.
    fn handle(&mut self, event: Event) -> Option<Fetch> {
        match event {
            Event::Assigned(partitions) => {
                self.arriving = partitions;
                None
            }
            Event::Revoked(revocation) => {
                revocation.partitions.iter().for_each(|partition| self.readers.remove(partition));
                Some(Fetch::Revoked(revocation))
            }
            Event::Lost(partitions) => Some(Fetch::Lost(partitions)),
        }
    }

    /// Begins to read what has arrived. A call that is dropped, or cannot write where it begins, is made again by the
    /// next fetch.
    async fn arrive(&mut self) -> Result<Fetch> {
        let starts = self.new_starts()?;
        if !starts.is_empty() {
            store_offsets(&self.shared, &self.committer, &self.subscription.group, &starts, Move::Begin)
                .await?;
        }
        let arriving = std::mem::take(&mut self.arriving);
        let assigned = arriving.into_iter().map(|partition| self.start(partition));
        Ok(Fetch::Assigned(assigned.collect::<Result<_>>()?))
    }

    /// The ends of partitions that the group begins to read there. Written before anything is read: who comes next
    /// would otherwise begin at a later end, and nobody would read what was appended in between.
    fn new_starts(&self) -> Result<Offsets> {
        let mut starts = Offsets::new();
        if self.subscription.start == StartAt::Oldest {
            return Ok(starts);
        }
        for partition in &self.arriving {
            if committed_offset(&self.shared, &self.subscription.group, partition)?.is_none() {
                let high = self.topic_of(partition)?.watermarks(partition.partition)?.high;
                starts.insert(partition.clone(), high);
            }
        }
        Ok(starts)
    }

    /// Begins to read a partition where the group left off.
    fn start(&mut self, partition: TopicPartition) -> Result<Assigned> {
        let topic = self.topic_of(&partition)?;
        let start = match committed_offset(&self.shared, &self.subscription.group, &partition)? {
            Some(committed) => committed,
            None => topic.watermarks(partition.partition)?.low,
        };
        topic.check_in_range(partition.partition, start)?;
        self.readers.add(partition.clone(), topic, start);
        Ok(Assigned { partition, start })
    }

    fn topic_of(&self, partition: &TopicPartition) -> Result<Arc<StoredTopic>> {
        let topic = self.shared.topics().get(&partition.topic).cloned();
        topic.ok_or_else(|| LogError::NoSuchTopic { topic: partition.topic.clone() })
    }
}

/// Gives out the partitions of a group anew, and once more whenever a holder has let go.
fn rebalance(shared: &Arc<Shared>, group: &str) {
    let wanted = shared.groups.topics_of(group);
    let topics = shared.topics();
    let existing = wanted.iter().filter_map(|name| topics.get(name));
    let partitions: BTreeSet<TopicPartition> = existing
        .flat_map(|topic| {
            (0..topic.partition_count()).map(|partition| TopicPartition::new(topic.name(), partition))
        })
        .collect();
    for handover in shared.groups.rebalance(group, &partitions) {
        let (shared, group) = (Arc::clone(shared), group.to_owned());
        tokio::spawn(await_handover(shared, group, handover));
    }
}

async fn await_handover(shared: Arc<Shared>, group: String, handover: Handover) {
    let Handover { member, partitions, done } = handover;
    let let_go = match tokio::time::timeout(REVOCATION_LIMIT, done.wait()).await {
        Ok(()) => LetGo::InTime,
        Err(_) => LetGo::TooLate,
    };
    shared.groups.release(&group, member, partitions, let_go);
    rebalance(&shared, &group);
}

#[async_trait]
impl Reader for Member {
    async fn fetch(&mut self, max: usize) -> Result<Fetch> {
        loop {
            if !self.arriving.is_empty() {
                return self.arrive().await;
            }
            if let Some(event) = self.shared.groups.next_event(&self.subscription.group, self.id) {
                match self.handle(event) {
                    Some(fetched) => return Ok(fetched),
                    None => continue,
                }
            }
            if let Some(fetched) = self.readers.fetch_now(max)? {
                return Ok(fetched);
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = self.readers.wait() => {}
            }
        }
    }

    async fn pause(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        self.readers.set_paused(partitions, true)
    }

    async fn resume(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        self.readers.set_paused(partitions, false)
    }

    fn lag(&self) -> Vec<(TopicPartition, u64)> {
        self.readers.lag_by_partition()
    }
}

#[async_trait]
impl Consumer for Member {
    async fn commit(&mut self, offsets: &Offsets) -> Result<()> {
        for partition in offsets.keys() {
            if !self.shared.groups.owns(&self.subscription.group, self.id, partition) {
                return Err(LogError::NotAssigned(partition.clone()));
            }
        }
        store_offsets(&self.shared, &self.committer, &self.subscription.group, offsets, Move::ForwardOnly)
            .await
    }

    async fn close(self: Box<Self>) -> Result<()> {
        // dropping leaves the group, and in memory that takes no time
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.groups.leave(&self.subscription.group, self.id);
        if tokio::runtime::Handle::try_current().is_ok() {
            rebalance(&self.shared, &self.subscription.group);
        }
    }
}

impl Engine {
    pub(super) fn committed_offset(&self, group: &str, partition: &TopicPartition) -> Result<Option<u64>> {
        committed_offset(&self.shared, group, partition)
    }

    pub(super) async fn store_offsets(&self, group: &str, offsets: &Offsets) -> Result<()> {
        store_offsets(&self.shared, &self.committer, group, offsets, Move::Anywhere).await
    }
}

/// Where a group's offset may go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    /// From nowhere: one that has a place keeps it.
    Begin,
    ForwardOnly,
    Anywhere,
}

impl Move {
    fn allows(self, before: Option<u64>, to: u64) -> bool {
        match self {
            Self::Begin => before.is_none(),
            Self::ForwardOnly => before.is_none_or(|before| before < to),
            Self::Anywhere => true,
        }
    }
}

fn offset_key(group: &str, partition: &TopicPartition) -> Vec<u8> {
    [group.as_bytes(), &[0], partition.topic.as_str().as_bytes(), &[0], &partition.partition.to_be_bytes()]
        .concat()
}

fn parse_offset(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

fn committed_offset(shared: &Shared, group: &str, partition: &TopicPartition) -> Result<Option<u64>> {
    let bytes =
        shared.moment().get(&shared.group_offsets, offset_key(group, partition)).map_err(read_error)?;
    Ok(bytes.and_then(|bytes| parse_offset(&bytes)))
}

async fn store_offsets(
    shared: &Arc<Shared>,
    committer: &Committer,
    group: &str,
    offsets: &Offsets,
    to: Move,
) -> Result<()> {
    let offsets = offsets.iter().map(|(partition, offset)| (offset_key(group, partition), *offset)).collect();
    let (reply, answer) = oneshot::channel();
    let job = StoreOffsets { shared: Arc::clone(shared), offsets, to, outcome: Ok(()), reply };
    committer.submit(Box::new(job)).await;
    answer.await.unwrap_or_else(|_| Err(LogError::UnknownOutcome("the engine ended".to_owned())))
}

struct StoreOffsets {
    shared: Arc<Shared>,
    offsets: Vec<(Vec<u8>, u64)>,
    to: Move,
    outcome: Result<()>,
    reply: oneshot::Sender<Result<()>>,
}

impl StoreOffsets {
    fn store(&self, group: &mut Group) -> Result<()> {
        for (key, offset) in &self.offsets {
            let before = group.get(&self.shared.group_offsets, key).map_err(read_error)?;
            if self.to.allows(before.and_then(|bytes| parse_offset(&bytes)), *offset) {
                group.put(&self.shared.group_offsets, key.clone(), offset.to_be_bytes().to_vec());
            }
        }
        Ok(())
    }
}

impl Job for StoreOffsets {
    fn bytes(&self) -> usize {
        self.offsets.len() * 64
    }

    /// A member's commit outlives the process at once and the machine with the next synced write. Until then a loss of
    /// power means reading again, which consumers are made for. Where a person has put a group it stays; and where a
    /// group began at an end, nothing else tells.
    fn durability(&self) -> Durability {
        match self.to {
            Move::ForwardOnly => Durability::Ordered,
            Move::Begin | Move::Anywhere => Durability::Synced,
        }
    }

    fn decide(&mut self, group: &mut Group) {
        self.outcome = self.store(group);
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        // a caller that went away does not want to know
        let _ = self.reply.send(settle(self.outcome, committed));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::super::super::Options;
    use super::*;
    use crate::log::{AdminLog as _, NewRecord, ReadLog as _, Retention, Topic, TopicSpec, WriteLog as _};

    #[tokio::test]
    async fn a_dropped_fetch_does_not_move_where_a_group_begins() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
        let name = Topic::from("events");
        let spec =
            TopicSpec { name: name.clone(), partitions: 1, retention: Retention::default(), replication: 1 };
        engine.create_topic(&spec).await.unwrap();
        let subscription =
            Subscription { group: "g".to_owned(), topics: vec![name.clone()], start: StartAt::Latest };
        let mut member = engine.subscribe(subscription).await.unwrap();
        let early = member.fetch(1).now_or_never();
        engine.produce(&name, vec![NewRecord::default()]).await.remove(0).unwrap();
        let fetched = match early {
            Some(fetched) => fetched,
            None => member.fetch(1).await,
        };
        let begins = [Assigned { partition: TopicPartition::new(&name, 0), start: 0 }];
        assert!(matches!(&fetched, Ok(Fetch::Assigned(all)) if *all == begins), "{fetched:?}");
        let fetched = member.fetch(1).await;
        assert!(matches!(&fetched, Ok(Fetch::Records { .. })), "{fetched:?}");
    }
}
