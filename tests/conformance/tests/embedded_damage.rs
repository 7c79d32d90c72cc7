//! Damaged files of the embedded engine: what was not finished is discarded and said, what was is never wrong.
//!
//! Rows and records are written one after another, so that every state the folder may come back in is the beginning of
//! that list. Then files are cut and bits flipped, and all that can be read is compared.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use courant_connectors::embedded::{Engine, OpenError, Options};
use courant_connectors::log::{
    AdminLog, Fetch, LogError, NewRecord, ReadLog, Retention, Topic, TopicPartition, TopicSpec, WriteLog,
};
use courant_connectors::store::{
    AdminStore, Capacity, Consistency, Durability, IndexSchema, Item, KeyAttribute, Name, Projection, Query,
    ReadStore, Returning, Scan, ScanStore, Segment, StoreError, Stream, TableSchema, Write, WriteStore,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};

const STEPS: u64 = 24;
/// A journal is made this long before it is written to.
const PREALLOCATED: u64 = 64 << 20;

/// Warnings of all tests of this file; each looks for its own folder.
static WARNINGS: LazyLock<Mutex<Vec<String>>> = LazyLock::new(|| {
    // opening happens on another thread, so it cannot be for one test alone
    tracing::subscriber::set_global_default(Warnings).unwrap();
    Mutex::default()
});

struct Warnings;

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        struct Words(String);
        impl Visit for Words {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut words = Words(String::new());
        event.record(&mut words);
        WARNINGS.lock().unwrap().push(words.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn was_said(folder: &Path) -> bool {
    let folder = folder.display().to_string();
    WARNINGS
        .lock()
        .unwrap()
        .iter()
        .any(|warning| warning.contains(&folder) && warning.contains("not finished"))
}

fn schema() -> TableSchema {
    TableSchema {
        name: Name::new_static("items"),
        partition: KeyAttribute::text("id"),
        sort: None,
        indexes: vec![IndexSchema {
            name: Name::new_static("by-kind"),
            partition: KeyAttribute::text("kind"),
            sort: Some(KeyAttribute::number("step")),
            projection: Projection::All,
        }]
        .into(),
        ttl: None,
        stream: Stream::OldAndNewImages,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

fn item(step: u64) -> Item {
    let text = format!("payload of {step} ").repeat(usize::try_from(step).unwrap() % 5 + 1);
    Item::new().with("id", format!("id-{step:03}")).with("kind", "k").with("step", step).with("text", text)
}

/// Some are large enough to be kept apart from the others.
fn payload(step: u64) -> String {
    let fill = if step % 4 == 1 { 6000 } else { 10 };
    format!("record {step} {}", "x".repeat(fill))
}

/// Even steps write a row, odd ones a record.
async fn write(engine: &Engine, step: u64) {
    if step.is_multiple_of(2) {
        let put = Write::put("items", item(step));
        engine.write(put, Returning::Nothing, Durability::Synced).await.unwrap();
    } else {
        let record = NewRecord { payload: payload(step).into(), ..NewRecord::default() };
        engine.produce(&Topic::from("events"), vec![record]).await.remove(0).unwrap();
    }
}

/// What can be read, as steps; an error is one of damage.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    rows: Vec<u64>,
    in_index: Vec<u64>,
    records: Vec<u64>,
}

impl Found {
    fn after(steps: u64) -> Self {
        let rows: Vec<u64> = (0..steps).filter(|step| step.is_multiple_of(2)).collect();
        let records = (0..steps).filter(|step| !step.is_multiple_of(2)).collect();
        Self { in_index: rows.clone(), rows, records }
    }
}

fn steps_of(items: Vec<Item>) -> Vec<u64> {
    let steps = items.into_iter().map(|found| {
        let step = found.u64("step").unwrap();
        assert_eq!(found, item(step), "wrong data was served");
        step
    });
    let mut steps: Vec<u64> = steps.collect();
    steps.sort_unstable();
    steps
}

fn only_damage<T>(read: Result<T, StoreError>) -> Option<T> {
    match read {
        Ok(read) => Some(read),
        Err(StoreError::Damaged(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Everything, or `None` if something was refused as damaged.
async fn read(engine: &Engine) -> Option<Found> {
    let scan = Scan {
        table: "items".into(),
        segment: Segment::WHOLE,
        limit: None,
        start_after: None,
        consistency: Consistency::Strong,
    };
    let rows = steps_of(only_damage(engine.scan(scan).await)?.items);
    let mut query = Query::new("items", "kind", "k");
    query.index = Some("by-kind".into());
    let in_index = steps_of(only_damage(engine.query(query).await)?.items);
    let topic = Topic::from("events");
    let end = engine.watermarks(&topic).await.unwrap()[0].high;
    let start = BTreeMap::from([(TopicPartition::new(&topic, 0), 0)]);
    let mut reader = engine.read_from(start).await.unwrap();
    let mut records = Vec::new();
    while (records.len() as u64) < end {
        match reader.fetch(1000).await {
            Ok(Fetch::Records { records: fetched, .. }) => {
                records.extend(fetched.into_iter().map(|record| {
                    let text = String::from_utf8(record.payload.to_vec()).expect("wrong data was served");
                    let step = text.split(' ').nth(1).and_then(|step| step.parse::<u64>().ok());
                    assert_eq!(step.map(payload), Some(text), "wrong data was served");
                    step.unwrap()
                }));
            }
            Err(LogError::Damaged(_)) => return None,
            other => panic!("{other:?}"),
        }
    }
    Some(Found { rows, in_index, records })
}

/// A folder, and how long its journal was after each step.
struct Written {
    folder: TempDir,
    ends: Vec<u64>,
}

async fn prepare() -> Written {
    LazyLock::force(&WARNINGS);
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
    engine.create_table(&schema()).await.unwrap();
    let retention = Retention::default();
    let topic = TopicSpec { name: "events".into(), partitions: 1, retention, replication: 1 };
    engine.create_topic(&topic).await.unwrap();
    let mut ends = vec![journal(folder.path()).len() as u64];
    for step in 0..STEPS {
        write(&engine, step).await;
        ends.push(journal(folder.path()).len() as u64);
    }
    engine.close().await;
    Written { folder, ends }
}

/// What is written of the first journal.
fn journal(folder: &Path) -> Vec<u8> {
    /// More than is written here; the rest are zeros.
    const ENOUGH: u64 = 1 << 20;
    let mut bytes = Vec::new();
    fs::File::open(folder.join("0.jnl")).unwrap().take(ENOUGH).read_to_end(&mut bytes).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes[..end].to_vec()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// A copy of the folder with another journal, which is `length` bytes long with zeros at its end.
fn copy_with_journal(from: &Path, bytes: &[u8], length: Option<u64>) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in files(from) {
        let to = copy.path().join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        if file.extension().is_some_and(|extension| extension == "jnl") {
            fs::write(&to, bytes).unwrap();
            fs::OpenOptions::new()
                .write(true)
                .open(&to)
                .unwrap()
                .set_len(length.unwrap_or(bytes.len() as u64))
                .unwrap();
        } else {
            fs::copy(&file, &to).unwrap();
        }
    }
    copy
}

async fn open(folder: &Path) -> Result<Arc<Engine>, OpenError> {
    Engine::open(folder, Options::default()).await
}

fn assert_says_what_to_do(error: &OpenError, folder: &Path) {
    let message = error.to_string();
    assert!(message.contains(&folder.display().to_string()), "{message}");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert!(message.contains("courant data restore"), "{message}");
}

/// Cut anywhere, the journal holds exactly the steps that were whole, and goes on from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_journal_loses_exactly_the_unfinished_write() {
    let Written { folder, ends } = prepare().await;
    let whole = journal(folder.path());
    let end = |back: usize| usize::try_from(ends[ends.len() - back]).unwrap();
    // closely in the last two writes, which are small, and here and there in the large one before
    let cuts = (end(3)..=whole.len()).rev().step_by(13).chain((end(4)..end(3)).step_by(397));
    for (number, cut) in cuts.enumerate() {
        // as a process leaves it that made the journal, and one that opened it again
        let length = (number % 2 == 0).then_some(PREALLOCATED);
        let copy = copy_with_journal(folder.path(), &whole[..cut], length);
        let steps = ends.iter().skip(1).filter(|end| **end <= cut as u64).count() as u64;
        let engine = open(copy.path()).await.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!(read(&engine).await, Some(Found::after(steps)), "cut at {cut}");
        assert_eq!(was_said(copy.path()), !ends.contains(&(cut as u64)), "cut at {cut}");
        for step in steps..STEPS {
            write(&engine, step).await;
        }
        engine.close().await;
        drop(engine);
        let engine = open(copy.path()).await.unwrap();
        assert_eq!(read(&engine).await, Some(Found::after(STEPS)), "after the cut at {cut}, again");
    }
}

/// A loss of power can leave out a page in front of others that were written, in what was not yet synced, or a part of one.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_part_of_the_last_write_is_an_unfinished_write() {
    let Written { folder, .. } = prepare().await;
    let engine = open(folder.path()).await.unwrap();
    let large = item(STEPS).with("text", "x".repeat(40_000));
    engine.write(Write::put("items", large), Returning::Nothing, Durability::Synced).await.unwrap();
    engine.close().await;
    drop(engine);
    let whole = journal(folder.path());
    let pages = (whole.len() - 38_000..whole.len()).filter(|at| at.is_multiple_of(4096)).take(3);
    let parts = [0..4096, 0..512, 0..2048, 1536..2048, 3584..4096];
    for (page, part) in pages.flat_map(|page| parts.clone().map(|part| (page, part))) {
        let mut torn = whole.clone();
        torn[page + part.start..page + part.end].fill(0);
        let copy = copy_with_journal(folder.path(), &torn, None);
        let engine = open(copy.path()).await.unwrap();
        assert_eq!(read(&engine).await, Some(Found::after(STEPS)));
        assert!(was_said(copy.path()));
    }
}

/// What was whole and is not any more is refused, wherever the bit is; behind it are acknowledged writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_the_journal_is_never_served() {
    let Written { folder, ends } = prepare().await;
    let whole = journal(folder.path());
    let mut random = StdRng::seed_from_u64(7);
    let tail = usize::try_from(ends[ends.len() - 3]).unwrap();
    let mut refused = 0;
    for number in 0..150 {
        let from = if number % 2 == 0 { 0 } else { tail };
        let (byte, bit) = (random.random_range(from..whole.len()), random.random_range(0..8));
        let mut damaged = whole.clone();
        damaged[byte] ^= 1 << bit;
        let copy = copy_with_journal(folder.path(), &damaged, (number % 3 == 0).then_some(PREALLOCATED));
        match open(copy.path()).await {
            // a sequence that is another one and still in order changes nothing
            Ok(engine) => assert_eq!(read(&engine).await, Some(Found::after(STEPS)), "bit {bit} of {byte}"),
            Err(error) => {
                assert_says_what_to_do(&error, copy.path());
                assert_eq!(
                    journal(copy.path()),
                    damaged,
                    "what is refused stays as it is, for a person to look at"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 120, "only {refused} of 150");
}

/// Zeros that somebody wrote are no page that is missing, as long as they are not in the damaged write itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_front_of_zeros_is_refused() {
    let Written { folder, ends } = prepare().await;
    let engine = open(folder.path()).await.unwrap();
    let zeros = NewRecord { payload: vec![0; 20_000].into(), ..NewRecord::default() };
    engine.produce(&Topic::from("events"), vec![zeros]).await.remove(0).unwrap();
    engine.close().await;
    drop(engine);
    let whole = journal(folder.path());
    let end = |back: usize| usize::try_from(ends[ends.len() - back]).unwrap();
    // in the last write before the zeros: in its value, its checksum and its very end
    for byte in [usize::midpoint(end(2), end(1)), end(1) - 8, end(1) - 1] {
        let mut damaged = whole.clone();
        damaged[byte] ^= 2;
        let copy = copy_with_journal(folder.path(), &damaged, Some(PREALLOCATED));
        match open(copy.path()).await {
            Ok(_) => panic!("damage at {byte} was taken for a write that was not finished"),
            Err(error) => assert_says_what_to_do(&error, copy.path()),
        }
        assert_eq!(journal(copy.path()), damaged);
    }
}

/// Whatever file a bit is flipped in, what is read is right or refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_a_file_is_never_served() {
    const CASES: usize = 250;
    let Written { folder, .. } = prepare().await;
    let engine = open(folder.path()).await.unwrap();
    engine.compact(|_| ()).await.unwrap();
    engine.close().await;
    drop(engine);
    // everything is in files now, and is to be read from there
    let mut random = StdRng::seed_from_u64(11);
    let mut refused = 0;
    for _ in 0..CASES {
        let copy = copy_with_journal(folder.path(), &[], None);
        let with_bytes = |path: &PathBuf| fs::metadata(path).unwrap().len() > 0;
        let files: Vec<PathBuf> = files(copy.path()).into_iter().filter(with_bytes).collect();
        let file = &files[random.random_range(0..files.len())];
        let mut bytes = fs::read(file).unwrap();
        let (byte, bit) = (random.random_range(0..bytes.len()), random.random_range(0..8));
        bytes[byte] ^= 1 << bit;
        fs::write(file, &bytes).unwrap();
        let place =
            format!("bit {bit} of byte {byte} of {}", file.strip_prefix(copy.path()).unwrap().display());
        match open(copy.path()).await {
            Ok(engine) => match read(&engine).await {
                Some(found) => assert_eq!(found, Found::after(STEPS), "{place}"),
                None => refused += 1,
            },
            Err(OpenError::OtherVersion { .. }) => refused += 1,
            Err(error) => {
                assert!(matches!(error, OpenError::Damaged { .. }), "{place}: {error:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > CASES / 3, "only {refused} of {CASES}");
}
