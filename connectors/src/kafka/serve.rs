//! The thread of a reader: answers rebalances and hands partitions over.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::Offset;
use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use tokio::time::Instant;

use super::ask::{list_of, native, offsets_in, watermarks_of};
use super::context::log_error;
use super::member::{Change, Changes, Client};
use super::partitions::{Fate, Held, Partitions};
use crate::log::{Fetch, LogError, Offsets, Revocation, RevocationDone, StartAt, TopicPartition, Watermarks};

/// How soon the thread notices that its reader was closed.
const LOOK_UP: Duration = Duration::from_millis(100);

/// How soon it notices that a holder is done; another member waits for that.
const LOOK_UP_DURING_HANDOVER: Duration = Duration::from_millis(5);

/// Between two attempts to find out where to start, or to write it down.
const ASK_AGAIN: Duration = Duration::from_millis(250);

pub(super) struct Service {
    pub(super) partitions: Arc<Partitions>,
    pub(super) changes: Arc<Changes>,
    /// As errors call it.
    pub(super) group: String,
    pub(super) start: StartAt,
    pub(super) request_timeout: Duration,
    pub(super) handover_timeout: Duration,
}

/// Partitions that are leaving and whose holder is not done.
struct Handover {
    leaving: Vec<TopicPartition>,
    done: RevocationDone,
    deadline: Instant,
}

/// Partitions that the group begins to read at their end. Their holder is told of them when the group has that as its
/// offset: who comes next would otherwise begin at a later end, and nobody would read what was appended in between.
struct Beginning {
    held: Vec<(TopicPartition, Held)>,
    try_at: Instant,
}

impl Service {
    /// Until the reader is closed.
    pub(super) fn run(&self, client: &Arc<Client>) {
        let mut arriving: Option<Vec<TopicPartition>> = None;
        let mut beginning = Beginning { held: Vec::new(), try_at: Instant::now() };
        let mut handover: Option<Handover> = None;
        while !self.partitions.is_closing() {
            let wait = match (&handover, &arriving) {
                (Some(_), _) => LOOK_UP_DURING_HANDOVER,
                (None, Some(_)) => ASK_AGAIN,
                (None, None) => LOOK_UP,
            };
            match client.poll(wait) {
                Some(Err(error)) => self.hear(&error),
                // every partition has a queue of its own from before it is assigned
                Some(Ok(_)) => {
                    self.partitions.report(LogError::Damaged("a record came by no partition".to_owned()));
                }
                None => {}
            }
            while let Some(change) = self.changes.next() {
                match change {
                    Change::Assign(partitions) => arriving = Some(partitions),
                    Change::Revoke(partitions) => {
                        beginning.held.retain(|(partition, _)| !partitions.contains(partition));
                        handover = self.revoke(client, partitions);
                    }
                }
            }
            arriving = arriving.and_then(|partitions| self.assign(client, partitions, &mut beginning));
            self.begin(client, &mut beginning);
            handover = handover.and_then(|handover| self.hand_over(client, handover));
        }
        // whoever waits for an answer to a rebalance gets it before the group is left
        if let Some(handover) = handover {
            self.give_up(client, &handover.leaving);
        }
        if let Some(partitions) = arriving {
            self.answer(client.incremental_assign_at(&partitions, Offset::End));
        }
    }

    fn hear(&self, error: &KafkaError) {
        let trouble = match error.rdkafka_error_code() {
            Some(Code::AllBrokersDown) => {
                LogError::Unavailable("no broker of the cluster answers".to_owned())
            }
            Some(Code::GroupAuthorizationFailed) => {
                LogError::NotAllowed { access: "join group", name: self.group.clone() }
            }
            // single connections come and go
            Some(Code::BrokerTransportFailure | Code::Resolve | Code::OperationTimedOut) | None => return,
            Some(code) => LogError::Unavailable(format!("cannot read from kafka: {code}")),
        };
        self.partitions.report(trouble);
    }

    /// Returns the partitions if it is not known yet where to start in them.
    fn assign(
        &self,
        client: &Arc<Client>,
        partitions: Vec<TopicPartition>,
        beginning: &mut Beginning,
    ) -> Option<Vec<TopicPartition>> {
        // members that come early are told that there is nothing for them yet
        if client.assignment_lost() || partitions.is_empty() {
            self.answer(client.incremental_assign_at(&partitions, Offset::End));
            return None;
        }
        let (committed, marks) = match self.look_up(client, &partitions) {
            Ok(found) => found,
            Err(error) => {
                let text = format!("cannot ask where to read on: {error}");
                self.partitions.report(LogError::Unavailable(text));
                return Some(partitions);
            }
        };
        let held = self.hold_all(client, partitions.into_iter().zip(marks), &committed);
        let readable =
            |held: &Held| if held.fate == Fate::Reading { native(held.position) } else { Offset::End };
        let list = list_of(held.iter().map(|(partition, held)| (partition, readable(held))));
        self.answer(list.and_then(|list| client.incremental_assign(&list)));
        let begins_at_end =
            |(_, held): &(TopicPartition, Held)| self.start == StartAt::Latest && held.committed.is_none();
        let (new, known): (Vec<_>, Vec<_>) = held.into_iter().partition(begins_at_end);
        beginning.held.extend(new);
        if !known.is_empty() {
            self.partitions.add(known, true);
        }
        None
    }

    /// Those of the partitions that are there, each at its start.
    fn hold_all(
        &self,
        client: &Arc<Client>,
        partitions: impl Iterator<Item = (TopicPartition, Watermarks)>,
        committed: &Offsets,
    ) -> Vec<(TopicPartition, Held)> {
        let mut held = Vec::new();
        for (partition, marks) in partitions {
            let committed = committed.get(&partition).copied();
            let start = committed.unwrap_or(match self.start {
                StartAt::Oldest => marks.low,
                StartAt::Latest => marks.high,
            });
            let Some(mut new) = hold(client, &self.partitions, &partition, start, marks.high) else {
                self.partitions.report(LogError::NoSuchPartition(partition));
                continue;
            };
            new.committed = committed;
            if start < marks.low || start > marks.high {
                new.fate = Fate::OutOfRange;
            }
            held.push((partition, new));
        }
        held
    }

    /// After the rebalance was answered: a member that was thrown out cannot commit, and librdkafka says so only then.
    fn begin(&self, client: &Client, beginning: &mut Beginning) {
        // what is lost is taken away in a moment
        if beginning.held.is_empty() || Instant::now() < beginning.try_at || client.assignment_lost() {
            return;
        }
        let starts = beginning.held.iter().map(|(partition, held)| (partition, native(held.position)));
        if let Err(error) = list_of(starts).and_then(|starts| client.commit(&starts, CommitMode::Sync)) {
            let text = format!("cannot commit where to begin: {error}");
            self.partitions.report(LogError::Unavailable(text));
            beginning.try_at = Instant::now() + ASK_AGAIN;
            return;
        }
        let mut begun = std::mem::take(&mut beginning.held);
        for (_, held) in &mut begun {
            held.committed = Some(held.position);
        }
        self.partitions.add(begun, true);
    }

    fn look_up(
        &self,
        client: &Client,
        partitions: &[TopicPartition],
    ) -> KafkaResult<(Offsets, Vec<Watermarks>)> {
        let list = list_of(partitions.iter().map(|partition| (partition, Offset::Invalid)))?;
        let committed = client.committed_offsets(list, self.request_timeout)?;
        for element in committed.elements() {
            // an unanswered partition looks like one without a commit, and would be read from its start
            element.error()?;
        }
        Ok((offsets_in(&committed), watermarks_of(client, partitions, self.request_timeout)?))
    }

    fn revoke(&self, client: &Arc<Client>, leaving: Vec<TopicPartition>) -> Option<Handover> {
        if client.assignment_lost() {
            self.lose(client, &leaving);
            return None;
        }
        let (revocation, done) = Revocation::new(leaving.clone());
        self.partitions.stop_reading(&leaving, Fetch::Revoked(revocation));
        Some(Handover { leaving, done, deadline: Instant::now() + self.handover_timeout })
    }

    /// Returns the handover if it has to go on.
    fn hand_over(&self, client: &Arc<Client>, mut handover: Handover) -> Option<Handover> {
        if handover.done.is_done() {
            self.give_up(client, &handover.leaving);
        } else if client.assignment_lost() || Instant::now() > handover.deadline {
            self.lose(client, &handover.leaving);
        } else {
            return Some(handover);
        }
        None
    }

    fn lose(&self, client: &Arc<Client>, partitions: &[TopicPartition]) {
        let lost = self.give_up(client, partitions);
        if !lost.is_empty() {
            self.partitions.announce(Fetch::Lost(lost));
        }
    }

    fn give_up(&self, client: &Arc<Client>, partitions: &[TopicPartition]) -> Vec<TopicPartition> {
        let held = self.partitions.remove(partitions);
        let list = list_of(partitions.iter().map(|partition| (partition, Offset::Invalid)));
        self.answer(list.and_then(|list| client.incremental_unassign(&list)));
        held
    }

    fn answer(&self, answered: KafkaResult<()>) {
        if let Err(error) = answered {
            log_error(&error, "answering a rebalance");
            self.partitions.report(LogError::Unavailable(format!("a rebalance failed: {error}")));
        }
    }
}

/// Gives the partition a queue of its own that wakes the reader. None if librdkafka does not know it.
pub(super) fn hold(
    client: &Arc<Client>,
    partitions: &Arc<Partitions>,
    partition: &TopicPartition,
    start: u64,
    end: u64,
) -> Option<Held> {
    let number = super::ask::native_partition(partition.partition);
    let mut queue = client.split_partition_queue(partition.topic.as_str(), number)?;
    let reader = Arc::clone(partitions);
    queue.set_nonempty_callback(move || reader.wake.notify_one());
    Some(Held::new(queue, start, end))
}

/// Taking partitions that nobody will read, only because librdkafka waits for an answer.
trait AssignAt {
    fn incremental_assign_at(&self, partitions: &[TopicPartition], offset: Offset) -> KafkaResult<()>;
}

impl AssignAt for Client {
    fn incremental_assign_at(&self, partitions: &[TopicPartition], offset: Offset) -> KafkaResult<()> {
        self.incremental_assign(&list_of(partitions.iter().map(|partition| (partition, offset)))?)
    }
}
