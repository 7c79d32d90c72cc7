//! Which member of a consumer group reads which partition.
//!
//! Groups live in memory, since all their members do: they are in this process. When members come or go, partitions move
//! so that all have as many give or take one, and no more move than must. A partition that moves is first revoked; its
//! new owner has it once the old one has let go, or has taken longer than [`REVOCATION_LIMIT`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::log::{LogError, Result, Revocation, RevocationDone, Topic, TopicPartition};

/// As long as Kafka's clients usually may be busy with what they have.
pub(super) const REVOCATION_LIMIT: Duration = Duration::from_secs(30);

pub(super) type MemberId = u64;

#[derive(Default)]
pub(in crate::embedded) struct Groups {
    by_name: Mutex<FxHashMap<String, Group>>,
    next_member: AtomicU64,
    spread: AtomicU64,
}

#[derive(Default)]
struct Group {
    members: BTreeMap<MemberId, Subscriber>,
    owners: BTreeMap<TopicPartition, Owner>,
}

struct Subscriber {
    topics: BTreeSet<Topic>,
    events: VecDeque<Event>,
    wake: Arc<Notify>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner {
    member: MemberId,
    /// Asked to let go.
    revoking: bool,
}

/// What a member is told.
pub(super) enum Event {
    Assigned(Vec<TopicPartition>),
    Revoked(Revocation),
    Lost(Vec<TopicPartition>),
}

/// A member has been asked to let go of these; to be watched by whoever caused it.
pub(super) struct Handover {
    pub(super) member: MemberId,
    pub(super) partitions: Vec<TopicPartition>,
    pub(super) done: RevocationDone,
}

/// Whether a holder gave up its partitions or was deprived of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LetGo {
    InTime,
    TooLate,
}

impl Groups {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<String, Group>> {
        // nothing in here panics half-way; if it did, the next rebalance puts things right
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For records without a key: the partitions in turn.
    pub(super) fn next_spread(&self) -> u64 {
        self.spread.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn check_empty(&self, group: &str) -> Result<()> {
        if self.lock().get(group).is_some_and(|group| !group.members.is_empty()) {
            return Err(LogError::Invalid(format!(
                "group '{group}' has members; stop them before setting its offsets"
            )));
        }
        Ok(())
    }

    /// Adds a member. The partitions of its topics are given out by the next [`rebalance`](Self::rebalance).
    pub(super) fn join(&self, group: &str, topics: BTreeSet<Topic>) -> (MemberId, Arc<Notify>) {
        let id = self.next_member.fetch_add(1, Ordering::Relaxed);
        let wake = Arc::new(Notify::new());
        let member = Subscriber { topics, events: VecDeque::new(), wake: Arc::clone(&wake) };
        self.lock().entry(group.to_owned()).or_default().members.insert(id, member);
        (id, wake)
    }

    /// Removes a member; what it had is free at once.
    pub(super) fn leave(&self, group: &str, member: MemberId) {
        let mut groups = self.lock();
        if let Some(state) = groups.get_mut(group) {
            state.members.remove(&member);
            state.owners.retain(|_, owner| owner.member != member);
            if state.members.is_empty() {
                groups.remove(group);
            }
        }
    }

    pub(super) fn next_event(&self, group: &str, member: MemberId) -> Option<Event> {
        self.lock().get_mut(group)?.members.get_mut(&member)?.events.pop_front()
    }

    pub(super) fn owns(&self, group: &str, member: MemberId, partition: &TopicPartition) -> bool {
        let groups = self.lock();
        groups
            .get(group)
            .and_then(|state| state.owners.get(partition))
            .is_some_and(|owner| owner.member == member)
    }

    /// The partitions are free, because their holder let go or its time was up.
    pub(super) fn release(
        &self,
        group: &str,
        from: MemberId,
        partitions: Vec<TopicPartition>,
        let_go: LetGo,
    ) {
        let mut groups = self.lock();
        let Some(state) = groups.get_mut(group) else { return };
        state.owners.retain(|partition, owner| owner.member != from || !partitions.contains(partition));
        if let_go == LetGo::TooLate {
            state.tell(from, Event::Lost(partitions));
        }
    }

    /// Gives out free partitions, and asks members that have too many to let go of some.
    pub(super) fn rebalance(&self, group: &str, partitions: &BTreeSet<TopicPartition>) -> Vec<Handover> {
        self.lock().get_mut(group).map(|state| state.rebalance(partitions)).unwrap_or_default()
    }

    /// The topics that members of the group want.
    pub(super) fn topics_of(&self, group: &str) -> BTreeSet<Topic> {
        let groups = self.lock();
        let members = groups.get(group).into_iter().flat_map(|state| state.members.values());
        members.flat_map(|member| member.topics.iter().cloned()).collect()
    }
}

impl Group {
    fn rebalance(&mut self, partitions: &BTreeSet<TopicPartition>) -> Vec<Handover> {
        self.owners.retain(|partition, _| partitions.contains(partition));
        let goal = self.goal(partitions);
        let mut assigned: BTreeMap<MemberId, Vec<TopicPartition>> = BTreeMap::new();
        let mut revoked: BTreeMap<MemberId, Vec<TopicPartition>> = BTreeMap::new();
        for (partition, member) in goal {
            match self.owners.get_mut(&partition) {
                None => {
                    self.owners.insert(partition.clone(), Owner { member, revoking: false });
                    assigned.entry(member).or_default().push(partition);
                }
                Some(owner) if owner.member != member && !owner.revoking => {
                    owner.revoking = true;
                    revoked.entry(owner.member).or_default().push(partition);
                }
                Some(_) => {}
            }
        }
        for (member, partitions) in assigned {
            self.tell(member, Event::Assigned(partitions));
        }
        let handovers = revoked.into_iter().map(|(member, partitions)| {
            let (revocation, done) = Revocation::new(partitions.clone());
            self.tell(member, Event::Revoked(revocation));
            Handover { member, partitions, done }
        });
        handovers.collect()
    }

    fn tell(&mut self, member: MemberId, event: Event) {
        if let Some(member) = self.members.get_mut(&member) {
            member.tell(event);
        }
    }

    /// Who should have each partition: those who have it now as far as that is fair.
    fn goal(&self, partitions: &BTreeSet<TopicPartition>) -> BTreeMap<TopicPartition, MemberId> {
        let mut goal = BTreeMap::new();
        let mut load: BTreeMap<MemberId, usize> = self.members.keys().map(|member| (*member, 0)).collect();
        let fair = partitions.len().div_ceil(self.members.len().max(1));
        let mut free = Vec::new();
        for partition in partitions {
            // one that is being revoked goes to another member, so it counts as free
            let keeper = self.owners.get(partition).filter(|owner| !owner.revoking).map(|owner| owner.member);
            match keeper.and_then(|keeper| Some((keeper, load.get_mut(&keeper)?))) {
                Some((keeper, count)) if *count < fair => {
                    *count += 1;
                    goal.insert(partition.clone(), keeper);
                }
                _ => free.push(partition),
            }
        }
        for partition in free {
            let wanting = self.members.iter().filter(|(_, member)| member.topics.contains(&partition.topic));
            let Some((least, _)) = wanting.min_by_key(|(id, _)| (load[id], **id)) else { continue };
            *load.get_mut(least).expect("every member has a load") += 1;
            goal.insert(partition.clone(), *least);
        }
        goal
    }
}

impl Subscriber {
    fn tell(&mut self, event: Event) {
        self.events.push_back(event);
        self.wake.notify_one();
    }
}
