//! Several workers, shards that split, workers that die.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::store::{Remedy, Store};
use courant_connectors::stream::{Handed, Pace, StreamEvent, StreamOptions, StreamWorker};
use tokio::time::timeout;

use super::following::{Followed, Given, LEASE, Times};
use crate::{LIMIT, eventually};

const KEYS: usize = 12;

/// Whoever was given something.
fn workers(given: &[Given]) -> BTreeSet<&str> {
    given.iter().map(|given| given.to.as_str()).collect()
}

pub async fn workers_share_the_shards(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "workers_share_the_shards").await;
    followed.stream.split().await;
    followed.write(KEYS).await;
    let (one, two) = (followed.runs("one"), followed.runs("two"));
    eventually("both have some", async || {
        followed.write(KEYS).await;
        (workers(&followed.given("g")).len() == 2).then_some(())
    })
    .await;
    let three = followed.runs("three");
    followed.stream.split().await;
    eventually("all three have some", async || {
        followed.write(KEYS).await;
        (workers(&followed.given("g")).len() == 3).then_some(())
    })
    .await;
    followed.all_came("g").await;
    followed.nothing_is_missing("g", Times::Once);
    for worker in [one, two, three] {
        worker.closes().await;
    }
}

/// One at a time, and none goes round in circles.
pub async fn who_comes_later_gets_a_share(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "who_comes_later_gets_a_share").await;
    for _ in 0..2 {
        followed.stream.split().await;
    }
    let one = followed.runs("one");
    followed.write(KEYS).await;
    followed.all_came("g").await;
    let shares = async || {
        let leases = followed.leases("g").await.into_iter().filter(|lease| !lease.has_ended());
        let (mut shares, mut most_terms) = (BTreeMap::<String, usize>::new(), 0);
        for lease in leases {
            most_terms = most_terms.max(lease.term);
            *shares.entry(lease.holder.map(|holder| holder.to_string()).unwrap_or_default()).or_default() +=
                1;
        }
        (shares, most_terms)
    };
    let (alone, _) = shares().await;
    let all = *alone.get("one").expect("it has everything");
    assert_eq!(alone.len(), 1, "{alone:?}");
    let two = followed.runs("two");
    let even = eventually("half each", async || {
        let (shares, terms) = shares().await;
        (shares.get("two") == Some(&(all / 2)) && shares.get("one") == Some(&(all - all / 2)))
            .then_some(terms)
    });
    assert_eq!(even.await, 2, "each was handed over once");
    followed.write(KEYS).await;
    followed.all_came("g").await;
    followed.nothing_is_missing("g", Times::Once);
    for worker in [one, two] {
        worker.closes().await;
    }
}

pub async fn an_item_keeps_its_order_while_shards_split(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "an_item_keeps_its_order_while_shards_split").await;
    let _workers = [followed.runs("one"), followed.runs("two")];
    for _ in 0..3 {
        let writes = async {
            for _ in 0..5 {
                followed.write(KEYS).await;
            }
        };
        tokio::join!(writes, followed.stream.split());
    }
    followed.all_came("g").await;
    followed.nothing_is_missing("g", Times::Once);
}

pub async fn a_child_waits_for_what_is_open_of_its_parent(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "a_child_waits_for_its_parent").await;
    followed.write(1).await;
    let mut one = followed.join("g", "one");
    let first = next(&mut one).await;
    followed.stream.split().await;
    followed.write(1).await;
    let two = followed.runs("two");
    // Both look at the leases several times meanwhile.
    let early = timeout(LEASE, async {
        loop {
            if let StreamEvent::Changes(handed) = one.next(5).await.expect("the store works") {
                return handed;
            }
        }
    });
    assert!(early.await.is_err() && followed.given("g").is_empty(), "the first is not done");
    one.done([(first.shard, first.changes[0].0)]).await.expect("places can be written");
    let second = async {
        loop {
            let handed = timeout(Duration::from_millis(50), one.next(5)).await;
            let is_ours = matches!(handed, Ok(Ok(StreamEvent::Changes(_))));
            if is_ours || !followed.given("g").is_empty() {
                return;
            }
        }
    };
    timeout(LIMIT, second).await.expect("the second comes");
    two.closes().await;
}

/// Although more was handed out.
pub async fn what_is_not_done_comes_again(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "what_is_not_done_comes_again").await;
    let dying = does_one_of_five(&followed).await;
    drop(dying);
    the_others_come(&followed).await;
}

pub async fn who_closes_leaves_what_is_not_done_to_others(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "who_closes_leaves_what_is_not_done").await;
    let closing = does_one_of_five(&followed).await;
    closing.close().await.expect("it lets go");
    the_others_come(&followed).await;
}

/// A worker that was given four changes of five at least, and has done the first.
async fn does_one_of_five(followed: &Followed) -> StreamWorker {
    for _ in 0..5 {
        followed.write(1).await;
    }
    let mut worker = followed.join("g", "one");
    let mut numbers = Vec::new();
    let mut shard = None;
    while numbers.len() < 4 {
        let handed = next(&mut worker).await;
        numbers.extend(handed.changes.iter().map(|(number, _)| *number));
        shard = Some(handed.shard);
    }
    worker.done([(shard.expect("it was handed"), numbers[0])]).await.expect("places can be written");
    worker
}

async fn the_others_come(followed: &Followed) {
    let _two = followed.runs("two");
    followed.all_came("g").await;
    let versions: Vec<u64> = followed.given("g").iter().map(|given| given.version).collect();
    assert_eq!(versions, [2, 3, 4, 5]);
}

pub async fn what_the_dead_left_undone_is_done_by_others(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "what_the_dead_left_undone_is_done_by_others").await;
    let mut one = followed.runs("one");
    for round in 0..3 {
        let other = followed.runs(&format!("other-{round}"));
        let before = followed.given("g").len();
        let writes = async {
            for _ in 0..4 {
                followed.write(KEYS).await;
            }
            if round == 1 {
                followed.stream.split().await;
            }
        };
        let given =
            eventually("they are at it", async || (followed.given("g").len() > before + 5).then_some(()));
        tokio::join!(writes, given);
        one.dies().await;
        one = other;
    }
    followed.all_came("g").await;
    followed.nothing_is_missing("g", Times::OrMore);
    one.closes().await;
}

/// A process that is started again has the leases it had, without waiting for them to run out.
pub async fn who_comes_again_goes_on_at_once(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "who_comes_again_goes_on_at_once").await;
    followed.write(KEYS).await;
    let lives = || {
        let lease = Duration::from_secs(3600);
        followed.join_with(StreamOptions { lease, ..followed.options("g", "one") })
    };
    let first = next(&mut lives()).await;
    let mut again = lives();
    let mut shards = BTreeSet::new();
    while !shards.contains(&first.shard) {
        let handed = next(&mut again).await;
        if handed.shard == first.shard {
            assert_eq!(handed.changes, first.changes, "nothing of it was done");
        }
        shards.insert(handed.shard);
    }
}

/// It can read all the time, and nothing that it writes arrives until others have its shards.
pub async fn who_cannot_keep_its_leases_hands_nothing_out_and_learns_that_they_are_gone(
    store: Arc<dyn Store>,
) {
    let followed = Followed::new(&store, "who_cannot_keep_its_leases").await;
    let muted = followed.stream.beside();
    followed.write(1).await;
    let mut one = StreamWorker::join(Arc::clone(&muted) as Arc<_>, followed.options("g", "one"));
    let first = next(&mut one).await;
    muted.mutes(true);
    let two = followed.runs("two");
    followed.all_came("g").await; // again, since it was not done
    followed.write(1).await;
    followed.all_came("g").await;
    let late = timeout(LEASE, async {
        loop {
            // Failures are passed over.
            if let Ok(StreamEvent::Changes(handed)) = one.next(5).await {
                return handed;
            }
        }
    });
    assert!(late.await.is_err(), "others have the shard");
    muted.mutes(false);
    let gone = async {
        loop {
            match one.next(5).await {
                Ok(StreamEvent::Gone(shards)) if shards.contains(&first.shard) => return,
                Ok(StreamEvent::Changes(handed)) => assert_ne!(handed.shard, first.shard, "it is another's"),
                _ => {}
            }
        }
    };
    timeout(LIMIT, gone).await.expect("it hears that the shard is gone");
    two.closes().await;
}

/// Nobody waits for it: what happens meanwhile is read when its time has come.
pub async fn who_reads_in_turn_misses_nothing(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "who_reads_in_turn_misses_nothing").await;
    let in_turn = |worker| StreamOptions { pace: Pace::InTurn, ..followed.options("g", worker) };
    let _workers = [followed.runs_with(in_turn("one")), followed.runs_with(in_turn("two"))];
    for _ in 0..3 {
        followed.write(KEYS).await;
        followed.all_came("g").await;
    }
    followed.nothing_is_missing("g", Times::Once);
}

/// What a worker lets go is as gone as what is taken from it.
pub async fn a_shard_that_was_let_go_is_gone(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "a_shard_that_was_let_go_is_gone").await;
    followed.stream.split().await;
    followed.write(KEYS).await;
    let mut one = followed.join("g", "one");
    let mut handed = next(&mut one).await;
    let _two = followed.runs("two");
    let gone = async {
        loop {
            let last = handed.changes.last().expect("at least one").0;
            one.done([(handed.shard, last)]).await.expect("places can be written");
            handed = loop {
                match one.next(5).await {
                    Ok(StreamEvent::Gone(shards)) => return shards,
                    Ok(StreamEvent::Changes(handed)) => break handed,
                    Err(error) => assert_eq!(error.remedy(), Remedy::Retry, "{error}"),
                }
            };
        }
    };
    let gone = timeout(LIMIT, gone).await.expect("the other gets a share");
    let held = one.shards();
    assert!(gone.iter().all(|shard| !held.contains(shard)), "{gone:?} of {held:?}");
}

/// However shards change hands.
pub async fn two_groups_are_two_readers_of_a_shard(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "two_groups_are_two_readers_of_a_shard").await;
    followed.stream.split().await;
    let mut running = Vec::new();
    for worker in ["one", "two", "three"] {
        for group in ["g", "h"] {
            running.push(followed.runs_in(group, worker));
        }
        followed.write(KEYS).await;
        for group in ["g", "h"] {
            followed.all_came(group).await;
        }
    }
    followed.stream.split().await;
    followed.write(KEYS).await;
    running.remove(0).closes().await;
    followed.write(KEYS).await;
    for group in ["g", "h"] {
        followed.all_came(group).await;
        followed.nothing_is_missing(group, Times::Once);
    }
    assert_eq!(followed.stream.most_readers(), 2, "one of each group");
}

/// Shards that another has found are not gone because an older list does not have them.
pub async fn a_list_that_is_behind_takes_nothing_for_lost(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "a_list_that_is_behind_takes_nothing_for_lost").await;
    let _workers = [followed.runs("one"), followed.runs("two")];
    followed.write(KEYS).await;
    followed.all_came("g").await;
    let old = followed.stream.list().await;
    followed.stream.split().await;
    followed.write(KEYS).await;
    followed.all_came("g").await;
    followed.stream.always_lists(old);
    let listed = followed.stream.lists();
    eventually("it is believed", async || (followed.stream.lists() > listed + 6).then_some(())).await;
    followed.write(KEYS).await;
    followed.all_came("g").await;
    followed.nothing_is_missing("g", Times::Once);
}

/// Neither listed nor opened, and there all the same.
pub async fn a_refusal_to_open_takes_nothing_for_lost(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "a_refusal_to_open_takes_nothing_for_lost").await;
    let _workers = [followed.runs("one"), followed.runs("two")];
    followed.write(KEYS).await;
    followed.all_came("g").await;
    let right = followed.stream.list().await;
    followed.stream.refuses_to_open(true);
    followed.stream.always_lists(Vec::new());
    let listed = followed.stream.lists();
    eventually("it is listed", async || (followed.stream.lists() > listed + 6).then_some(())).await;
    followed.stream.always_lists(right);
    followed.stream.refuses_to_open(false);
    followed.write(KEYS).await;
    followed.all_came("g").await;
    followed.nothing_is_missing("g", Times::Once);
}

pub async fn how_far_behind_is_told(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "how_far_behind_is_told").await;
    let mut worker = followed.join("g", "one");
    let behind_since = worker.behind_since();
    assert_eq!(behind_since(), None);
    followed.write(1).await;
    let handed = next(&mut worker).await;
    assert_eq!(behind_since(), Some(handed.changes[0].1.at), "of the oldest that is not done");
    worker.done([(handed.shard, handed.changes[0].0)]).await.expect("places can be written");
    assert_eq!(behind_since(), None);
    followed.stream.breaks(true);
    let failed = timeout(LIMIT, worker.next(5)).await.expect("it reads from time to time");
    assert!(failed.is_err() && behind_since().is_some(), "what cannot be read may be old");
    followed.stream.breaks(false);
    followed.write(1).await;
    let handed = next(&mut worker).await;
    worker.done([(handed.shard, handed.changes[0].0)]).await.expect("places can be written");
    // Of several shards others may still wait for their next try.
    let tries = async {
        while behind_since().is_some() {
            let _ = timeout(Duration::from_millis(100), worker.next(5)).await;
        }
    };
    timeout(LIMIT, tries).await.expect("nothing is behind any more");
}

/// What is handed out next; failures are passed over.
async fn next(worker: &mut StreamWorker) -> Handed {
    let handed = async {
        loop {
            if let Ok(StreamEvent::Changes(handed)) = worker.next(5).await {
                return handed;
            }
        }
    };
    timeout(LIMIT, handed).await.expect("a change comes")
}
