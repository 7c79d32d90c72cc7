//! Reading partitions, alone or as a member of a group.
//!
//! Each reader has a thread that polls librdkafka's shared queue: rebalances and errors arrive there, and
//! records never do (see [`partitions`](super::partitions)). The thread keeps the membership alive, so a slow
//! holder is not thrown out; whether pipelines make progress is watched by the runtime. librdkafka's
//! rebalance callback only notes what is to be done: answering it later, when the holder of a partition has
//! committed, costs no thread and stops no other partition. `StreamConsumer` was rejected since it runs that
//! callback on a worker of the runtime.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, TopicPartitionList};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::ask::{Questions, list_of, native, partition_of};
use super::context::{log_error, log_line};
use super::partitions::{Next, Partitions};
use crate::log::{Consumer, Fetch, LogError, Offsets, Reader, Result, TopicPartition};

pub(super) type Client = BaseConsumer<MemberContext>;

/// A commit that meets a rebalance is tried again after this.
const COMMIT_AGAIN: Duration = Duration::from_millis(50);

/// What the callbacks of librdkafka reach.
pub(super) struct MemberContext {
    pub(super) partitions: Arc<Partitions>,
    pub(super) changes: Arc<Changes>,
}

/// Rebalances to be answered. librdkafka waits for an answer before it comes with the next.
#[derive(Default)]
pub(super) struct Changes(Mutex<VecDeque<Change>>);

pub(super) enum Change {
    Assign(Vec<TopicPartition>),
    Revoke(Vec<TopicPartition>),
}

impl Changes {
    pub(super) fn next(&self) -> Option<Change> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn note(&self, change: Change) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(change);
    }
}

impl ClientContext for MemberContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn stats(&self, statistics: Statistics) {
        self.partitions.learn_ends(&statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for MemberContext {
    fn rebalance(&self, client: &BaseConsumer<Self>, kind: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let partitions = partitions_in(list);
        let assigning = kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.partitions.is_closing() {
            // nobody is left to hold anything
            let answer =
                if assigning { client.incremental_assign(list) } else { client.incremental_unassign(list) };
            if let Err(error) = answer {
                log_error(&error, "answering a rebalance while closing");
            }
            return;
        }
        self.changes.note(if assigning { Change::Assign(partitions) } else { Change::Revoke(partitions) });
    }
}

fn partitions_in(list: &TopicPartitionList) -> Vec<TopicPartition> {
    list.elements().iter().map(|element| partition_of(element.topic(), element.partition())).collect()
}

/// What a pipeline holds: a member of a group, or a reader for itself.
pub(super) struct Member {
    partitions: Arc<Partitions>,
    /// None once it is closed. Whoever drops the last one blocks until the group is left: the thread.
    client: Option<Arc<Client>>,
    questions: Arc<Questions>,
    /// A commit that its caller gave up goes on, and the next must not overtake it.
    commit_turn: Arc<tokio::sync::Mutex<()>>,
    timeout: Duration,
    ended: oneshot::Receiver<()>,
}

impl Member {
    /// `serve` runs on a thread of its own until the member is closed.
    pub(super) fn start(
        client: Client,
        partitions: Arc<Partitions>,
        questions: Arc<Questions>,
        timeout: Duration,
        serve: impl FnOnce(&Arc<Client>) + Send + 'static,
    ) -> Result<Self> {
        let client = Arc::new(client);
        let (end, ended) = oneshot::channel();
        let (served, taken) = (Arc::clone(&client), Arc::clone(&partitions));
        let thread = std::thread::Builder::new().name("kafka-reader".to_owned()).spawn(move || {
            serve(&served);
            // what came while it was being closed: each of its queues would keep the client
            taken.close();
            drop(served);
            drop(end);
        });
        thread
            .map_err(|error| LogError::Unavailable(format!("cannot start a thread for a reader: {error}")))?;
        let commit_turn = Arc::default();
        Ok(Self { partitions, client: Some(client), questions, commit_turn, timeout, ended })
    }

    async fn out_of_range(&self, partition: TopicPartition, offset: u64) -> LogError {
        let marks = match self.questions.watermarks(&partition.topic).await {
            Ok(marks) => marks,
            Err(error) => {
                self.partitions.asked_in_vain();
                return error;
            }
        };
        self.partitions.told_out_of_range(&partition);
        match usize::try_from(partition.partition).ok().and_then(|index| marks.get(index)) {
            Some(marks) => LogError::OutOfRange { partition, offset, low: marks.low, high: marks.high },
            None => LogError::NoSuchPartition(partition),
        }
    }

    fn leave(&mut self) {
        self.partitions.close();
        self.client = None;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

#[async_trait]
impl Reader for Member {
    async fn fetch(&mut self, max: usize) -> Result<Fetch> {
        loop {
            // nothing is awaited between taking and returning, so a dropped call loses nothing
            match self.partitions.take(max.max(1)) {
                Some(Next::Heard(heard)) => return heard,
                Some(Next::OutOfRange(partition, offset)) => {
                    return Err(self.out_of_range(partition, offset).await);
                }
                None => self.partitions.wake.notified().await,
            }
        }
    }

    async fn pause(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        self.partitions.set_paused(partitions, true)
    }

    async fn resume(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        self.partitions.set_paused(partitions, false)
    }

    fn lag(&self) -> Vec<(TopicPartition, u64)> {
        self.partitions.lag()
    }
}

#[async_trait]
impl Consumer for Member {
    async fn commit(&mut self, offsets: &Offsets) -> Result<()> {
        let turn = Arc::clone(&self.commit_turn).lock_owned().await;
        let news = self.partitions.to_commit(offsets)?;
        let (Some(client), Some(first)) = (self.client.clone(), news.keys().next().cloned()) else {
            return Ok(());
        };
        let deadline = Instant::now() + self.timeout;
        let (committing, partitions) = (news.clone(), Arc::clone(&self.partitions));
        let commit = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            commit_until(&client, &partitions, &committing, deadline)
        });
        // librdkafka itself waits for a coordinator up to the session time-out
        match timeout(self.timeout * 2, commit).await {
            Ok(Ok(Ok(()))) => self.partitions.committed(&news),
            Ok(Ok(Err(error))) => {
                return Err(from_commit(&error, first, self.partitions.to_commit(&news).is_ok()));
            }
            Ok(Err(_)) => return Err(LogError::Unavailable("the process is shutting down".to_owned())),
            Err(_) => return Err(LogError::UnknownOutcome(format!("commit for {first}: no answer in time"))),
        }
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        self.leave();
        // the thread drops its end when the group is left
        match timeout(self.timeout, &mut self.ended).await {
            Ok(_) => Ok(()),
            Err(_) => Err(LogError::Unavailable("the group could not be left in time".to_owned())),
        }
    }
}

/// On a blocking thread.
fn commit_until(
    client: &Client,
    partitions: &Partitions,
    offsets: &Offsets,
    deadline: Instant,
) -> std::result::Result<(), KafkaError> {
    let list = list_of(offsets.iter().map(|(partition, offset)| (partition, native(*offset))))?;
    loop {
        let Err(error) = client.commit(&list, CommitMode::Sync) else { return Ok(()) };
        let passing = match error.rdkafka_error_code() {
            Some(
                Code::RebalanceInProgress
                | Code::CoordinatorLoadInProgress
                | Code::CoordinatorNotAvailable
                | Code::NotCoordinator
                | Code::WaitingForCoordinator
                | Code::RequestTimedOut
                | Code::BrokerTransportFailure,
            ) => true,
            // The group has a new generation that this member is about to learn of, keeping its partitions;
            // one that was thrown out learns that it lost them.
            Some(Code::IllegalGeneration) => {
                !client.assignment_lost() && partitions.to_commit(offsets).is_ok()
            }
            _ => false,
        };
        if !passing || Instant::now() + COMMIT_AGAIN > deadline {
            return Err(error);
        }
        // nobody unparks it: this is a pause on a thread that is there to be blocked
        std::thread::park_timeout(COMMIT_AGAIN);
    }
}

fn from_commit(error: &KafkaError, partition: TopicPartition, still_held: bool) -> LogError {
    match error.rdkafka_error_code() {
        // a rebalance that takes long: the partition is ours, and can be committed when it is over
        Some(Code::IllegalGeneration) if still_held => {
            LogError::Unavailable(format!("commit for {partition}: the group is still rebalancing"))
        }
        Some(
            Code::IllegalGeneration | Code::UnknownMemberId | Code::FencedInstanceId | Code::StaleMemberEpoch,
        ) => LogError::NotAssigned(partition),
        Some(Code::GroupAuthorizationFailed | Code::TopicAuthorizationFailed) => {
            LogError::NotAllowed { access: "commit offsets of", name: partition.topic.to_string() }
        }
        // committing twice does no harm, so what is unknown is as good as not done
        _ => LogError::Unavailable(format!("commit for {partition}: {error}")),
    }
}
