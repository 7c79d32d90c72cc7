mod history;

use std::path::Path;
use std::time::Duration;

use courant_pipeline::{Fate, Services};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::advance;

use super::*;
use crate::testing::origins::{folder, open, read};
use crate::testing::{batch, build, fates, problem};

/// Records are at seconds after this.
const BEGIN: u64 = 1_700_000_000_000 - 1_700_000_000_000 % 60_000;

fn params(mut more: Value) -> Value {
    let mut all = json!({
        "size": "10s",
        "time": ".at",
        "group_by": {"chat": ".chat"},
        "aggregates": {"n": "count", "sum": {"sum": ".x"}, "users": {"distinct": ".x"}},
        "idle": "0s",
    });
    all.as_object_mut().unwrap().append(more.as_object_mut().unwrap());
    all
}

fn record(second: u64, chat: &str, x: i64) -> Record {
    Record::new(json!({"at": BEGIN + second * 1000, "chat": chat, "x": x}).to_string()).with_key(chat)
}

/// The rows that came out: when the window began, its group and its numbers.
fn rows(batch: &Batch) -> Vec<(u64, String, u64, i64, u64)> {
    let mut rows = Vec::new();
    for slot in batch.slots() {
        if let Fate::Replaced(records) = slot.fate() {
            for record in records {
                let row: Value = serde_json::from_slice(&record.payload.to_json()).unwrap();
                let start: courant_connectors::model::Timestamp =
                    row["window_start"].as_str().unwrap().parse().unwrap();
                let text = |name: &str| row[name].as_str().unwrap().to_owned();
                let number = |name: &str| row[name].as_u64().unwrap();
                let second = (start.unix_millis() - BEGIN) / 1000;
                rows.push((second, text("chat"), number("n"), row["sum"].as_i64().unwrap(), number("users")));
            }
        }
    }
    rows
}

async fn given(stage: &dyn Stage, mut batch: Batch) -> Batch {
    stage.process(&mut batch).await.unwrap();
    batch
}

fn numbered(records: impl IntoIterator<Item = Record>) -> impl Iterator<Item = (u64, Record)> {
    (1..).zip(records)
}

#[tokio::test(start_paused = true)]
async fn a_row_comes_out_when_its_window_closes() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({"lateness": "2s"})), root.path()).await;
    let first = [record(1, "a", 5), record(9, "a", 5), record(3, "b", 1), record(11, "a", 7)];
    let batch = given(&*stage, read("0", numbered(first), None)).await;
    assert_eq!(fates(&batch), ["finished"; 4]);
    let batch = given(&*stage, read("0", [(5, record(12, "b", 1))], None)).await;
    assert_eq!(rows(&batch), [(0, "a".into(), 2, 10, 1), (0, "b".into(), 1, 1, 1)]);
    let Fate::Replaced(records) = batch.slots()[0].fate() else { panic!("{batch:?}") };
    assert_eq!(
        records[0].payload.to_json(),
        r#"{"window_start":"2023-11-14T22:13:00.000Z","window_end":"2023-11-14T22:13:10.000Z","chat":"a","n":2,"sum":10,"users":1}"#
    );
    assert_eq!(records[0].key.as_ref().unwrap().as_str(), r#"["2023-11-14T22:13:00.000Z","a"]"#);
    // late by now
    let batch = given(&*stage, read("0", [(6, record(9, "a", 1)), (7, record(10, "a", 1))], None)).await;
    assert_eq!(fates(&batch), ["dropped: late", "finished"]);
}

#[tokio::test(start_paused = true)]
async fn late_records_can_go_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({"late": "output"})), root.path()).await;
    let batch = given(&*stage, batch_at(&[25, 5])).await;
    assert_eq!(fates(&batch)[0], "finished");
    assert!(fates(&batch)[1].starts_with("to 1: {"), "{:?}", fates(&batch));
    let built = build(&SPEC, params(json!({"late": "output"})), &Services::default()).ok().unwrap();
    assert_eq!(
        (built.outputs, built.in_one_lane, built.rekeys),
        (vec!["rows".into(), "late".into()], true, true)
    );
}

fn batch_at(seconds: &[u64]) -> Batch {
    seconds.iter().map(|second| record(*second, "a", 1)).collect()
}

#[tokio::test(start_paused = true)]
async fn windows_may_overlap() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({"size": "10s", "hop": "4s"})), root.path()).await;
    let batch = given(&*stage, batch_at(&[9, 30])).await;
    let starts: Vec<_> = rows(&batch).iter().map(|row| (row.0, row.2)).collect();
    // windows begin at multiples of the hop since 1970, and this minute is one of them
    assert_eq!(starts, [(0, 1), (4, 1), (8, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_partition_holds_windows_open_until_it_is_idle() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({"idle": "60s"})), root.path()).await;
    // nothing closes while partitions may not have been heard of yet
    assert!(
        rows(&given(&*stage, read("0", [(1, record(1, "a", 1)), (2, record(15, "a", 1))], None)).await)
            .is_empty()
    );
    given(&*stage, read("1", [(1, record(2, "a", 1))], None)).await;
    advance(Duration::from_secs(40)).await;
    given(&*stage, read("1", [(2, record(3, "a", 1))], None)).await;
    advance(Duration::from_secs(30)).await;
    assert!(rows(&given(&*stage, read("0", [(3, record(25, "a", 1))], None)).await).is_empty());
    assert_eq!(fates(&given(&*stage, read("1", [(3, record(4, "a", 1))], None)).await), ["finished"]);
    advance(Duration::from_secs(61)).await;
    let batch = given(&*stage, read("0", [(4, record(26, "a", 1))], None)).await;
    assert_eq!(rows(&batch), [(0, "a".into(), 4, 4, 1), (10, "a".into(), 1, 1, 1)]);
}

/// The stage is dropped without closing, after its state was written and before its records were acknowledged.
#[tokio::test(start_paused = true)]
async fn what_is_read_again_counts_once_and_its_rows_come_out_again() {
    let root = tempfile::tempdir().unwrap();
    let records = || numbered([record(1, "a", 1), record(2, "b", 2), record(13, "a", 3)]);
    let expected = [(0, "a".into(), 1, 1, 1), (0, "b".into(), 1, 2, 1)];
    let stage = open(&SPEC, params(json!({})), root.path()).await;
    assert_eq!(rows(&given(&*stage, read("0", records(), None)).await), expected);
    for _ in 0..2 {
        let stage = open(&SPEC, params(json!({})), root.path()).await;
        let again = given(&*stage, read("0", records(), None)).await;
        assert_eq!(rows(&again), expected, "they may not have been delivered");
        assert_eq!(fates(&again)[..2], ["finished"; 2]);
    }
    drop(stage);
    let stage = open(&SPEC, params(json!({})), root.path()).await;
    // settled by now: what is read of it again was delivered
    assert!(rows(&given(&*stage, read("0", records(), Some(3))).await).is_empty());
    let next = given(&*stage, read("0", [(4, record(30, "a", 1))], Some(3))).await;
    assert_eq!(rows(&next), [(10, "a".into(), 1, 3, 1)]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_in_the_log_twice_counts_once() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({"id": ".x"})), root.path()).await;
    let records =
        [record(1, "a", 7), record(1, "a", 7), record(2, "a", 8), record(1, "b", 7), record(20, "a", 1)];
    let counted = given(&*stage, read("0", numbered(records), None)).await;
    assert_eq!(rows(&counted), [(0, "a".into(), 2, 15, 2), (0, "b".into(), 1, 7, 1)]);
    let refused = given(&*stage, batch(&[r#"{"at":1700000000000}"#])).await;
    assert!(fates(&refused)[0].starts_with("reject: evaluate `id`"), "{:?}", fates(&refused));
}

#[tokio::test(start_paused = true)]
async fn updates_show_the_window_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let updates = params(json!({"emit": "updates"}));
    let stage = open(&SPEC, updates.clone(), root.path()).await;
    let one = || read("0", [(1, record(1, "a", 1)), (2, record(2, "a", 1))], None);
    assert_eq!(rows(&given(&*stage, one()).await), [(0, "a".into(), 2, 2, 1)], "one row for a batch");
    assert_eq!(
        rows(&given(&*stage, read("1", [(1, record(3, "a", 1))], None)).await),
        [(0, "a".into(), 3, 3, 1)]
    );
    drop(stage);
    let stage = open(&SPEC, updates, root.path()).await;
    // never the older row: another partition's may have been delivered already
    assert_eq!(rows(&given(&*stage, one()).await), [(0, "a".into(), 3, 3, 1)]);
    let closing = given(&*stage, read("0", [(3, record(12, "a", 5))], None)).await;
    assert_eq!(rows(&closing), [(10, "a".into(), 1, 5, 1)], "partition 1 holds the first open");
    let closing = given(&*stage, read("1", [(2, record(13, "a", 5))], None)).await;
    assert_eq!(rows(&closing), [(0, "a".into(), 3, 3, 1), (10, "a".into(), 2, 10, 1)]);
    assert!(rows(&given(&*stage, one()).await).is_empty(), "its last row came out with another record");
}

#[tokio::test(start_paused = true)]
async fn records_that_make_no_sense_are_refused_alone() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({"max_open": 2})), root.path()).await;
    let far = format!(r#"{{"at":{}}}"#, courant_pipeline::clock::unix_millis() + 7_200_000);
    let mut batch = Batch::from(vec![
        Record::new(r#"{"chat":"a"}"#.to_owned()),
        Record::new(far),
        Record::new(json!({"at": BEGIN, "chat": "x".repeat(2000)}).to_string()),
        Record::new(json!({"at": BEGIN, "x": "1"}).to_string()),
        record(1, "a", 1),
        record(1, "b", 1),
        record(1, "c", 1),
        record(2, "a", 1),
    ]);
    stage.process(&mut batch).await.unwrap();
    let said = fates(&batch);
    let expected = [
        "reject: read the time: it is neither",
        "reject: read the time: it is further ahead",
        "reject: group the record",
        "reject: measure `sum`: the value is not a number",
        "finished",
        "finished",
        "reject: open a window: 2 windows are open",
        "finished",
    ];
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_windows_come_out_with_several_records_and_leave_nothing_behind() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({"id": "[.at, .chat]"})), root.path()).await;
    let many = (0..2500).map(|chat| record(1, &chat.to_string(), 1));
    given(&*stage, read("0", numbered(many), None)).await;
    let mut out = 0;
    for at in 0..4 {
        out +=
            rows(&given(&*stage, read("0", [(3000 + at, record(20, "z", 1))], Some(2900 + at))).await).len();
    }
    assert_eq!(out, 2500);
    given(&*stage, read("0", [(4000, record(20, "z", 1))], Some(3999))).await;
    stage.close().await.unwrap();
    drop(stage);
    let store = StateStore::open(&folder(&SPEC, root.path())).unwrap();
    let left: Vec<_> =
        store.range(b"a".to_vec()..=b"z".to_vec()).map(|pair| char::from(pair.unwrap().0[0])).collect();
    let of = |kind: char| left.iter().filter(|found| **found == kind).count();
    assert_eq!((of('w'), of('e')), (1, 0));
    assert_eq!(of('v'), 2, "one id and one value of the open window");
}

#[test]
fn what_comes_before_it_has_one_lane() {
    let load = |more: &str| {
        let loader = courant_pipeline::config::Loader::new(crate::registry(), Services::default());
        let window =
            "{ kind = 'window', params = { size = '1s', time = '.', aggregates = { n = 'count' } } }";
        let filter = format!("{{ kind = 'filter', {more} params = {{ expr = '.' }} }}");
        let aside = "{ kind = 'stdout', input = 'filter', lanes = 4 }";
        let text = format!(
            "[[pipeline]]\nname = 'p'\nstage = [{{ kind = 'generate' }}, {filter}, {window}, {{ kind = 'blackhole' }}, {aside}]"
        );
        let loaded = loader.load_str("pipelines.toml", &text, []).map_err(|found| found.to_string())?;
        let lanes = loaded.topologies[0].stages.iter().map(|stage| stage.policy.lanes);
        Ok::<_, String>(lanes.skip(1).collect::<Vec<_>>())
    };
    assert_eq!(load(""), Ok(vec![Some(1), Some(1), None, Some(4)]));
    let said = load("lanes = 2,").unwrap_err();
    assert!(
        said.contains("stage `filter` works in one lane") && said.contains("leave `lanes` out"),
        "{said}"
    );
}

#[test]
fn wrong_parameters_are_refused_where_they_stand() {
    let key = |more| problem(&SPEC, params(more)).key;
    assert_eq!(key(json!({"size": "0s"})), "size");
    assert_eq!(key(json!({"hop": "11s"})), "hop");
    assert_eq!(key(json!({"size": "1h", "hop": "1ms"})), "hop");
    assert_eq!(key(json!({"aggregates": {}})), "aggregates");
    assert_eq!(key(json!({"aggregates": {"window_end": "count"}})), "aggregates.window_end");
    assert_eq!(key(json!({"aggregates": {"chat": "count"}})), "aggregates.chat");
    assert_eq!(key(json!({"aggregates": {"n": {"sum": "("}}})), "aggregates.n.sum");
    assert_eq!(key(json!({"time": "("})), "time");
    assert_eq!(key(json!({"group_by": {"chat": "("}})), "group_by.chat");
    assert!(problem(&SPEC, params(json!({"aggregates": {"n": "average"}}))).message.contains("average"));
}

/// What should come out of records that are not late: by window and chat, their number, sum and different values.
fn model(records: &[(u64, u8, i64)]) -> Vec<(u64, String, u64, i64, u64)> {
    let mut windows: BTreeMap<(u64, String), Vec<i64>> = BTreeMap::new();
    for (second, chat, x) in records {
        windows.entry((second - second % 10, chat.to_string())).or_default().push(*x);
    }
    let total = |((start, chat), values): ((u64, String), Vec<i64>)| {
        let different: std::collections::BTreeSet<_> = values.iter().collect();
        (start, chat, values.len() as u64, values.iter().sum(), different.len() as u64)
    };
    windows.into_iter().map(total).collect()
}

/// Feeds two partitions, with crashes that go back to the last commit; the last row of each window.
async fn live(
    root: &Path,
    records: &[(u64, u8, i64)],
    steps: &[(usize, bool)],
) -> Vec<(u64, String, u64, i64, u64)> {
    let partitions: Vec<Vec<(u64, Record)>> = (0..2)
        .map(|partition| {
            let own = records.iter().enumerate().filter(|(index, _)| index % 2 == partition);
            let own = own.map(|(_, (second, chat, x))| record(*second, &chat.to_string(), *x));
            // every partition is heard of before time goes on, and the last record closes everything
            let own = std::iter::once(record(5, "begin", 0)).chain(own).chain([record(500, "end", 0)]);
            numbered(own).collect()
        })
        .collect();
    let mut came: BTreeMap<(u64, String), (u64, i64, u64)> = BTreeMap::new();
    let (mut next, mut committed) = ([1, 1], [1, 1]);
    let mut stage = open(&SPEC, params(json!({"lateness": "30s"})), root).await;
    for (partition, all) in partitions.iter().enumerate() {
        given(&*stage, read(&partition.to_string(), all[..1].to_vec(), None)).await;
    }
    let mut steps = steps.iter().copied().chain(std::iter::repeat((3, false)));
    while next.iter().zip(&partitions).any(|(next, all)| *next < all.len()) {
        let (size, crash) = steps.next().unwrap();
        for (partition, all) in partitions.iter().enumerate() {
            let upto = (next[partition] + size).min(all.len());
            let slice = all[next[partition]..upto].to_vec();
            let batch =
                given(&*stage, read(&partition.to_string(), slice, Some(committed[partition] as u64))).await;
            assert!(!fates(&batch).contains(&"dropped: late".to_owned()), "{batch:?}");
            if !crash {
                for (start, chat, n, sum, users) in rows(&batch) {
                    let before = came.insert((start, chat), (n, sum, users));
                    assert!(
                        before.is_none_or(|before| before == (n, sum, users)),
                        "rows of a window are all the same"
                    );
                }
                (next[partition], committed[partition]) = (upto, upto);
            }
        }
        if crash {
            // what it did is on disk, what came out is lost, and reading begins again where it was committed
            next = committed;
            drop(stage);
            stage = open(&SPEC, params(json!({"lateness": "30s"})), root).await;
        }
    }
    let row = |((start, chat), (n, sum, users))| (start, chat, n, sum, users);
    came.into_iter().map(row).filter(|(_, chat, ..)| !["begin", "end"].contains(&chat.as_str())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Records in an order that lateness allows, in two partitions, with crashes between state and acknowledgement: the
    /// rows are those that counting them directly gives.
    #[test]
    fn rows_are_what_counting_gives(
        records in prop::collection::vec((0u64..25, 0u8..4, -3i64..4), 2..60),
        steps in prop::collection::vec((1usize..8, any::<bool>()), 0..12),
    ) {
        // time goes on by half a second a record, and each may be up to 25 seconds behind
        let records: Vec<_> = records
            .into_iter()
            .enumerate()
            .map(|(index, (behind, chat, x))| (30 + index as u64 / 2 - behind, chat, x))
            .collect();
        let root = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let rows = runtime.block_on(live(root.path(), &records, &steps));
        prop_assert_eq!(rows, model(&records));
    }
}
