use std::collections::BTreeMap;
use std::path::PathBuf;

use courant_pipeline::config::Loader;
use courant_pipeline::spec::Part;
use courant_pipeline::{Fate, Payload, Services};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::origins::{built, folder, open, read};
use crate::testing::{batch, fates, problem};

fn params(mut more: Value) -> Value {
    let columns = json!([
        {"name": "id", "type": "string"},
        {"name": "n", "type": "int64"},
        {"name": "share", "type": "double", "from": ".n / 4", "optional": true},
        {"name": "open", "type": "bool", "optional": true},
        {"name": "at", "type": "timestamp", "from": ".created_at", "optional": true},
    ]);
    let mut all = json!({"columns": columns});
    all.as_object_mut().unwrap().append(more.as_object_mut().unwrap());
    all
}

fn record(id: &str, n: i64) -> Record {
    Record::new(json!({"id": id, "n": n, "created_at": "2026-01-30T14:30:00.000Z"}).to_string())
}

/// Every entry of the table: its key and version.
fn entries(more: Value, root: &Path) -> Vec<Entry> {
    let derived = built(&SPEC, params(more), root).derives.expect("the table has a key");
    let mut found = Vec::new();
    derived.walk(&folder(&SPEC, root), &mut |entry| found.push(entry)).unwrap();
    found.sort_by(|one, two| one.key.cmp(&two.key));
    found
}

/// How often each `id`, `n` is in the table.
fn rows(root: &Path) -> BTreeMap<(String, i64), u32> {
    let columns: Config = serde_json::from_value(params(json!({}))).unwrap();
    let columns = Columns::new(columns.columns, &[], None, None).unwrap();
    let mut rows = BTreeMap::new();
    walk(&folder(&SPEC, root), columns.schema(), &mut |row| {
        use courant_connectors::files::parquet::Cell;
        let (Some(Cell::Text(id)), Some(Cell::Int(n))) = (&row[0], &row[1]) else { panic!("{row:?}") };
        *rows.entry((id.to_string(), *n)).or_default() += 1;
    })
    .unwrap();
    rows
}

#[tokio::test]
async fn a_record_that_does_not_fit_is_refused_alone() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({})), root.path()).await;
    let mut batch = batch(&[
        r#"{"id":"a","n":1,"created_at":1000}"#,
        r#"{"id":7,"n":1}"#,
        r#"{"id":"b","n":1.5}"#,
        r#"{"n":1}"#,
        r#"{"id":"c","n":2.0,"open":"yes"}"#,
        r#"{"id":"d","n":2.0,"created_at":"soon"}"#,
        "{",
        r#"{"id":"e","n":3.0}"#,
    ]);
    stage.process(&mut batch).await.unwrap();
    let said = fates(&batch);
    let expected = [
        "",
        "fill column `id`: it is not text",
        "fill column `n`: it is not a whole number",
        "fill column `id`: the record does not have it",
        "fill column `open`: it is not true or false",
        "fill column `at`: 'soon' is not a time",
        "read the payload as JSON",
        "",
    ];
    for (said, expected) in said.iter().zip(expected).filter(|(_, expected)| !expected.is_empty()) {
        assert!(said.starts_with(&format!("reject: {expected}")), "{said}");
    }
    assert_eq!(rows(root.path()).into_keys().collect::<Vec<_>>(), [("a".into(), 1), ("e".into(), 3)]);
}

/// The stage is dropped without closing, as by a crash after the write and before the commit, and built anew.
#[tokio::test]
async fn what_is_read_again_after_a_crash_is_written_once() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({})), root.path()).await;
    let first = || read("0", [(1, record("a", 1)), (2, record("b", 2))], None);
    stage.process(&mut first()).await.unwrap();
    drop(stage);
    let stage = open(&SPEC, params(json!({})), root.path()).await;
    let mut again = read("0", [(1, record("a", 1)), (2, record("b", 2)), (3, record("c", 3))], None);
    stage.process(&mut again).await.unwrap();
    assert_eq!(fates(&again)[..2], ["dropped: already-written"; 2]);
    assert!(matches!(again.slots()[2].fate(), Fate::Forward));
    // another partition's positions are its own
    stage.process(&mut read("1", [(1, record("d", 4))], None)).await.unwrap();
    assert_eq!(rows(root.path()).values().copied().collect::<Vec<_>>(), [1; 4]);
}

#[tokio::test]
async fn a_write_that_failed_is_looked_at_before_the_next() {
    let root = tempfile::tempdir().unwrap();
    let stage = open(&SPEC, params(json!({})), root.path()).await;
    stage.process(&mut read("0", [(1, record("a", 1))], None)).await.unwrap();
    // a file of the table cannot be taken over
    let file = folder(&SPEC, root.path()).join("snapshot-0000000001/part-0000000001-00000.parquet");
    let hidden = root.path().join("hidden");
    std::fs::rename(&file, &hidden).unwrap();
    let mut failing = read("0", [(2, record("b", 2))], None);
    let error = stage.process(&mut failing).await.unwrap_err();
    assert_eq!(error.class, courant_pipeline::Class::Retry, "{error}");
    std::fs::rename(&hidden, &file).unwrap();
    stage.process(&mut failing).await.unwrap();
    stage.process(&mut read("0", [(1, record("a", 1)), (2, record("b", 2))], None)).await.unwrap();
    assert_eq!(rows(root.path()).values().copied().collect::<Vec<_>>(), [1; 2]);
}

#[tokio::test]
async fn a_redrive_beside_the_pipeline_writes_the_same_table() {
    let root = tempfile::tempdir().unwrap();
    let (live, redrive) = (
        open(&SPEC, params(json!({})), root.path()).await,
        open(&SPEC, params(json!({})), root.path()).await,
    );
    for n in 0..5 {
        live.process(&mut read("0", [(n + 1, record("live", 1))], None)).await.unwrap();
        redrive.process(&mut Batch::from(vec![record("again", 1)])).await.unwrap();
    }
    assert_eq!(rows(root.path()).values().copied().collect::<Vec<_>>(), [5; 2]);
}

#[tokio::test]
async fn the_table_is_what_a_rebuild_expects_of_it() {
    let root = tempfile::tempdir().unwrap();
    let keyed = json!({"key": ["id"], "version": "n", "time": "at"});
    let stage = open(&SPEC, params(keyed.clone()), root.path()).await;
    stage.process(&mut Batch::from(vec![record("a", 1), record("b", -1), record("a", 3)])).await.unwrap();
    stage.process(&mut Batch::from(vec![record("a", 2), record("b", 0)])).await.unwrap();
    let derived = built(&SPEC, params(keyed.clone()), root.path()).derives.unwrap();
    let expected = |id, n| derived.expected(&record(id, n)).unwrap().unwrap();
    assert_eq!(entries(keyed, root.path()), [expected("a", 3), expected("b", 0)]);
    assert_eq!(expected("a", 1).at, 1_769_783_400_000);
    assert!(expected("a", -1).version < expected("a", 0).version);
    assert_ne!(expected("a", 1).digest, expected("a", 2).digest);
    assert!(derived.expected(&Record::new(Payload::from_static("{}"))).is_err());
    assert!(
        built(&SPEC, params(json!({})), root.path()).derives.is_none(),
        "rows without a key cannot be compared"
    );
}

#[test]
fn wrong_parameters_are_refused_where_they_stand() {
    let key = |params| problem(&SPEC, params).key;
    assert_eq!(key(json!({"columns": []})), "columns");
    assert_eq!(key(json!({"columns": [{"name": "a b", "type": "bool"}]})), "columns");
    assert_eq!(key(json!({"columns": [{"name": "a", "type": "bool", "from": "("}]})), "columns.0.from");
    assert_eq!(key(params(json!({"key": ["nope"]}))), "key");
    assert_eq!(key(params(json!({"key": ["share"]}))), "key");
    assert_eq!(key(params(json!({"key": ["id"], "version": "share"}))), "version");
    assert_eq!(key(params(json!({"version": "n"}))), "version");
    assert_eq!(key(params(json!({"time": "n"}))), "time");
    assert!(problem(&SPEC, json!({"columns": [{"name": "a", "type": "date"}]})).message.contains("date"));
}

#[test]
fn batches_are_large_and_lanes_one_unless_the_file_says_so() {
    let load = |more: &str| {
        let loader = Loader::new(crate::registry(), Services::default());
        let stage = format!(
            "{{ kind = 'parquet-write', {more} params = {{ columns = [{{ name = 'n', type = 'int64' }}] }} }}"
        );
        let text = format!("[[pipeline]]\nname = 'p'\nstage = [{{ kind = 'generate' }}, {stage}]");
        let loaded = loader.load_str("pipelines.toml", &text, []).map_err(|found| found.to_string())?;
        Ok::<_, String>(loaded.topologies[0].stages[1].policy.clone())
    };
    let policy = load("").unwrap();
    assert_eq!((policy.batch, policy.lanes), (GATHERS, Some(1)));
    assert_eq!(load("batch = { records = 7 },").unwrap().batch.records.get(), 7);
    assert!(load("lanes = 1,").is_ok());
    let said = load("lanes = 4,").unwrap_err();
    assert!(
        said.contains("stage `parquet-write` works in one lane") && said.contains("leave `lanes` out"),
        "{said}"
    );
}

/// One life of the stage: how many records it is given at a time, and whether it ends before they are committed.
#[derive(Debug, Clone)]
struct Life {
    sizes: Vec<usize>,
    commits: bool,
}

fn life() -> impl Strategy<Value = Life> {
    (prop::collection::vec(1usize..9, 1..4), any::<bool>())
        .prop_map(|(sizes, commits)| Life { sizes, commits })
}

async fn live(root: PathBuf, lives: Vec<Life>) -> Result<(), TestCaseError> {
    let mut committed = 0u64;
    let mut furthest = 0u64;
    for Life { sizes, commits } in lives {
        let Part::Stage(stage) = built(&SPEC, params(json!({})), &root).part else { unreachable!() };
        stage.open().await.unwrap();
        let mut next = committed;
        for size in sizes {
            let upto = next + size as u64;
            // later keys pass earlier ones that wait
            let records = (next + 1..=upto).rev().map(|at| (at, record(&at.to_string(), 1)));
            stage.process(&mut read("0", records, Some(committed))).await.unwrap();
            next = upto;
        }
        furthest = furthest.max(next);
        if commits {
            committed = next;
        }
    }
    let rows = rows(&root);
    let expected: BTreeMap<_, _> = (1..=furthest).map(|at| ((at.to_string(), 1), 1)).collect();
    prop_assert_eq!(rows, expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However often the stage dies before its source commits, every record is one row.
    #[test]
    fn every_record_is_one_row(lives in prop::collection::vec(life(), 1..6)) {
        let root = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(live(root.path().to_owned(), lives))?;
    }
}
