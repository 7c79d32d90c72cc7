use tokio::sync::oneshot;

use super::*;

fn acks(count: u64) -> (Arc<ReadAcks>, Arc<Progress>) {
    let progress = Arc::new(Progress::default());
    (ReadAcks::new(Partition::only(), (1..=count).collect(), Vec::new(), Arc::clone(&progress)), progress)
}

#[test]
fn a_dropped_handle_fails_its_record() {
    let (batch, progress) = acks(1);
    drop(batch.ack(0));
    assert_eq!(progress.tally(), Tally { failed: 1, ..Tally::default() });
    assert_eq!(batch.settled(), Settled::Part(None));
}

#[test]
fn a_split_record_ends_as_its_heaviest_part() {
    let (batch, progress) = acks(1);
    let whole = batch.ack(0);
    let part = whole.branch(None);
    whole.resolve(Disposition::Delivered, None, None);
    assert_eq!(progress.tally().sum(), 0, "one part is still on its way");
    part.resolve(Disposition::DeadLettered, None, None);
    assert_eq!(progress.tally(), Tally { dead_lettered: 1, ..Tally::default() });
}

#[test]
fn settled_stops_before_the_first_gap() {
    let (batch, _) = acks(3);
    let [first, second, third] = [0, 1, 2].map(|index| batch.ack(index));
    third.resolve(Disposition::Delivered, None, None);
    assert_eq!(batch.settled(), Settled::Part(None));
    first.resolve(Disposition::Dropped, None, None);
    assert_eq!(batch.settled(), Settled::Part(Some(1)));
    second.resolve(Disposition::Delivered, None, None);
    assert_eq!(batch.settled(), Settled::Whole(Some(3)));
}

#[test]
fn bulk_resolution_counts_every_record_once() {
    let (one, progress) = acks(2);
    let two = ReadAcks::new(Partition::only(), vec![3], Vec::new(), Arc::clone(&progress));
    let mut resolver = Resolver::new(Disposition::Delivered, Some(&one));
    for mut ack in [Ack::seat(0), two.ack(0), Ack::seat(1)] {
        resolver.resolve(&mut ack, None, None);
    }
    drop(resolver);
    assert_eq!(progress.tally(), Tally { delivered: 3, ..Tally::default() });
}

#[tokio::test]
async fn the_reply_of_a_split_record_waits_for_its_last_part() {
    let (to, mut reply) = oneshot::channel();
    let batch = ReadAcks::new(Partition::only(), vec![1], vec![Some(to)], Arc::new(Progress::default()));
    let whole = batch.ack(0);
    let part = whole.branch(None);
    whole.resolve(Disposition::Delivered, None, Some(Box::new(Payload::from_static("7"))));
    assert!(reply.try_recv().is_err());
    part.resolve(Disposition::DeadLettered, Some("full"), None);
    let reply = reply.await.unwrap();
    assert_eq!(reply.disposition, Disposition::DeadLettered);
    assert_eq!(reply.reason.as_deref(), Some("full"));
    assert_eq!(reply.receipt.unwrap().to_json(), "7");
}

#[tokio::test]
async fn an_early_reply_is_the_only_reply() {
    let progress = Arc::new(Progress::default());
    let (to, reply) = oneshot::channel();
    let batch = ReadAcks::new(Partition::only(), vec![1], vec![Some(to)], progress);
    let ack = batch.ack(0);
    ack.reply_early(None, Some(Box::new(Payload::from_static("1"))));
    ack.resolve(Disposition::Failed, Some("late"), None);
    assert_eq!(reply.await.unwrap().disposition, Disposition::Delivered);
}

#[test]
fn a_record_knows_where_it_was_read_in_its_batch_and_out_of_it() {
    let (batch, _) = acks(3);
    let partition = Partition::only();
    let at = |part| Origin { source: "", partition: &partition, resume_at: 2, part, settled: None };
    let expected = Some(at(0));
    assert_eq!(Ack::seat(1).origin(Some(&batch)), expected);
    assert_eq!(batch.ack(1).origin(None), expected);
    assert_eq!(batch.ack(1).origin(Some(&acks(9).0)), expected, "a share is in its own batch");
    assert_eq!(Ack::default().origin(Some(&batch)), None);
    let part = batch.ack(1).into_part(3);
    assert_eq!(part.origin(None), Some(at(3)));
    assert_eq!(part.branch(None).origin(None), Some(at(3)), "a branch is the same record");
    assert_ne!(part.branch(None).into_part(0).origin(None), Some(at(0)));
}

#[test]
fn parts_of_parts_have_numbers_of_their_own() {
    let part = |outer: u32, inner: u32| Ack::seat(0).into_part(outer).into_part(inner).part;
    let numbers: std::collections::HashSet<u32> =
        (0..300).flat_map(|outer| (0..300).map(move |inner| part(outer, inner))).collect();
    assert_eq!(numbers.len(), 300 * 300);
}

#[test]
fn records_whose_positions_do_not_last_have_no_origin() {
    let place = Place { positions_last: false, ..Place::from(Partition::only()) };
    let batch = ReadAcks::new(place, vec![1], Vec::new(), Arc::new(Progress::default()));
    assert_eq!(batch.ack(0).origin(None), None);
}
