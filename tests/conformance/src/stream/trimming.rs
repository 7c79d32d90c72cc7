//! Changes that are not kept any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use courant_connectors::model::tables::stream_leases::Lease;
use courant_connectors::store::{Change, Store};
use courant_connectors::stream::{InPlaceOfLost, StreamEvent, StreamOptions};

use super::following::{Followed, Given};
use crate::eventually;

const KEYS: usize = 40;

/// No key was ever given as it had been before.
fn never_goes_back(given: &[Given]) {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for one in given {
        let before = seen.insert(&one.key, one.version).unwrap_or_default();
        assert!(one.version >= before, "{one:?} after version {before}");
    }
}

/// Then everything comes as it should, once what was given by a scan and is in the tail, too, is past. A shard that is
/// found to be trimmed after a scan is answered by another.
async fn and_the_tail_goes_on(followed: &Followed) {
    let comes_once = async || {
        followed.forget();
        followed.write(KEYS).await;
        followed.all_came("g").await;
        let given = followed.given("g");
        let is_once = given.len() == KEYS && given.iter().all(|given| !given.is_scanned);
        if is_once { Ok(()) } else { Err(given) }
    };
    eventually("each comes once", async || comes_once().await.ok()).await;
    // Everything was read from the tail by now, so nothing is left for a scan.
    assert_eq!(comes_once().await, Ok(()));
}

pub async fn lost_changes_are_answered_by_a_scan_that_rejoins_the_tail(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "lost_changes_are_answered").await;
    followed.write(KEYS).await;
    let one = followed.runs("one");
    followed.all_came("g").await;
    one.closes().await;
    for _ in 0..2 {
        followed.write(KEYS).await;
    }
    followed.stream.trim().await;
    followed.forget();
    followed.write(KEYS / 2).await;
    let _workers = [followed.runs("one"), followed.runs("two")];
    // While they scan.
    followed.write(KEYS / 4).await;
    followed.all_came("g").await;
    let given = followed.given("g");
    assert!(given.iter().any(|given| given.is_scanned), "{given:?}");
    never_goes_back(&given);
    and_the_tail_goes_on(&followed).await;
}

pub async fn a_scan_whose_worker_dies_goes_on(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "a_scan_whose_worker_dies").await;
    followed.write(KEYS).await;
    let one = followed.runs("one");
    followed.all_came("g").await;
    one.closes().await;
    followed.write(KEYS).await;
    followed.stream.trim().await;
    followed.forget();
    let mut dying = followed.join("g", "dying");
    let mut done = BTreeSet::new();
    while done.is_empty() {
        match dying.next(100).await.expect("the store works") {
            StreamEvent::Changes(handed) if handed.is_scanned => {
                done.extend(handed.changes.iter().map(|(_, change)| key(change)));
                let (last, _) = handed.changes.last().expect("at least one");
                dying.done([(handed.shard, *last)]).await.expect("places can be written");
            }
            StreamEvent::Changes(handed) => panic!("{handed:?} is from before"),
            StreamEvent::Gone(_) => {}
        }
    }
    dying.next(100).await.expect("another page, of which nothing is done");
    drop(dying);
    let _two = followed.runs("two");
    let given = eventually("the rest", async || {
        let given = followed.given("g");
        // A page may come twice to a worker whose lease ran out on a busy machine.
        let scanned = given.iter().filter(|given| given.is_scanned).map(|given| &given.key);
        (scanned.collect::<BTreeSet<_>>().len() == KEYS - done.len()).then_some(given)
    });
    let given = given.await;
    assert!(
        given.iter().all(|given| !done.contains(&given.key)),
        "a page that was done comes again: {given:?}"
    );
    never_goes_back(&given);
    and_the_tail_goes_on(&followed).await;
}

fn key(change: &Change) -> String {
    change.new.as_ref().and_then(|item| item.text("k")).expect("a key").to_owned()
}

pub async fn shards_that_are_gone_are_answered_by_a_scan(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "shards_that_are_gone").await;
    followed.write(KEYS).await;
    let one = followed.runs("one");
    followed.all_came("g").await;
    one.closes().await;
    followed.write(KEYS).await;
    // Two generations: of the first nobody ever heard.
    followed.stream.split().await;
    followed.write(KEYS).await;
    followed.stream.split().await;
    followed.stream.trim().await;
    followed.forget();
    followed.write(KEYS / 2).await;
    let _workers = [followed.runs("one"), followed.runs("two")];
    followed.all_came("g").await;
    never_goes_back(&followed.given("g"));
    and_the_tail_goes_on(&followed).await;
}

/// The worker is there all the time, and too slow.
pub async fn changes_lost_while_reading_are_noticed(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "changes_lost_while_reading").await;
    let _workers = [followed.runs("one"), followed.runs("two")];
    followed.write(KEYS).await;
    followed.all_came("g").await;
    followed.stream.breaks(true);
    for _ in 0..2 {
        followed.write(KEYS).await;
    }
    followed.stream.trim().await;
    followed.stream.breaks(false);
    followed.all_came("g").await;
    let given = followed.given("g");
    assert!(given.iter().any(|given| given.is_scanned), "{given:?}");
    never_goes_back(&given);
    and_the_tail_goes_on(&followed).await;
}

/// Somebody died before anything was done, so the place is still the beginning, which is another one by now.
pub async fn changes_lost_before_anything_was_done_are_noticed(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "changes_lost_before_anything_was_done").await;
    followed.write(KEYS).await;
    let mut dying = followed.join("g", "dying");
    let mut handed_out = 0;
    while handed_out < KEYS {
        if let StreamEvent::Changes(handed) = dying.next(100).await.expect("the store works") {
            handed_out += handed.changes.len();
        }
    }
    drop(dying);
    followed.stream.trim().await;
    followed.write(KEYS / 2).await;
    let _two = followed.runs("two");
    followed.all_came("g").await;
    let given = followed.given("g");
    assert!(given.iter().any(|given| given.is_scanned), "{given:?}");
    never_goes_back(&given);
    and_the_tail_goes_on(&followed).await;
}

/// Who has no use for items as they are is given what is left of the shards, and all of that.
pub async fn nothing_stands_in_for_lost_changes_where_nothing_is_wanted(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "nothing_stands_in_for_lost_changes").await;
    let options =
        |worker| StreamOptions { in_place_of_lost: InPlaceOfLost::Nothing, ..followed.options("g", worker) };
    followed.write(KEYS).await;
    let one = followed.runs_with(options("one"));
    followed.all_came("g").await;
    one.closes().await;
    followed.write(KEYS).await; // lost
    followed.stream.trim().await;
    followed.forget();
    for _ in 0..2 {
        followed.write(KEYS).await;
    }
    let _workers = [followed.runs_with(options("one")), followed.runs_with(options("two"))];
    followed.all_came("g").await;
    let given = followed.given("g");
    let mut versions: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for given in &given {
        assert!(!given.is_scanned, "{given:?}");
        versions.entry(&given.key).or_default().push(given.version);
    }
    assert_eq!(versions.len(), KEYS);
    assert!(versions.values().all(|versions| *versions == [3, 4]), "{versions:?}");
}

/// Shards came and went unseen, which only their children tell, and only as long as the group does not know those.
pub async fn a_scan_that_is_throttled_is_begun_later(store: Arc<dyn Store>) {
    let followed = Followed::new(&store, "a_scan_that_is_throttled").await;
    followed.write(KEYS).await;
    let one = followed.runs("one");
    followed.all_came("g").await;
    followed.stream.always_lists(followed.stream.list().await);
    followed.stream.split().await;
    eventually("all that it knows is read to its end", async || {
        followed.leases("g").await.iter().all(Lease::has_ended).then_some(())
    })
    .await;
    one.closes().await;
    followed.write(KEYS).await;
    followed.stream.split().await;
    followed.stream.trim().await;
    followed.stream.always_lists(followed.stream.list().await);
    followed.forget();
    followed.stream.throttles(2);
    let _one = followed.runs("one");
    followed.all_came("g").await;
    let given = followed.given("g");
    assert!(given.iter().any(|given| given.is_scanned), "{given:?}");
    never_goes_back(&given);
    and_the_tail_goes_on(&followed).await;
}
