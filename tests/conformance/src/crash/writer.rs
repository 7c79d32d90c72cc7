//! The process that writes until it is killed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::embedded::{Engine, Options};
use courant_connectors::log::{
    AdminLog, Fetch, NewRecord, ReadLog, StartAt, Subscription, Topic, TopicPartition, WriteLog,
};
use courant_connectors::store::{
    AdminStore, Condition, Consistency, Durability, Get, Item, Key, Name, ReadStore, Returning, Transaction,
    Update, Write, WriteStore,
};
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{GROUP, PAIRS, ROWS, TOPICS, Told, VERSIONS, clock_of, padding, row, row_id, tables, topics};

const ROW_TASKS: u32 = 6;
const PAIR_TASKS: u32 = 3;
const SENDERS: u32 = 4;

fn tell(told: &Told) {
    let mut line = serde_json::to_vec(told).expect("what is told is plain data");
    line.push(b'\n');
    // one write of less than a page, so that it is in the pipe as a whole or not at all
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).expect("the test reads until the end");
}

/// Writes as fast as it can, in every way the engine has, and tells what was acknowledged. Does not return.
pub async fn write_until_killed(folder: &Path, round: u64, seed: u64) {
    tell(&Told::Opening);
    let options = Options { clock: clock_of(round), ..Options::default() };
    let engine = Engine::open(folder, options).await.expect("the folder opens");
    for schema in tables() {
        engine.create_table(&schema).await.expect("tables can be made");
    }
    for spec in topics() {
        engine.create_topic(&spec).await.expect("topics can be made");
    }
    let random = |task: u64| StdRng::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(task));
    let mut tasks = Vec::new();
    for task in 0..ROW_TASKS {
        tasks.push(tokio::spawn(change_rows(Arc::clone(&engine), round, task, random(task.into()))));
    }
    for task in 0..PAIR_TASKS {
        tasks.push(tokio::spawn(change_pairs(
            Arc::clone(&engine),
            round,
            task,
            random(100 + u64::from(task)),
        )));
    }
    for sender in 0..SENDERS {
        tasks.push(tokio::spawn(append(Arc::clone(&engine), round, sender, random(200 + u64::from(sender)))));
    }
    tasks.push(tokio::spawn(consume(Arc::clone(&engine))));
    tasks.push(tokio::spawn(make_and_drop_tables(Arc::clone(&engine), round)));
    tasks.push(tokio::spawn(look_after(Arc::clone(&engine), random(300))));
    let (ended, ..) = futures::future::select_all(tasks).await;
    panic!("a task ended by itself: {ended:?}");
}

/// Each task has its rows, and several of them on their way at once.
async fn change_rows(engine: Arc<Engine>, round: u64, task: u32, mut random: StdRng) {
    let rows: Vec<u32> = (0..ROWS).filter(|id| id % ROW_TASKS == task).collect();
    let mut versions: BTreeMap<u32, Option<u64>> = rows.iter().map(|id| (*id, None)).collect();
    loop {
        let mut writes = Vec::new();
        for id in &rows {
            if random.random_bool(0.6) {
                continue;
            }
            let before = versions[id];
            let version = before.map_or(round * VERSIONS, |before| before + 1);
            versions.insert(*id, Some(version));
            let durability = if random.random_bool(0.3) { Durability::Ordered } else { Durability::Synced };
            writes.push(change_row(&engine, *id, before, version, durability));
        }
        join_all(writes).await;
    }
}

async fn change_row(engine: &Engine, id: u32, before: Option<u64>, version: u64, durability: Durability) {
    let key = Key::new("id", row_id(id));
    let write = match row(id, version) {
        None => Write::delete("rows", key),
        Some(item) if version.is_multiple_of(2) => Write::put("rows", item),
        Some(item) => {
            let mut update = Update::new();
            if item.get("ends").is_none() {
                update = update.remove("ends");
            }
            for (name, value) in item.iter().filter(|(name, _)| *name != "id") {
                update = update.set(name.clone(), value.clone());
            }
            Write::update("rows", key, update)
        }
    };
    // it is as this task left it, unless its time has come
    let write = match before {
        Some(before) => write.only_if(Condition::missing("version").or(Condition::equals("version", before))),
        None => write,
    };
    engine.write(write, Returning::Nothing, durability).await.expect("a row can be written");
    tell(&Told::Row { id, version });
}

/// Two rows of two tables and a total are changed together or not at all.
async fn change_pairs(engine: Arc<Engine>, round: u64, task: u32, mut random: StdRng) {
    let pairs: Vec<u32> = (0..PAIRS).filter(|id| id % PAIR_TASKS == task).collect();
    let mut counts = BTreeMap::new();
    for id in &pairs {
        let key = Key::new("id", format!("pair-{id}"));
        let get = Get { table: "left".into(), key, consistency: Consistency::Strong };
        let stored = engine.get(get).await.expect("a pair can be read");
        counts.insert(*id, stored.as_ref().and_then(|item: &Item| item.u64("count")).unwrap_or(0));
    }
    for number in 0u64.. {
        let id = pairs[random.random_range(0..pairs.len())];
        let count = counts[&id] + 1;
        let change = |table: &'static str| {
            let update = Update::new().add("count", 1).set("payload", Bytes::from(padding(count)));
            Write::update(table, Key::new("id", format!("pair-{id}")), update)
        };
        let unchanged = Condition::missing("count").or(Condition::equals("count", count - 1));
        let total = Write::update("right", Key::new("id", "total"), Update::new().add("count", 1));
        let writes = vec![change("left"), change("right").only_if(unchanged), total];
        let token = random.random_bool(0.5).then(|| format!("{round}/{task}/{number}"));
        engine.transact(Transaction { writes, token }).await.expect("a pair can be changed");
        counts.insert(id, count);
        tell(&Told::Pair { id, count });
    }
}

/// Sends numbered records, in calls of different sizes.
async fn append(engine: Arc<Engine>, round: u64, sender: u32, mut random: StdRng) {
    let mut next = BTreeMap::from(TOPICS.map(|(topic, _)| (topic, 0u64)));
    loop {
        let (topic, _) = TOPICS[random.random_range(0..TOPICS.len())];
        let first = next[topic];
        let count = random.random_range(1..20u64);
        let records = (first..first + count).map(|number| record(round, sender, number)).collect();
        let appended = engine.produce(&Topic::from(topic), records).await;
        for (number, appended) in (first..).zip(appended) {
            let appended = appended.expect("a record can be appended");
            let (partition, offset) = (appended.partition, appended.offset);
            tell(&Told::Record { topic: topic.to_owned(), partition, offset, sender, number });
        }
        next.insert(topic, first + count);
    }
}

pub(super) fn record(round: u64, sender: u32, number: u64) -> NewRecord {
    let text = format!("{round} {sender} {number} ");
    let payload = [text.as_bytes(), &padding(number)].concat();
    NewRecord {
        key: Some(Bytes::from(format!("sender-{sender}"))),
        payload: payload.into(),
        headers: Vec::new(),
    }
}

/// Reads as a group and commits what it has read.
async fn consume(engine: Arc<Engine>) {
    let subscription =
        Subscription { group: GROUP.to_owned(), topics: vec![Topic::from("events")], start: StartAt::Oldest };
    let mut consumer = engine.subscribe(subscription).await.expect("a group can be joined");
    loop {
        let Fetch::Records { from, records } = consumer.fetch(50).await.expect("records can be read") else {
            continue;
        };
        let TopicPartition { partition, .. } = from;
        let offset = records.last().expect("at least one record").offset + 1;
        tell(&Told::CommitAsked { partition, offset });
        consumer.commit(&BTreeMap::from([(from, offset)])).await.expect("offsets can be committed");
        tell(&Told::Committed { partition, offset });
    }
}

/// Tables come and go beside the writing.
async fn make_and_drop_tables(engine: Arc<Engine>, round: u64) {
    for table in engine.tables().await.expect("tables are known") {
        if table.starts_with("passing-") {
            drop_table(&engine, &table).await;
        }
    }
    for number in 0u64.. {
        let name = Name::from(format!("passing-{round}-{number}"));
        let [rows, ..] = tables();
        let schema = courant_connectors::store::TableSchema { name: name.clone(), ..rows };
        engine.create_table(&schema).await.expect("a table can be made");
        tell(&Told::Created { table: name.to_string() });
        let item = row(0, 0).expect("the first version is no removal");
        let put = Write::put(name.clone(), item);
        engine.write(put, Returning::Nothing, Durability::Synced).await.expect("a row can be written");
        drop_table(&engine, &name).await;
    }
}

async fn drop_table(engine: &Engine, name: &Name) {
    tell(&Told::DropAsked { table: name.to_string() });
    engine.drop_table(name).await.expect("a table can be dropped");
    tell(&Told::Dropped { table: name.to_string() });
}

/// What time ended is removed, and files are rewritten, while all the others write.
async fn look_after(engine: Arc<Engine>, mut random: StdRng) {
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(random.random_range(1..60))).await;
        engine.sweep().await;
        if random.random_bool(0.15) {
            engine.compact(|_| ()).await.expect("files can be rewritten");
        }
    }
}
