//! Windows in a rebuild, and when it goes live.

use courant_pipeline::spec::Part;

use super::*;
use crate::derived::DerivedHome;

/// The stage in a rebuild.
async fn rebuilding(root: &Path, more: Value) -> Arc<dyn Stage> {
    let home = Arc::new(DerivedHome::new(root));
    let services = Services::default().with(home).with(Arc::new(History));
    let Part::Stage(stage) = build(&SPEC, params(more), &services).ok().unwrap().part else { panic!() };
    stage.open().await.unwrap();
    stage
}

fn sorted(batch: &Batch) -> Vec<(u64, String, u64, i64, u64)> {
    let mut rows = rows(batch);
    rows.sort();
    rows
}

#[tokio::test(start_paused = true)]
async fn history_in_any_order_is_never_late_and_shows_what_is_over() {
    let root = tempfile::tempdir().unwrap();
    let stage = rebuilding(root.path(), json!({"lateness": "5s", "max_open": 1})).await;
    let scanned = [55, 1, 30, 2, 11, 49].map(|second| record(second, "a", 1));
    let batch = given(&*stage, read("scan", numbered(scanned), None)).await;
    assert_eq!(
        sorted(&batch),
        [
            (0, "a".into(), 2, 2, 1),
            (10, "a".into(), 1, 1, 1),
            (30, "a".into(), 1, 1, 1),
            (40, "a".into(), 1, 1, 1)
        ],
        "each once a batch, as it is then, and not what is still open"
    );
    let batch = given(&*stage, read("scan", [(7, record(3, "a", 1)), (8, record(56, "a", 1))], None)).await;
    assert_eq!(rows(&batch), [(0, "a".into(), 3, 3, 1)], "it changed");
    let batch = given(&*stage, read("scan", [(9, record(65, "a", 1))], None)).await;
    assert_eq!(rows(&batch), [(50, "a".into(), 2, 2, 1)], "it is over by now");
}

#[tokio::test(start_paused = true)]
async fn what_a_rebuild_showed_closes_without_a_row_unless_it_changed() {
    let root = tempfile::tempdir().unwrap();
    let stage = rebuilding(root.path(), json!({"id": "[.at, .x]"})).await;
    let history = [50, 1, 11, 31].map(|second| record(second, "a", 1));
    assert_eq!(rows(&given(&*stage, read("0", numbered(history), Some(0))).await).len(), 3);
    stage.close().await.unwrap();
    drop(stage);

    let stage = open(&SPEC, params(json!({"id": "[.at, .x]"})), root.path()).await;
    // another partition is behind, and what it tells of still counts
    let batch = given(&*stage, read("1", [(1, record(12, "a", 2)), (2, record(35, "a", 2))], None)).await;
    assert_eq!(rows(&batch), [(10, "a".into(), 2, 3, 2)], "the one that changed, and closed");
    let batch = given(&*stage, read("0", [(4, record(31, "a", 1))], None)).await;
    assert_eq!(fates(&batch), ["finished"], "it was taken in the rebuild");
    advance(Duration::from_secs(1)).await;
    let batch = given(&*stage, read("1", [(3, record(90, "a", 1))], None)).await;
    assert_eq!(rows(&batch), [(30, "a".into(), 2, 3, 2), (50, "a".into(), 1, 1, 1)]);
    given(&*stage, read("1", [(4, record(91, "a", 1))], Some(4))).await;
    stage.close().await.unwrap();
    drop(stage);
    let store = StateStore::open(&folder(&SPEC, root.path())).unwrap();
    let left = store.range(b"d".to_vec()..=b"z".to_vec()).map(|pair| char::from(pair.unwrap().0[0]));
    assert_eq!(left.collect::<String>(), "vvvw", "of the window that is open: its ids, its value, itself");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_ahead_passes_nothing_that_is_to_come() {
    let root = tempfile::tempdir().unwrap();
    let stage = rebuilding(root.path(), json!({"size": "1ms", "lateness": "1m"})).await;
    let now = courant_pipeline::clock::unix_millis();
    let at = |time: u64| Record::new(json!({"at": time, "chat": "a", "x": 1}).to_string());
    let batch = given(&*stage, read("0", [(1, at(now)), (2, at(now + 1_800_000))], None)).await;
    assert_eq!(fates(&batch), ["finished", "finished"], "neither is over");
}

/// Feeds a history in this order, with crashes between state and acknowledgement; the last row of each window.
async fn rebuilt(root: &Path, records: &[(u64, u8, i64)], steps: &[(usize, bool)]) -> Came {
    let all: Vec<_> =
        numbered(records.iter().map(|(second, chat, x)| record(*second, &chat.to_string(), *x))).collect();
    let mut came = Came::new();
    let mut stage = rebuilding(root, json!({"lateness": "7s"})).await;
    let mut steps = steps.iter().copied().chain(std::iter::repeat((5, false)));
    let mut next = 0;
    while next < all.len() {
        let (size, crash) = steps.next().unwrap();
        let upto = (next + size).min(all.len());
        let batch = given(&*stage, read("0", all[next..upto].to_vec(), Some(next as u64))).await;
        if crash {
            // what it did is on disk, what came out is lost
            drop(stage);
            stage = rebuilding(root, json!({"lateness": "7s"})).await;
        } else {
            came.extend(
                rows(&batch).into_iter().map(|(start, chat, n, sum, users)| ((start, chat), (n, sum, users))),
            );
            next = upto;
        }
    }
    came
}

type Came = BTreeMap<(u64, String), (u64, i64, u64)>;

fn as_rows(came: Came) -> Vec<(u64, String, u64, i64, u64)> {
    came.into_iter().map(|((start, chat), (n, sum, users))| (start, chat, n, sum, users)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the order, and however often it was killed: windows that are over are as counting gives, the others
    /// are not there; and once it is live, and time has gone on, all of them are.
    #[test]
    fn every_order_gives_the_same(
        records in prop::collection::vec((0u64..100, 0u8..4, -3i64..4), 2..60),
        steps in prop::collection::vec((1usize..12, any::<bool>()), 0..12),
        more in prop::collection::vec((0u8..4, -3i64..4), 0..10),
    ) {
        let root = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let mut came = runtime.block_on(rebuilt(root.path(), &records, &steps));
        let latest = records.iter().map(|(second, ..)| *second).max().unwrap();
        let mut over = model(&records);
        over.retain(|(start, ..)| start + 10 + 7 <= latest);
        prop_assert_eq!(as_rows(came.clone()), over);

        // as far behind the latest as lateness allows, and then far ahead
        let more: Vec<_> = more.into_iter().map(|(chat, x)| (latest.max(7) - 7, chat, x)).collect();
        runtime.block_on(async {
            let stage = open(&SPEC, params(json!({"lateness": "7s"})), root.path()).await;
            let end = [record(1000, "end", 0)];
            let live = more.iter().map(|(second, chat, x)| record(*second, &chat.to_string(), *x)).chain(end);
            let live = (records.len() as u64 + 1..).zip(live);
            let batch = given(&*stage, read("0", live, Some(records.len() as u64))).await;
            assert!(!fates(&batch).contains(&"dropped: late".to_owned()), "{batch:?}");
            came.extend(rows(&batch).into_iter().map(|(start, chat, n, sum, users)| ((start, chat), (n, sum, users))));
        });
        let all: Vec<_> = records.iter().chain(&more).copied().collect();
        prop_assert_eq!(as_rows(came), model(&all));
    }
}
