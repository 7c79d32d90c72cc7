//! The DynamoDB connector when its server is busy, slow, broken or away.
//!
//! What is asked each time: does the caller learn whether a write happened, is nothing done twice that must
//! not be, does it end, and does it work again afterwards without being opened anew.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use courant_conformance::servers::{Dynoxide, Fault, FaultyProxy, connect};
use courant_connectors::dynamodb::{DynamoDb, DynamoDbConfig};
use courant_connectors::store::{
    AdminStore, BatchWrite, Capacity, ChangeStream, Condition, Consistency, Created, Durability, Get, Item,
    Key, KeyAttribute, Name, Query, ReadStore, Remedy, Result, Returning, Scan, ScanStore, Segment,
    StoreError, Stream, TableSchema, Transaction, Update, Write, WriteStore,
};
use tokio::time::Instant;

const TABLE: Name = Name::new_static("table");

/// Longer than any case here may take, and shorter than a person would call hanging.
const SOON: Duration = Duration::from_secs(20);

struct Harmed {
    proxy: FaultyProxy,
    store: DynamoDb,
    _server: Dynoxide,
}

impl Harmed {
    /// A store with a table, reached through a proxy that does no harm yet.
    async fn start() -> Self {
        Self::configured(|config| DynamoDbConfig { attempt_timeout: SOON, operation_timeout: SOON, ..config })
            .await
    }

    /// With little time for a try, so that silence is noticed soon.
    async fn impatient() -> Self {
        Self::configured(|config| DynamoDbConfig {
            attempt_timeout: Duration::from_millis(300),
            operation_timeout: Duration::from_secs(3),
            max_attempts: NonZeroU32::new(3).expect("not zero"),
            ..config
        })
        .await
    }

    async fn configured(configured: impl FnOnce(DynamoDbConfig) -> DynamoDbConfig) -> Self {
        let server = Dynoxide::start();
        let created = server.connect().await.create_table(&schema()).await.expect("a new table");
        assert!(matches!(created, Created::New { .. }));
        let proxy = FaultyProxy::before(server.address()).await;
        let store = connect(proxy.address(), configured).await;
        // Once, so that the table is known and only what a case asks for is counted.
        assert_eq!(store.get(get("a")).await.expect("no harm is done yet"), None);
        Self { proxy, store, _server: server }
    }

    async fn add(&self) -> Result<Option<Item>> {
        self.write(Write::update(TABLE, key("a"), Update::new().add("n", 1))).await
    }

    async fn write(&self, write: Write) -> Result<Option<Item>> {
        self.store.write(write, Returning::Nothing, Durability::Synced).await
    }

    async fn transact(&self) -> Result<()> {
        let writes = vec![Write::update(TABLE, key("a"), Update::new().add("n", 1))];
        self.store.transact(Transaction { writes, token: None }).await
    }

    /// The counter that `add` and `transact` raise.
    async fn count(&self) -> u64 {
        let item = self.store.get(get("a")).await.expect("the counter can be read");
        item.and_then(|item| item.u64("n")).unwrap_or_default()
    }
}

fn schema() -> TableSchema {
    TableSchema {
        name: TABLE,
        partition: KeyAttribute::text("k"),
        sort: None,
        indexes: Cow::Borrowed(&[]),
        ttl: None,
        stream: Stream::OldAndNewImages,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

fn key(k: &str) -> Key {
    Key::new("k", k)
}

fn item(k: &str) -> Item {
    Item::new().with("k", k)
}

fn get(k: &str) -> Get {
    Get { table: TABLE, key: key(k), consistency: Consistency::Strong }
}

fn times(count: usize, fault: &Fault) -> Vec<Fault> {
    vec![fault.clone(); count]
}

#[tokio::test]
async fn throttling_that_passes_is_not_seen() {
    let harmed = Harmed::start().await;
    for operation in ["GetItem", "UpdateItem", "TransactWriteItems", "Query"] {
        harmed.proxy.plan(operation, times(2, &Fault::throttle()));
    }
    harmed.add().await.expect("a refused addition is tried again");
    harmed.transact().await.expect("a refused transaction is tried again");
    assert_eq!(harmed.count().await, 2, "and each is done once");
    assert_eq!(harmed.store.query(Query::new(TABLE, "k", "a")).await.unwrap().items.len(), 1);
    assert_eq!(harmed.proxy.calls("UpdateItem"), 3);
}

#[tokio::test]
async fn throttling_that_lasts_is_told_and_ends() {
    let harmed = Harmed::start().await;
    for operation in ["GetItem", "UpdateItem"] {
        harmed.proxy.always(operation, Fault::throttle());
    }
    let error = harmed.add().await.unwrap_err();
    assert!(matches!(error, StoreError::Throttled(_)), "{error:?}");
    assert_eq!(error.remedy(), Remedy::Retry);
    let text = error.to_string();
    assert_eq!(text, "the store asks to slow down: table 'table': update item: injected");
    assert!(matches!(harmed.store.get(get("a")).await, Err(StoreError::Throttled(_))));
    harmed.proxy.heal();
    harmed.add().await.expect("no need to open anew");
    assert_eq!(harmed.count().await, 1);
}

#[tokio::test]
async fn an_addition_whose_answer_was_lost_is_unknown_and_done_once() {
    let harmed = Harmed::start().await;
    harmed.proxy.plan("UpdateItem", [Fault::LoseAnswer]);
    let error = harmed.add().await.unwrap_err();
    assert!(matches!(error, StoreError::UnknownOutcome(_)), "{error:?}");
    assert_eq!(error.remedy(), Remedy::Look);
    assert_eq!(harmed.proxy.calls("UpdateItem"), 1, "it was not tried again");
    assert_eq!(harmed.count().await, 1, "and did happen");
}

#[tokio::test]
async fn a_conditional_write_does_not_meet_itself() {
    let harmed = Harmed::start().await;
    for (operation, write) in [
        ("PutItem", Write::put(TABLE, item("a")).only_if(Condition::missing("k"))),
        ("DeleteItem", Write::delete(TABLE, key("a")).only_if(Condition::exists("k"))),
    ] {
        harmed.proxy.plan(operation, [Fault::LoseAnswer]);
        let error = harmed.write(write).await.unwrap_err();
        assert!(matches!(error, StoreError::UnknownOutcome(_)), "{operation}: {error:?}");
        assert_eq!(harmed.proxy.calls(operation), 1);
    }
    assert_eq!(harmed.store.get(get("a")).await.unwrap(), None, "put and deleted");
}

#[tokio::test]
async fn an_internal_error_leaves_the_outcome_open() {
    let harmed = Harmed::start().await;
    harmed.proxy.plan("UpdateItem", [Fault::error("InternalServerError")]);
    assert!(matches!(harmed.add().await, Err(StoreError::UnknownOutcome(_))));
    assert_eq!(harmed.proxy.calls("UpdateItem"), 1);
    harmed.proxy.plan("GetItem", [Fault::error("InternalServerError")]);
    assert_eq!(harmed.store.get(get("a")).await.unwrap(), None, "a read is simply repeated");
}

#[tokio::test]
async fn what_may_happen_twice_is_tried_again() {
    let harmed = Harmed::start().await;
    harmed.proxy.plan("PutItem", [Fault::LoseAnswer, Fault::LoseRequest]);
    harmed.write(Write::put(TABLE, item("b"))).await.expect("a plain put");
    assert_eq!(harmed.proxy.calls("PutItem"), 3);
    harmed.proxy.plan("TransactWriteItems", [Fault::LoseAnswer]);
    harmed.transact().await.expect("a transaction has a token");
    assert_eq!(harmed.proxy.calls("TransactWriteItems"), 2);
    assert_eq!(harmed.count().await, 1, "the token keeps it from being done twice");
}

#[tokio::test]
async fn a_later_refusal_says_nothing_about_an_earlier_try() {
    let harmed = Harmed::start().await;
    harmed.proxy.plan("PutItem", [Fault::LoseAnswer]);
    harmed.proxy.always("PutItem", Fault::throttle());
    let error = harmed.write(Write::put(TABLE, item("a"))).await.unwrap_err();
    assert!(matches!(error, StoreError::UnknownOutcome(_)), "{error:?}");
    assert!(harmed.store.get(get("a")).await.unwrap().is_some(), "the first try did happen");
}

#[tokio::test]
async fn a_transaction_that_is_never_answered_is_unknown() {
    let harmed = Harmed::start().await;
    harmed.proxy.always("TransactWriteItems", Fault::LoseAnswer);
    let error = harmed.transact().await.unwrap_err();
    assert!(matches!(error, StoreError::UnknownOutcome(_)), "{error:?}");
    assert_eq!(harmed.count().await, 1, "done once by all the tries");
}

#[tokio::test]
async fn a_server_that_is_away_is_told_soon_and_found_again() {
    let harmed = Harmed::start().await;
    harmed.proxy.go_away().await;
    let started = Instant::now();
    let error = harmed.add().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "nothing was sent: {error:?}");
    assert!(error.to_string().contains("table 'table': update item: cannot connect"), "{error}");
    assert!(matches!(harmed.store.get(get("a")).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(harmed.transact().await, Err(StoreError::Unavailable(_))));
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    harmed.proxy.come_back().await;
    harmed.add().await.expect("no need to open anew");
    assert_eq!(harmed.count().await, 1);
}

#[tokio::test]
async fn a_slow_server_is_waited_for() {
    let harmed = Harmed::start().await;
    harmed.proxy.plan("UpdateItem", [Fault::Delay(Duration::from_millis(500))]);
    harmed.add().await.expect("within the time of a try");
    assert_eq!(harmed.proxy.calls("UpdateItem"), 1);
}

#[tokio::test]
async fn a_silent_server_is_not_waited_for() {
    let harmed = Harmed::impatient().await;
    harmed.proxy.always("UpdateItem", Fault::Hang);
    let error = harmed.add().await.unwrap_err();
    assert!(matches!(error, StoreError::UnknownOutcome(_)), "{error:?}");
    assert_eq!(harmed.proxy.calls("UpdateItem"), 1);
    harmed.proxy.plan("GetItem", [Fault::Hang]);
    assert_eq!(harmed.store.get(get("a")).await.unwrap(), None, "the second try is answered");
    harmed.proxy.always("GetItem", Fault::Hang);
    let error = harmed.store.get(get("a")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "a read that fails is no open question: {error:?}");
    harmed.proxy.heal();
    harmed.add().await.expect("no need to open anew");
}

/// What the calls below come to.
const EVERY_OPERATION: [&str; 11] = [
    "GetItem",
    "BatchGetItem",
    "Query",
    "Scan",
    "PutItem",
    "BatchWriteItem",
    "TransactWriteItems",
    "ListTables",
    "DescribeTable",
    "CreateTable",
    "DeleteTable",
];

#[tokio::test]
async fn nothing_hangs() {
    let harmed = Harmed::impatient().await;
    for operation in EVERY_OPERATION {
        harmed.proxy.always(operation, Fault::Hang);
    }
    let store = &harmed.store;
    let scan = Scan {
        table: TABLE,
        segment: Segment::WHOLE,
        limit: None,
        start_after: None,
        consistency: Consistency::Strong,
    };
    let other = TableSchema { name: "other".into(), ..schema() };
    let calls = async {
        tokio::join!(
            async { store.get(get("a")).await.map(drop).unwrap_err() },
            async { store.batch_get(vec![get("a")]).await.map(drop).unwrap_err() },
            async { store.query(Query::new(TABLE, "k", "a")).await.map(drop).unwrap_err() },
            async { store.scan(scan).await.map(drop).unwrap_err() },
            async { harmed.write(Write::put(TABLE, item("a"))).await.map(drop).unwrap_err() },
            async { store.batch_write(vec![put("a")]).await.unwrap_err() },
            async { harmed.transact().await.unwrap_err() },
            async { store.tables().await.map(drop).unwrap_err() },
            async { store.describe_table(&TABLE).await.map(drop).unwrap_err() },
            async { store.create_table(&other).await.map(drop).unwrap_err() },
            async { store.drop_table(&TABLE).await.unwrap_err() },
            async { store.shards(&TABLE).await.map(drop).unwrap_err() },
        )
    };
    tokio::time::timeout(SOON, calls).await.expect("every call ends");
}

fn put(k: &str) -> BatchWrite {
    BatchWrite::Put { table: TABLE, item: item(k) }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("item-{n}")).collect()
}

#[tokio::test]
async fn what_is_left_of_a_batch_is_done_later() {
    let harmed = Harmed::start().await;
    let names = names(20);
    harmed.proxy.plan("BatchWriteItem", [Fault::DoOnly(5), Fault::DoOnly(0), Fault::DoOnly(7)]);
    harmed.store.batch_write(names.iter().map(|k| put(k)).collect()).await.expect("all in the end");
    assert_eq!(harmed.proxy.calls("BatchWriteItem"), 4);
    harmed.proxy.plan("BatchGetItem", [Fault::DoOnly(3), Fault::DoOnly(0), Fault::DoOnly(1)]);
    let found = harmed.store.batch_get(names.iter().map(|k| get(k)).collect()).await.expect("all in the end");
    assert_eq!(found, names.iter().map(|k| Some(item(k))).collect::<Vec<_>>());
    assert_eq!(harmed.proxy.calls("BatchGetItem"), 4);
}

#[tokio::test]
async fn a_batch_that_gets_nowhere_ends() {
    let harmed = Harmed::start().await;
    harmed.proxy.always("BatchWriteItem", Fault::DoOnly(0));
    harmed.proxy.always("BatchGetItem", Fault::DoOnly(0));
    let (written, read) =
        tokio::join!(harmed.store.batch_write(vec![put("a")]), harmed.store.batch_get(vec![get("a")]));
    assert!(matches!(&written, Err(StoreError::Throttled(_))), "{written:?}");
    assert!(matches!(&read, Err(StoreError::Throttled(_))), "{read:?}");
    harmed.proxy.heal();
    harmed.store.batch_write(vec![put("a")]).await.expect("no need to open anew");
    assert_eq!(harmed.store.batch_get(vec![get("a")]).await.unwrap(), [Some(item("a"))]);
}

#[tokio::test]
async fn a_batch_goes_on_as_long_as_it_gets_somewhere() {
    let harmed = Harmed::start().await;
    let names = names(25);
    harmed.proxy.always("BatchWriteItem", Fault::DoOnly(1));
    harmed.store.batch_write(names.iter().map(|k| put(k)).collect()).await.expect("one by one");
    let found = harmed.store.batch_get(names.iter().map(|k| get(k)).collect()).await.unwrap();
    assert!(found.iter().all(Option::is_some), "{found:?}");
}

#[tokio::test]
async fn answers_are_told_by_what_can_be_done() {
    let harmed = Harmed::start().await;
    let answered = async |code: &str| {
        harmed.proxy.plan("UpdateItem", [Fault::error(code)]);
        harmed.add().await.unwrap_err()
    };
    let told = answered("TransactionConflictException").await;
    assert!(matches!(told, StoreError::Conflict), "{told:?}");
    let told = answered("AccessDeniedException").await;
    assert_eq!(told.to_string(), "this handle may not update item 'table'");
    assert_eq!(told.remedy(), Remedy::Stop);
    let told = answered("UnrecognizedClientException").await;
    assert!(matches!(told, StoreError::Unavailable(_)), "{told:?}");
    let told = answered("ResourceNotFoundException").await;
    assert!(matches!(told, StoreError::NoSuchTable { .. }), "{told:?}");
    let told = answered("SomethingNewException").await;
    let text = "table 'table': update item: SomethingNewException: injected";
    assert!(matches!(&told, StoreError::Invalid(why) if why == text), "{told:?}");
    assert_eq!(harmed.count().await, 0, "none of them happened");

    harmed.proxy.always("TransactWriteItems", Fault::error("TransactionInProgressException"));
    let told = harmed.transact().await.unwrap_err();
    assert!(matches!(told, StoreError::UnknownOutcome(_)), "the one in progress may succeed: {told:?}");
}

#[tokio::test]
async fn a_new_table_waits_for_its_backups() {
    let harmed = Harmed::start().await;
    let done = Fault::Answer { status: 200, body: serde_json::json!({}) };
    let not_yet = Fault::error("ContinuousBackupsUnavailableException");
    harmed.proxy.plan("UpdateContinuousBackups", [not_yet, done]);
    let recovered = TableSchema { name: "recovered".into(), point_in_time_recovery: true, ..schema() };
    let created = harmed.store.create_table(&recovered).await.unwrap();
    assert_eq!(created, Created::New { warnings: vec![] });
    let other = TableSchema { name: "other".into(), ..recovered };
    let created = harmed.store.create_table(&other).await.unwrap();
    let warning = "the server has no point-in-time recovery for table 'other'".to_owned();
    assert_eq!(created, Created::New { warnings: vec![warning] });
}
