//! Setting how far a group has come.

use courant_connectors::log::{LogError, Offsets, TopicPartition};

use super::Bench;
use super::bench::take;
use super::groups::{all_starts, at, spread};

pub async fn a_group_starts_where_it_was_reset_to(bench: Bench) {
    let (topic, group) = (bench.topic(2).await, bench.name());
    bench.write(&topic, spread(0..80)).await;
    let mut member = bench.join(&group, &topic).await;
    let read = take(&mut *member, 80).await;
    let (partition, last) = read.last().map(|(from, record)| (from.clone(), record.offset)).unwrap();
    member.commit(&Offsets::from([(partition.clone(), last + 1)])).await.unwrap();
    member.close().await.unwrap();

    // back, and forward for a partition that was never committed
    let other = TopicPartition::new(&topic, 1 - partition.partition);
    let wanted = Offsets::from([(partition, last), (other, 1)]);
    bench.log.reset_group(&group, &wanted).await.unwrap();
    assert_eq!(bench.log.committed(&group, &topic).await.unwrap(), wanted);
    let mut member = bench.join(&group, &topic).await;
    assert_eq!(all_starts(&mut *member, 2).await, wanted);
    // a reset for nothing changes nothing
    bench.log.reset_group(&bench.name(), &Offsets::new()).await.unwrap();
}

pub async fn a_group_with_members_is_not_reset(bench: Bench) {
    let (topic, group) = (bench.topic(1).await, bench.name());
    bench.write_numbers(&topic, "key", 0..3).await;
    let mut member = bench.join(&group, &topic).await;
    take(&mut *member, 3).await;
    member.commit(&at(&topic, 0, 3)).await.unwrap();
    let error = bench.log.reset_group(&group, &at(&topic, 0, 1)).await.unwrap_err();
    assert!(matches!(&error, LogError::Invalid(reason) if reason.contains(&group)), "{error:?}");
    assert_eq!(bench.log.committed(&group, &topic).await.unwrap(), at(&topic, 0, 3));
}
