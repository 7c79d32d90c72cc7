//! Reading as members of a group.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use courant_connectors::log::{
    Consumer, Fetch, LogError, Offsets, StartAt, Subscription, Topic, TopicPartition,
};
use futures::FutureExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, timeout};

use super::Bench;
use super::bench::{QUIET, assigned, commit, join, next, nothing_comes, record, take, text};
use crate::LIMIT;

pub async fn a_group_goes_on_where_it_committed(bench: Bench) {
    let (topic, group) = (bench.topic(1).await, bench.name());
    bench.write_numbers(&topic, "key", 0..10).await;
    let mut member = bench.join(&group, &topic).await;
    assert_eq!(assigned(&mut *member).await[0].start, 0);
    let read = take(&mut *member, 6).await;
    assert_eq!(text(&read[5].1), "5");
    // three of the six are done with
    member.commit(&at(&topic, 0, 3)).await.unwrap();
    member.close().await.unwrap();

    let mut member = bench.join(&group, &topic).await;
    let partitions = assigned(&mut *member).await;
    assert_eq!((&partitions[0].partition, partitions[0].start), (&TopicPartition::new(&topic, 0), 3));
    let read = take(&mut *member, 7).await;
    let read: Vec<&str> = read.iter().map(|(_, record)| text(record)).collect();
    assert_eq!(read, ["3", "4", "5", "6", "7", "8", "9"]);
    nothing_comes(&mut *member).await;
    member.close().await.unwrap();
}

pub async fn a_new_group_starts_where_it_asks_to(bench: Bench) {
    let topic = bench.topic(1).await;
    bench.write_numbers(&topic, "key", 0..5).await;
    let mut latest = join(&bench.log, &bench.name(), &topic, StartAt::Latest).await;
    assert_eq!(assigned(&mut *latest).await[0].start, 5);
    let mut oldest = join(&bench.log, &bench.name(), &topic, StartAt::Oldest).await;
    assert_eq!(assigned(&mut *oldest).await[0].start, 0);
    bench.write_numbers(&topic, "key", 5..6).await;
    assert_eq!(text(&take(&mut *latest, 1).await[0].1), "5");
    assert_eq!(take(&mut *oldest, 6).await.len(), 6);
}

/// Of one partition that holds something, and one that is empty.
pub async fn who_begins_at_the_end_and_reads_nothing_goes_on_from_there(bench: Bench) {
    let (topic, group) = (bench.topic(2).await, bench.name());
    bench.write_numbers(&topic, "key", 0..5).await;
    let mut member = join(&bench.log, &group, &topic, StartAt::Latest).await;
    let starts = all_starts(&mut *member, 2).await;
    assert_eq!(starts.values().sum::<u64>(), 5);
    assert_eq!(bench.log.committed(&group, &topic).await.unwrap(), starts);
    member.close().await.unwrap();

    bench.write(&topic, spread(5..45)).await;
    let mut member = join(&bench.log, &group, &topic, StartAt::Latest).await;
    let read = take(&mut *member, 40).await;
    let numbers: BTreeSet<u32> = read.iter().map(|(_, record)| text(record).parse().unwrap()).collect();
    assert_eq!(numbers, (5..45).collect());
    nothing_comes(&mut *member).await;
    member.close().await.unwrap();
}

/// Where a member begins in each of so many partitions.
pub(super) async fn all_starts(member: &mut dyn Consumer, partitions: usize) -> Offsets {
    let mut starts = Offsets::new();
    while starts.len() < partitions {
        starts.extend(assigned(member).await.into_iter().map(|got| (got.partition, got.start)));
    }
    starts
}

/// A member that commits every record it reads and agrees to every change.
struct Worker {
    state: Arc<Mutex<Progress>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Box<dyn Consumer>>,
}

#[derive(Default)]
struct Progress {
    held: BTreeSet<TopicPartition>,
    read: Vec<(TopicPartition, u64)>,
}

impl Worker {
    async fn start(bench: &Bench, group: &str, topic: &Topic) -> Self {
        let mut member = bench.join(group, topic).await;
        let state = Arc::<Mutex<Progress>>::default();
        let (stop, mut stopped) = oneshot::channel();
        let progress = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = &mut stopped => return member,
                    fetched = member.fetch(5) => {
                        let fetched = fetched.expect("a fetch works");
                        Self::work(&mut *member, fetched, &progress).await;
                    }
                }
            }
        });
        Self { state, stop: Some(stop), task }
    }

    async fn work(member: &mut dyn Consumer, fetched: Fetch, progress: &Mutex<Progress>) {
        match fetched {
            Fetch::Records { from, records } => {
                let next = records.last().expect("there is at least one").offset + 1;
                commit(member, &Offsets::from([(from.clone(), next)])).await.expect("a commit works");
                let read = records.iter().map(|record| (from.clone(), record.offset));
                progress.lock().unwrap().read.extend(read);
            }
            Fetch::Assigned(new) => {
                progress.lock().unwrap().held.extend(new.into_iter().map(|assigned| assigned.partition));
            }
            Fetch::Revoked(revocation) => {
                progress.lock().unwrap().held.retain(|partition| !revocation.partitions.contains(partition));
            }
            Fetch::Lost(lost) => panic!("lost {lost:?}"),
        }
    }

    fn held(&self) -> usize {
        self.state.lock().unwrap().held.len()
    }

    fn read(&self) -> Vec<(TopicPartition, u64)> {
        self.state.lock().unwrap().read.clone()
    }

    async fn stop(mut self) -> Box<dyn Consumer> {
        drop(self.stop.take());
        self.task.await.expect("the worker did not panic")
    }
}

async fn wait(what: &str, mut reached: impl FnMut() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(started.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(super) fn spread(numbers: std::ops::Range<u32>) -> Vec<courant_connectors::log::NewRecord> {
    numbers.map(|number| record(&format!("key {}", number % 40), &number.to_string())).collect()
}

pub async fn two_members_share_the_partitions_and_read_nothing_twice(bench: Bench) {
    let (topic, group) = (bench.topic(4).await, bench.name());
    bench.write(&topic, spread(0..200)).await;
    let first = Worker::start(&bench, &group, &topic).await;
    wait("the first member has all partitions", || first.held() == 4).await;
    let second = Worker::start(&bench, &group, &topic).await;
    // while partitions move, more is written
    for start in (200..400).step_by(20) {
        bench.write(&topic, spread(start..start + 20)).await;
    }
    wait("both have two partitions", || first.held() == 2 && second.held() == 2).await;
    bench.write(&topic, spread(400..600)).await;
    wait("everything is read", || first.read().len() + second.read().len() >= 600).await;
    let (by_first, by_second) = (first.read(), second.read());
    assert!(!by_first.is_empty() && !by_second.is_empty());
    let once: BTreeSet<_> = by_first.iter().chain(&by_second).collect();
    assert_eq!((once.len(), by_first.len() + by_second.len()), (600, 600), "some were read twice");
    first.stop().await.close().await.unwrap();
    second.stop().await.close().await.unwrap();
    let committed: u64 = bench.log.committed(&group, &topic).await.unwrap().values().sum();
    assert_eq!(committed, 600);
}

pub async fn a_partition_moves_only_when_its_holder_is_done(bench: Bench) {
    let (topic, group) = (bench.topic(2).await, bench.name());
    bench.write(&topic, spread(0..80)).await;
    let mut holder = bench.join(&group, &topic).await;
    let read = take(&mut *holder, 80).await;
    let mut done = Offsets::new();
    for (partition, record) in &read {
        done.insert(partition.clone(), record.offset + 1);
    }
    let second = bench.join(&group, &topic).await;
    let (told, mut hears) = oneshot::channel();
    let waiting = tokio::spawn(async move {
        let mut second = second;
        let partitions = assigned(&mut *second).await;
        told.send(partitions).expect("the case waits for it");
        second
    });
    let revocation = loop {
        if let Fetch::Revoked(revocation) = next(&mut *holder, 1).await {
            break revocation;
        }
    };
    let leaving = revocation.partitions.clone();
    assert_eq!(leaving.len(), 1, "one of two partitions moves");
    // the holder is not done: the other must wait, and commits still count
    assert!(timeout(QUIET, &mut hears).await.is_err(), "the partition moved before its holder was done");
    let finished = Offsets::from([(leaving[0].clone(), done[&leaving[0]])]);
    commit(&mut *holder, &finished).await.expect("commits count until the holder is done");
    drop(revocation);

    let partitions = timeout(LIMIT, hears).await.expect("the partition moves").unwrap();
    assert_eq!(partitions.iter().map(|got| got.partition.clone()).collect::<Vec<_>>(), leaving);
    assert_eq!(partitions[0].start, done[&leaving[0]]);
    let error = holder.commit(&finished).await.unwrap_err();
    assert!(matches!(&error, LogError::NotAssigned(named) if *named == leaving[0]), "{error:?}");
    let mut second = waiting.await.unwrap();
    nothing_comes(&mut *second).await;
}

pub async fn a_member_that_leaves_hands_over(bench: Bench) {
    let (topic, group) = (bench.topic(2).await, bench.name());
    let first = Worker::start(&bench, &group, &topic).await;
    let second = Worker::start(&bench, &group, &topic).await;
    wait("both have a partition", || first.held() == 1 && second.held() == 1).await;
    bench.write(&topic, spread(0..80)).await;
    wait("everything is read", || first.read().len() + second.read().len() == 80).await;
    second.stop().await.close().await.unwrap();
    wait("the first has all partitions", || first.held() == 2).await;
    let before = first.read().len();
    bench.write(&topic, spread(80..160)).await;
    wait("everything is read", || first.read().len() == before + 80).await;
    first.stop().await.close().await.unwrap();
}

pub async fn a_dropped_member_leaves(bench: Bench) {
    let (topic, group) = (bench.topic(1).await, bench.name());
    bench.write_numbers(&topic, "key", 0..4).await;
    let mut first = bench.join(&group, &topic).await;
    take(&mut *first, 2).await;
    first.commit(&at(&topic, 0, 2)).await.unwrap();
    drop(first);
    let mut second = bench.join(&group, &topic).await;
    let read = take(&mut *second, 2).await;
    assert_eq!([text(&read[0].1), text(&read[1].1)], ["2", "3"]);
}

pub async fn groups_do_not_see_each_other(bench: Bench) {
    let topic = bench.topic(1).await;
    let groups = [bench.name(), bench.name()];
    bench.write_numbers(&topic, "key", 0..10).await;
    for group in &groups {
        let mut member = bench.join(group, &topic).await;
        assert_eq!(take(&mut *member, 10).await.len(), 10);
        if *group == groups[0] {
            member.commit(&at(&topic, 0, 10)).await.unwrap();
        }
        member.close().await.unwrap();
    }
    assert_eq!(bench.log.committed(&groups[0], &topic).await.unwrap(), at(&topic, 0, 10));
    assert_eq!(bench.log.committed(&groups[1], &topic).await.unwrap(), Offsets::new());
}

pub async fn what_a_group_committed_can_be_asked(bench: Bench) {
    let (topic, group) = (bench.topic(2).await, bench.name());
    assert_eq!(bench.log.committed(&group, &topic).await.unwrap(), Offsets::new());
    bench.write(&topic, spread(0..80)).await;
    let mut member = bench.join(&group, &topic).await;
    let read = take(&mut *member, 80).await;
    let (partition, last) = read.last().map(|(from, record)| (from.clone(), record.offset)).unwrap();
    let done = Offsets::from([(partition, last + 1)]);
    member.commit(&done).await.unwrap();
    assert_eq!(
        bench.log.committed(&group, &topic).await.unwrap(),
        done,
        "partitions without a commit are absent"
    );
    member.close().await.unwrap();
    assert_eq!(bench.log.committed(&group, &topic).await.unwrap(), done, "it outlives the member");
}

pub async fn commits_do_not_move_backwards(bench: Bench) {
    let (topic, group) = (bench.topic(1).await, bench.name());
    bench.write_numbers(&topic, "key", 0..10).await;
    let mut member = bench.join(&group, &topic).await;
    take(&mut *member, 10).await;
    member.commit(&at(&topic, 0, 8)).await.unwrap();
    member.commit(&at(&topic, 0, 5)).await.unwrap();
    assert_eq!(bench.log.committed(&group, &topic).await.unwrap(), at(&topic, 0, 8));
    member.close().await.unwrap();
    // nor by the next member, who found the commit there
    let mut member = bench.join(&group, &topic).await;
    take(&mut *member, 2).await;
    member.commit(&at(&topic, 0, 6)).await.unwrap();
    assert_eq!(bench.log.committed(&group, &topic).await.unwrap(), at(&topic, 0, 8));
    member.commit(&at(&topic, 0, 9)).await.unwrap();
    assert_eq!(bench.log.committed(&group, &topic).await.unwrap(), at(&topic, 0, 9));
}

pub async fn commits_for_partitions_of_others_are_refused(bench: Bench) {
    let (topic, elsewhere) = (bench.topic(1).await, bench.topic(1).await);
    let group = bench.name();
    bench.write_numbers(&topic, "key", 0..3).await;
    let mut member = bench.join(&group, &topic).await;
    take(&mut *member, 3).await;
    let mut offsets = at(&topic, 0, 3);
    offsets.extend(at(&elsewhere, 0, 1));
    let error = member.commit(&offsets).await.unwrap_err();
    assert!(matches!(&error, LogError::NotAssigned(named) if named.topic == elsewhere), "{error:?}");
    let error = member.pause(&[TopicPartition::new(&elsewhere, 0)]).await.unwrap_err();
    assert!(matches!(&error, LogError::NotAssigned(named) if named.topic == elsewhere), "{error:?}");
    // the member is as good as before
    member.commit(&at(&topic, 0, 3)).await.unwrap();
    assert_eq!(bench.log.committed(&group, &topic).await.unwrap(), at(&topic, 0, 3));
}

pub async fn a_dropped_fetch_of_a_member_loses_nothing(bench: Bench) {
    let (topic, group) = (bench.topic(3).await, bench.name());
    bench.write(&topic, spread(0..300)).await;
    let mut member = bench.join(&group, &topic).await;
    let (mut held, mut read) = (BTreeSet::new(), Vec::new());
    let started = Instant::now();
    while read.len() < 300 {
        assert!(started.elapsed() < LIMIT, "{} of 300 records within {LIMIT:?}", read.len());
        let fetched = match member.fetch(2).now_or_never() {
            Some(fetched) => Some(fetched),
            None => timeout(Duration::from_micros(300), member.fetch(2)).await.ok(),
        };
        match fetched.transpose().expect("a fetch works") {
            Some(Fetch::Records { from, records }) => {
                assert!(held.contains(&from), "records of {from} before it was assigned");
                read.extend(records.into_iter().map(|record| (from.clone(), record.offset)));
            }
            Some(Fetch::Assigned(new)) => held.extend(new.into_iter().map(|assigned| assigned.partition)),
            Some(other) => panic!("a single member keeps everything: {other:?}"),
            None => {}
        }
    }
    assert_eq!(read.iter().collect::<BTreeSet<_>>().len(), 300);
    for partition in held {
        let offsets = read.iter().filter(|(from, _)| *from == partition).map(|(_, offset)| *offset);
        assert!(offsets.is_sorted(), "{partition} is out of order");
    }
}

pub async fn a_member_reads_several_topics(bench: Bench) {
    let topics = [bench.topic(1).await, bench.topic(2).await];
    for topic in &topics {
        bench.write(topic, spread(0..50)).await;
    }
    let subscription = Subscription { group: bench.name(), topics: topics.to_vec(), start: StartAt::Oldest };
    let mut member = bench.log.subscribe(subscription).await.unwrap();
    let read = take(&mut *member, 100).await;
    for topic in &topics {
        assert_eq!(read.iter().filter(|(from, _)| from.topic == *topic).count(), 50, "records of {topic}");
    }
}

pub(super) fn at(topic: &Topic, partition: u32, offset: u64) -> Offsets {
    Offsets::from([(TopicPartition::new(topic, partition), offset)])
}
