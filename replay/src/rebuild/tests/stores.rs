//! The shipped search and analytics, made from every start: the stores themselves are the same, and as they should be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::files::parquet::{self, Cell, Column, Schema, Type};
use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages::Message;
use courant_connectors::model::topics::messages_persisted;
use courant_connectors::search::{self, Ask, IndexOptions, IndexWriter, MEMORY_PER_THREAD, Query};
use courant_pipeline::clock;
use courant_pipeline::runtime::Runtime;

use super::world::{Rows, World};
use crate::rebuild::{At, From, Receipt, Request, State, To};

const SEARCH: &str = include_str!("../../../../examples/search.toml");
const ANALYTICS: &str = include_str!("../../../../examples/analytics.toml");
/// Windows that overlap, into a table; what the examples have not.
const HOPPING: &str = r#"
[[pipeline]]
name = "hopping"
[[pipeline.stage]]
kind = "kafka-consume"
params = { topics = ["messages.persisted"] }
[[pipeline.stage]]
kind = "window"
params = { size = "10m", hop = "5m", time = ".event_time", id = ".event_id", emit = "updates", lateness = "2h", aggregates = { messages = "count" } }
[[pipeline.stage]]
kind = "table"
params = { key = ".window_start", at = ".window_start" }
"#;
const PIPELINES: [&str; 4] = ["search", "messages-per-minute", "active-users", "hopping"];

/// Few, so that some minutes of a chat have several messages.
const CHATS: u64 = 3;
const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

async fn world() -> World {
    let pipelines = [SEARCH, ANALYTICS].map(|example| {
        let from = example.find("[[pipeline]]").unwrap();
        &example[from..example.find("[[test]]").unwrap()]
    });
    // Rows are there at once, and not after half a minute.
    let pipelines =
        pipelines.concat().replace("name = \"table\"\n", "name = \"table\"\nbatch = { wait = '50ms' }\n");
    World::with(&[&pipelines, HOPPING].concat()).await
}

/// Messages of half an hour that began so long ago, as the log heard of them: some late, some twice.
async fn half_an_hour(world: &World, ago: u64, count: u64) -> Vec<Message> {
    let began = clock::unix_millis() - ago;
    let apart = HOUR / 2 / count;
    let messages: Vec<Message> = (0..count)
        .map(|n| {
            let mut message =
                world.message_of(n / 3 % CHATS, &format!("word{} of {ago}", n % 3), began + n * apart);
            message.sender_id = format!("user_{}", n % 4).as_str().into();
            message
        })
        .collect();
    world.store(&messages).await;
    let mut late: Vec<Message> = Vec::new();
    for (n, message) in messages.iter().enumerate() {
        let at = clock::unix_millis() - message.created_at.unix_millis();
        world.go_back(Duration::from_millis(at)).await;
        if n % 10 == 3 {
            late.push(message.clone());
            continue;
        }
        world.publish(std::slice::from_ref(message)).await;
        match n % 10 {
            5 => world.publish(&std::mem::take(&mut late)).await,
            7 => world.publish(&messages[n - 2..n]).await, // again
            _ => {}
        }
    }
    world.publish(&late).await;
    messages
}

/// What a generation of each of the pipelines holds.
#[derive(Debug)]
struct Stores {
    /// By chat and sequence: what it says, and who said it when.
    search: BTreeMap<(String, u64), (String, String, Timestamp)>,
    /// How many messages are found by a word.
    found: usize,
    minutes: BTreeSet<Vec<String>>,
    days: BTreeSet<Vec<String>>,
    hopping: Rows,
}

impl Stores {
    fn read(world: &World, generations: &[String; 4]) -> Self {
        let folder = |at: usize, stage: &str| world.folder_of(PIPELINES[at], &generations[at], stage);
        let text = |name: &str| column(name, Type::String);
        let (int, time) =
            (|name: &str| column(name, Type::Int64), |name: &str| column(name, Type::Timestamp));
        let minutes = ["messages", "senders", "characters"].map(int);
        let minutes = [time("window_start"), text("chat_id")].into_iter().chain(minutes).collect();
        let days = vec![time("day"), int("users"), int("messages")];
        let (index, hopping) = (folder(0, "search-index"), folder(3, "table"));
        Self {
            search: indexed(&index),
            found: found(&index, "word1"),
            minutes: rows(&folder(1, "table"), minutes, &["window_start", "chat_id"]),
            days: rows(&folder(2, "table"), days, &["day"]),
            hopping: World::rows_in(&hopping),
        }
    }

    #[track_caller]
    fn assert_is(&self, expected: &Self, from: &From) {
        assert_eq!(self.search, expected.search, "{from}");
        assert_eq!(self.found, expected.found, "{from}");
        assert_eq!(self.minutes, expected.minutes, "{from}");
        assert_eq!(self.days, expected.days, "{from}");
        assert_eq!(self.hopping, expected.hopping, "{from}");
    }

    /// Counted without any of the code that is tested.
    fn of(messages: &[Message]) -> Self {
        let said = |message: &Message| {
            let key = (message.chat_id.to_string(), message.sequence);
            (key, (message.content.to_string(), message.sender_id.to_string(), message.created_at))
        };
        Self {
            search: messages.iter().map(said).collect(),
            found: messages.iter().filter(|message| message.content.starts_with("word1")).count(),
            minutes: minutes(messages),
            days: days(messages),
            hopping: hopping(messages),
        }
    }
}

/// By what is asked of a message: those that are the same there.
fn grouped<K: Ord>(messages: &[Message], by: impl Fn(&Message, u64) -> K) -> BTreeMap<K, Vec<&Message>> {
    let mut groups: BTreeMap<K, Vec<&Message>> = BTreeMap::new();
    for message in messages {
        groups.entry(by(message, message.created_at.unix_millis())).or_default().push(message);
    }
    groups
}

fn senders(messages: &[&Message]) -> usize {
    messages.iter().map(|message| message.sender_id.as_str()).collect::<BTreeSet<_>>().len()
}

/// Those that are over, by half a minute, when the latest message came.
fn minutes(messages: &[Message]) -> BTreeSet<Vec<String>> {
    let latest = messages.iter().map(|message| message.created_at.unix_millis()).max().unwrap();
    let mut minutes = grouped(messages, |message, at| (at - at % MINUTE, message.chat_id.to_string()));
    minutes.retain(|(start, _), _| start + MINUTE + 30 * SECOND <= latest);
    let row = |((start, chat), messages): ((u64, String), Vec<&Message>)| {
        let characters: usize = messages.iter().map(|message| message.content.chars().count()).sum();
        let numbers = [messages.len(), senders(&messages), characters].map(|number| number.to_string());
        [start.to_string(), chat].into_iter().chain(numbers).collect()
    };
    minutes.into_iter().map(row).collect()
}

fn days(messages: &[Message]) -> BTreeSet<Vec<String>> {
    let row = |(day, messages): (u64, Vec<&Message>)| {
        vec![day.to_string(), senders(&messages).to_string(), messages.len().to_string()]
    };
    grouped(messages, |_, at| at - at % DAY).into_iter().map(row).collect()
}

/// Ten minutes, from every fifth minute on.
fn hopping(messages: &[Message]) -> Rows {
    let mut windows: BTreeMap<u64, usize> = BTreeMap::new();
    for (half, messages) in grouped(messages, |_, at| at - at % (5 * MINUTE)) {
        *windows.entry(half).or_default() += messages.len();
        *windows.entry(half - 5 * MINUTE).or_default() += messages.len();
    }
    let time = |at: u64| Timestamp::from_unix_millis(at).to_string();
    let row = |(start, count): (u64, usize)| {
        let (from, to) = (time(start), time(start + 10 * MINUTE));
        let row = format!(r#"{{"window_start":"{from}","window_end":"{to}","messages":{count}}}"#);
        (from, (0, row))
    };
    windows.into_iter().map(row).collect()
}

fn column(name: &str, kind: Type) -> Column {
    Column { name: name.to_owned(), kind, optional: false }
}

fn rows(folder: &Path, columns: Vec<Column>, key: &[&str]) -> BTreeSet<Vec<String>> {
    let key: Vec<String> = key.iter().map(|name| (*name).to_owned()).collect();
    let schema = Arc::new(Schema::new(columns, &key, None).unwrap());
    let mut rows = Vec::new();
    parquet::walk(folder, &schema, &mut |row| {
        let cells = row.into_iter().map(|cell| match cell.unwrap() {
            Cell::Text(text) => text.into_string(),
            Cell::Int(number) => number.to_string(),
            other => panic!("{other:?}"),
        });
        rows.push(cells.collect::<Vec<_>>());
    })
    .unwrap();
    let count = rows.len();
    let rows: BTreeSet<_> = rows.into_iter().collect();
    assert_eq!(rows.len(), count, "no row is there twice");
    rows
}

fn indexed(folder: &Path) -> BTreeMap<(String, u64), (String, String, Timestamp)> {
    let (mut all, mut count) = (BTreeMap::new(), 0);
    search::walk(folder, |message| {
        count += 1;
        let said = (message.content.to_string(), message.sender_id.to_string(), message.created_at);
        all.insert((message.chat_id.to_string(), message.sequence), said);
    })
    .unwrap();
    assert_eq!(all.len(), count, "no message is there twice");
    all
}

fn found(folder: &Path, word: &str) -> usize {
    let writer = IndexWriter::open(folder, IndexOptions { threads: 1, memory: MEMORY_PER_THREAD }).unwrap();
    let ask = Ask {
        query: Query::parse(word).unwrap(),
        chats: (0..CHATS).map(|n| format!("chat_{n}").as_str().into()).collect(),
        before: None,
        after: None,
        limit: 10_000,
        patience: Duration::from_secs(60),
    };
    writer.reader().ask(&ask).unwrap().hits.len()
}

/// Rebuilds all of them from a start; what was made, and by which generations.
async fn rebuilt(world: &World, from: &From, scanned: bool) -> Stores {
    let mut generations: [String; 4] = Default::default();
    for (pipeline, generation) in PIPELINES.into_iter().zip(&mut generations) {
        let request = Request { grace: Duration::ZERO, ..Request::new(pipeline, from.clone(), To::Now) };
        let receipt: Receipt = world.engine(None).start(request).await.unwrap();
        assert_eq!(receipt.state, State::Equal, "{pipeline} from {from}: {:?}", receipt.comparison);
        assert_eq!(receipt.scanned, scanned, "{pipeline} from {from}");
        *generation = receipt.generation;
    }
    Stores::read(world, &generations)
}

/// Where partitions are when the log is so old; different offsets for different partitions.
async fn offsets_at(world: &World, ago: u64) -> At {
    let (topic, time) = (messages_persisted::NAME.into(), clock::now() - Duration::from_millis(ago));
    let found = world.connected.log.offsets_at(&topic, time).await.unwrap();
    At::Named(found.into_iter().map(|(partition, offset)| (partition.to_string(), offset)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn search_and_analytics_are_the_same_from_every_start() {
    let world = world().await;
    let mut messages = half_an_hour(&world, 2 * DAY, 60).await;
    messages.extend(half_an_hour(&world, 3 * HOUR, 60).await);
    messages.extend(half_an_hour(&world, HOUR, 60).await);
    world.go_back(Duration::ZERO).await;
    let expected = Stores::of(&messages);
    assert!((90..180).contains(&expected.minutes.len()) && expected.found == 60, "{expected:?}");

    rebuilt(&world, &From::Oldest, false).await.assert_is(&expected, &From::Oldest);
    let ago = |ago: u64| Timestamp::from_unix_millis(clock::unix_millis() - ago);
    let in_the_middle = From::Time(ago(3 * HOUR - 15 * MINUTE));
    for from in [From::Scan, in_the_middle, From::Offset(offsets_at(&world, HOUR - 15 * MINUTE).await)] {
        rebuilt(&world, &from, true).await.assert_is(&expected, &from);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn search_and_analytics_are_the_same_where_retention_has_dropped_the_beginning() {
    let world = world().await;
    let mut messages = half_an_hour(&world, 8 * DAY, 60).await;
    // The end of this half an hour is what the log begins with.
    messages.extend(half_an_hour(&world, 7 * DAY + 15 * MINUTE, 60).await);
    messages.extend(half_an_hour(&world, HOUR, 60).await);
    world.go_back(Duration::ZERO).await;
    // It loses no more while it is read.
    world.go_back(Duration::from_secs(600)).await;
    let marks = world.connected.log.watermarks(&messages_persisted::NAME.into()).await.unwrap();
    let (low, high) = marks.iter().fold((0, 0), |sum, marks| (sum.0 + marks.low, sum.1 + marks.high));
    assert!(low > 60 && high - low > 60 && high > 180, "{low} of {high} are lost");
    let expected = Stores::of(&messages);

    let ago = |ago: u64| Timestamp::from_unix_millis(clock::unix_millis() - ago);
    for from in [
        From::Oldest,
        From::Scan,
        From::Time(ago(HOUR - 15 * MINUTE)),
        From::Offset(offsets_at(&world, HOUR - 20 * MINUTE).await),
    ] {
        rebuilt(&world, &from, true).await.assert_is(&expected, &from);
    }
}

async fn settled(world: &World, runtime: &Runtime) {
    for pipeline in PIPELINES {
        world.settled_of(pipeline, runtime).await;
    }
}

/// An index, files and a table with what they count: what is put in place goes on where the other was, and so does what
/// is taken back. Minutes are left out: live they close with the clock.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_store_goes_live_and_back() {
    let world = world().await;
    let mut messages = half_an_hour(&world, HOUR, 60).await;
    world.go_back(Duration::ZERO).await;
    let runtime = world.live().await;
    settled(&world, &runtime).await;
    let (mut before, mut rebuilt): ([String; 4], [String; 4]) = Default::default();
    for (at, pipeline) in PIPELINES.into_iter().enumerate() {
        let request = Request { grace: Duration::ZERO, ..Request::new(pipeline, From::Scan, To::Live) };
        let receipt = world.engine(Some(&runtime)).start(request).await.unwrap();
        assert_eq!(receipt.state, State::Live, "{pipeline}: {:?}", receipt.comparison);
        (before[at], rebuilt[at]) = (receipt.replaced.unwrap(), receipt.generation);
    }
    messages.extend(world.send(30).await);
    settled(&world, &runtime).await;
    for pipeline in PIPELINES {
        world.engine(Some(&runtime)).rollback(pipeline).await.unwrap();
    }
    messages.extend(world.send(20).await);
    settled(&world, &runtime).await;
    runtime.drain().await;
    let check = |generations: &[String; 4], messages: &[Message]| {
        let expected = Stores::of(messages);
        let minutes = expected.minutes.clone();
        Stores { minutes, ..Stores::read(&world, generations) }.assert_is(&expected, &From::Scan);
    };
    check(&before, &messages);

    let runtime = world.live().await;
    for pipeline in PIPELINES {
        world.engine(Some(&runtime)).approve(pipeline).await.unwrap();
    }
    messages.extend(world.send(20).await);
    settled(&world, &runtime).await;
    runtime.drain().await;
    check(&rebuilt, &messages);
}
