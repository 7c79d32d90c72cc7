//! Conditional writes and transactions of the embedded engine happen as if one after another.
//!
//! Tasks run random updates and transactions at once. Every operation leaves its name on what it changes, so that the
//! change stream tells afterwards which followed which on each account. The history must consist of exactly the
//! operations that succeeded, each must have met what it needed, and there must be one order for all of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use courant_connectors::embedded::{Engine, Options};
use courant_connectors::store::{
    AdminStore, CancelReason, Capacity, ChangeStream, Comparison, Condition, Consistency, Durability, Get,
    Item, Key, KeyAttribute, Name, ReadStore, Returning, ShardRead, ShardStart, StoreError, Stream,
    TableSchema, Transaction, Update, Write, WriteStore,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const ACCOUNTS: u32 = 6;
/// Tasks, and what each does one after another. With many, groups are written in portions.
const CROWDS: [(u64, u64); 2] = [(8, 60), (96, 10)];
const START: i64 = 100;

fn schema() -> TableSchema {
    TableSchema {
        name: Name::new_static("accounts"),
        partition: KeyAttribute::text("id"),
        sort: None,
        indexes: Vec::new().into(),
        ttl: None,
        stream: Stream::OldAndNewImages,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

fn key(account: u32) -> Key {
    Key::new("id", format!("account-{account}"))
}

/// A write that was answered with success: by how much it changed which accounts.
#[derive(Debug)]
struct Done {
    operation: u64,
    changes: Vec<(u32, i64)>,
    /// What it needed of an account before.
    needed: Option<(u32, i64)>,
}

/// One state of one account in the history.
#[derive(Debug, Clone, Copy)]
struct Version {
    balance: i64,
    by: u64,
}

fn integer(item: &Item, name: &str) -> i64 {
    item.get(name).unwrap().as_number().unwrap().as_i64().unwrap()
}

async fn stored(engine: &Engine, account: u32) -> Item {
    let get = Get { table: "accounts".into(), key: key(account), consistency: Consistency::Strong };
    engine.get(get).await.unwrap().unwrap()
}

fn add(account: u32, amount: i64, operation: u64) -> Write {
    let update = Update::new().add("balance", amount).add("version", 1).set("by", operation);
    Write::update("accounts", key(account), update)
}

/// Changes an account by reading, computing and writing back under the condition that nothing changed.
async fn optimistic(engine: &Engine, random: &mut StdRng, operation: u64) -> Option<Done> {
    let account = random.random_range(0..ACCOUNTS);
    let before = stored(engine, account).await;
    let version = before.u64("version").unwrap();
    let amount = random.random_range(-5..5i64);
    let update = Update::new()
        .set("balance", integer(&before, "balance") + amount)
        .set("version", version + 1)
        .set("by", operation);
    let write =
        Write::update("accounts", key(account), update).only_if(Condition::equals("version", version));
    match engine.write(write, Returning::Nothing, Durability::Synced).await {
        Ok(_) => Some(Done { operation, changes: vec![(account, amount)], needed: None }),
        Err(StoreError::ConditionFailed { current }) => {
            assert_ne!(
                current.unwrap().u64("version"),
                Some(version),
                "refused although nothing had changed"
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Adds without looking; half of them without waiting for the disk.
async fn blind(engine: &Engine, random: &mut StdRng, operation: u64) -> Done {
    let account = random.random_range(0..ACCOUNTS);
    let durability = if random.random_bool(0.5) { Durability::Ordered } else { Durability::Synced };
    let amount = random.random_range(-5..5i64);
    let after =
        engine.write(add(account, amount, operation), Returning::New, durability).await.unwrap().unwrap();
    assert_eq!(after.u64("by"), Some(operation), "it was told another's outcome");
    Done { operation, changes: vec![(account, amount)], needed: None }
}

/// Moves an amount between two accounts, all or nothing, if the first one has it.
async fn transfer(engine: &Engine, random: &mut StdRng, operation: u64) -> Option<Done> {
    let from = random.random_range(0..ACCOUNTS);
    let to = (from + random.random_range(1..ACCOUNTS)) % ACCOUNTS;
    let amount = random.random_range(1..60i64);
    let enough = Condition::compare("balance", Comparison::GreaterOrEqual, amount);
    let writes = vec![add(to, amount, operation), add(from, -amount, operation).only_if(enough)];
    match engine.transact(Transaction { writes, token: None }).await {
        Ok(()) => Some(Done {
            operation,
            changes: vec![(from, -amount), (to, amount)],
            needed: Some((from, amount)),
        }),
        Err(StoreError::TransactionCanceled { reasons }) => {
            let Some(CancelReason::ConditionFailed { current: Some(current) }) = &reasons[1] else {
                panic!("{reasons:?}")
            };
            assert!(integer(current, "balance") < amount, "refused although there was enough");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Every state of every account, by account and version, as the change stream tells it.
async fn history(engine: &Engine) -> BTreeMap<(String, u64), Version> {
    let table = Name::new_static("accounts");
    let mut versions = BTreeMap::new();
    for shard in engine.shards(&table).await.unwrap() {
        let mut reader = engine.open_shard(&table, &shard.id, ShardStart::Oldest).await.unwrap();
        while let ShardRead::Changes(read) = reader.read(100).await.unwrap() {
            if read.is_empty() {
                break;
            }
            for change in read {
                let item = change.new.unwrap();
                let version = (item.text("id").unwrap().to_owned(), item.u64("version").unwrap());
                let state = Version { balance: integer(&item, "balance"), by: item.u64("by").unwrap() };
                assert!(versions.insert(version.clone(), state).is_none(), "{version:?} was written twice");
            }
        }
    }
    versions
}

/// The history is made of the operations that succeeded and of nothing else, and they can be put in an order.
fn check(versions: &BTreeMap<(String, u64), Version>, done: &[Done]) {
    let by_operation: BTreeMap<u64, &Done> = done.iter().map(|done| (done.operation, done)).collect();
    let mut effects = 0;
    let mut before_after: BTreeSet<(u64, u64)> = BTreeSet::new();
    for ((id, version), state) in versions.iter().filter(|((_, version), _)| *version > 0) {
        let before = versions.get(&(id.clone(), version - 1)).expect("versions have no gaps");
        let done = by_operation
            .get(&state.by)
            .unwrap_or_else(|| panic!("{id} {version} by an operation that failed"));
        let account: u32 = id.strip_prefix("account-").unwrap().parse().unwrap();
        let change =
            done.changes.iter().find(|(changed, _)| *changed == account).expect("it changed this account");
        assert_eq!(state.balance, before.balance + change.1, "{id} {version}: an update was lost");
        if let Some((from, amount)) = done.needed
            && from == account
        {
            assert!(before.balance >= amount, "{id} {version}: the condition did not hold");
        }
        before_after.insert((before.by, state.by));
        effects += 1;
    }
    assert_eq!(effects, done.iter().map(|done| done.changes.len()).sum::<usize>(), "an effect is missing");
    assert_ordered(before_after);
}

/// Takes away what nothing comes before, until nothing is left.
fn assert_ordered(mut before_after: BTreeSet<(u64, u64)>) {
    while !before_after.is_empty() {
        let afters: BTreeSet<u64> = before_after.iter().map(|(_, after)| *after).collect();
        let left = before_after.len();
        before_after.retain(|(before, _)| afters.contains(before));
        assert_ne!(before_after.len(), left, "operations that come before each other: {before_after:?}");
    }
}

async fn run(seed: u64, tasks: u64, steps: u64) {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
    engine.create_table(&schema()).await.unwrap();
    for account in 0..ACCOUNTS {
        let item = key(account).into_item().with("balance", START).with("version", 0).with("by", 0);
        engine.write(Write::put("accounts", item), Returning::Nothing, Durability::Synced).await.unwrap();
    }
    let tasks: Vec<_> =
        (0..tasks).map(|task| tokio::spawn(operations(Arc::clone(&engine), seed, task, steps))).collect();
    let mut done = Vec::new();
    for task in tasks {
        done.extend(task.await.unwrap());
    }
    let versions = history(&engine).await;
    check(&versions, &done);
    for account in 0..ACCOUNTS {
        let last = versions.range(..=(format!("account-{account}"), u64::MAX)).next_back().unwrap();
        let now = stored(&engine, account).await;
        assert_eq!((now.u64("version"), integer(&now, "balance")), (Some(last.0.1), last.1.balance));
    }
    engine.close().await;
}

async fn operations(engine: Arc<Engine>, seed: u64, task: u64, steps: u64) -> Vec<Done> {
    let mut random = StdRng::seed_from_u64(seed * 1000 + task);
    let mut done = Vec::new();
    for step in 0..steps {
        let operation = 1 + task * steps + step;
        match random.random_range(0..3) {
            0 => done.extend(optimistic(&engine, &mut random, operation).await),
            1 => done.push(blind(&engine, &mut random, operation).await),
            _ => done.extend(transfer(&engine, &mut random, operation).await),
        }
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_histories_have_an_order() {
    let cases =
        std::env::var("COURANT_SOAK_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(10u64);
    for seed in 0..cases.min(300) {
        for (tasks, steps) in CROWDS {
            run(seed, tasks, steps).await;
        }
    }
}
