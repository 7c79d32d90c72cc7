//! What the DynamoDB connector knows of tables: by being told, or by asking once.

use std::borrow::Cow;

use courant_conformance::servers::{Dynoxide, Fault, FaultyProxy, connect};
use courant_connectors::dynamodb::{Credentials, DynamoDb, DynamoDbConfig};
use courant_connectors::store::{
    AdminStore, BatchWrite, Capacity, Consistency, Created, Durability, Get, Item, Key, KeyAttribute, Name,
    Query, ReadStore, Returning, StoreError, Stream, TableSchema, Write, WriteStore,
};
use serde_json::json;

const TABLE: Name = Name::new_static("table");

fn schema() -> TableSchema {
    TableSchema {
        name: TABLE,
        partition: KeyAttribute::text("k"),
        sort: None,
        indexes: Cow::Borrowed(&[]),
        ttl: Some(Name::new_static("ends")),
        stream: Stream::Off,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

fn get(k: &str) -> Get {
    Get { table: TABLE, key: Key::new("k", k), consistency: Consistency::Strong }
}

async fn put(store: &DynamoDb, item: Item) {
    let written = store.write(Write::put(TABLE, item), Returning::Nothing, Durability::Synced).await;
    written.expect("a put");
}

/// A server with a table that another client made, holding `ended` and `lasting`.
async fn with_table() -> (Dynoxide, FaultyProxy) {
    let server = Dynoxide::start();
    let other = server.connect().await;
    other.create_table(&schema()).await.expect("a new table");
    put(&other, Item::new().with("k", "ended").with("ends", 1)).await;
    put(&other, Item::new().with("k", "lasting")).await;
    let proxy = FaultyProxy::before(server.address()).await;
    (server, proxy)
}

/// Reads in every way, all of which must hide what has ended.
async fn read(store: &DynamoDb) {
    assert_eq!(store.get(get("ended")).await.expect("a read"), None);
    let found = store.batch_get(vec![get("ended"), get("lasting")]).await.expect("a read");
    assert_eq!(found, [None, Some(Item::new().with("k", "lasting"))]);
    assert_eq!(store.query(Query::new(TABLE, "k", "ended")).await.expect("a read").items, []);
}

#[tokio::test]
async fn a_table_that_was_not_told_is_asked_for_once() {
    let (_server, proxy) = with_table().await;
    let store = connect(proxy.address(), |config| config).await;
    for _ in 0..3 {
        read(&store).await;
    }
    assert_eq!(proxy.calls("DescribeTable"), 1);
    assert_eq!(proxy.calls("DescribeTimeToLive"), 1);
}

#[tokio::test]
async fn a_table_that_was_told_is_not_asked_for() {
    let (_server, proxy) = with_table().await;
    let config = DynamoDbConfig {
        endpoint: Some(format!("http://{}", proxy.address())),
        table_prefix: "test-".into(),
        ..DynamoDbConfig::default()
    };
    let anybody = Credentials::new("anybody", "nothing", None, None, "test");
    let store = DynamoDb::open_as(&config, &[schema()], anybody).await.unwrap();
    read(&store).await;
    store
        .batch_write(vec![BatchWrite::Put { table: TABLE, item: Item::new().with("k", "a") }])
        .await
        .unwrap();
    assert_eq!(proxy.calls("DescribeTable"), 0);
    assert_eq!(proxy.calls("DescribeTimeToLive"), 0);
}

#[tokio::test]
async fn a_table_that_was_dropped_is_asked_for_again() {
    let (server, proxy) = with_table().await;
    let store = connect(proxy.address(), |config| config).await;
    read(&store).await;
    store.drop_table(&TABLE).await.unwrap();
    assert!(matches!(store.get(get("ended")).await, Err(StoreError::NoSuchTable { .. })));
    // Made anew by another, and now nothing ends.
    let other = server.connect().await;
    other.create_table(&TableSchema { ttl: None, ..schema() }).await.unwrap();
    let item = Item::new().with("k", "ended").with("ends", 1);
    put(&other, item.clone()).await;
    assert_eq!(store.get(get("ended")).await.unwrap(), Some(item));
}

#[tokio::test]
async fn a_prefix_keeps_installations_apart() {
    let (_server, proxy) = with_table().await;
    let prefixed = |table_prefix: &'static str| {
        connect(proxy.address(), move |config| DynamoDbConfig { table_prefix: table_prefix.into(), ..config })
    };
    let one = prefixed("test-").await;
    let two = prefixed("two-").await;
    assert_eq!(two.tables().await.unwrap(), Vec::<Name>::new());
    two.create_table(&schema()).await.unwrap();
    assert_eq!(two.tables().await.unwrap(), [TABLE]);
    assert_eq!(one.tables().await.unwrap(), [TABLE]);
    put(&two, Item::new().with("k", "of two")).await;
    assert_eq!(one.get(get("of two")).await.unwrap(), None);
    assert!(two.get(get("of two")).await.unwrap().is_some());
    let everything = prefixed("").await.tables().await.unwrap();
    assert_eq!(everything, ["test-table", "two-table"]);
}

#[tokio::test]
async fn an_index_that_could_not_hide_what_has_ended_is_refused() {
    let (server, _proxy) = with_table().await;
    let index = courant_connectors::store::IndexSchema {
        name: Name::new_static("by-tag"),
        partition: KeyAttribute::text("tag"),
        sort: None,
        projection: courant_connectors::store::Projection::KeysOnly,
    };
    let schema = TableSchema { name: "blind".into(), indexes: vec![index].into(), ..schema() };
    let error = server.connect().await.create_table(&schema).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "table 'blind': create table: index 'by-tag' holds keys only and cannot hide what has ended by 'ends'; \
         project all attributes"
    );
}

#[tokio::test]
async fn a_creation_that_broke_off_is_completed_by_the_next() {
    let server = Dynoxide::start();
    let proxy = FaultyProxy::before(server.address()).await;
    let store = connect(proxy.address(), |config| config).await;
    let wanted = TableSchema { point_in_time_recovery: true, ..schema() };
    proxy.always("UpdateTimeToLive", Fault::error("AccessDeniedException"));
    let broken_off = store.create_table(&wanted).await;
    assert!(matches!(broken_off, Err(StoreError::NotAllowed { .. })), "{broken_off:?}");
    // Somebody reads it as it is meanwhile.
    put(&store, Item::new().with("k", "ended").with("ends", 1)).await;
    assert!(store.get(get("ended")).await.unwrap().is_some(), "nothing ends yet");
    proxy.heal();

    let described = |status: &str| Fault::Answer {
        status: 200,
        body: json!({ "ContinuousBackupsDescription": {
            "ContinuousBackupsStatus": "ENABLED",
            "PointInTimeRecoveryDescription": { "PointInTimeRecoveryStatus": status },
        }}),
    };
    proxy.plan("DescribeContinuousBackups", [described("DISABLED"), described("ENABLED")]);
    proxy.plan("UpdateContinuousBackups", [Fault::Answer { status: 200, body: json!({}) }]);
    let turned_on = vec!["time to live", "point-in-time recovery"];
    let completed = store.create_table(&wanted).await.unwrap();
    assert_eq!(completed, Created::Completed { turned_on, warnings: Vec::new() });
    assert_eq!(store.get(get("ended")).await.unwrap(), None, "what has ended is hidden from now on");
    assert_eq!(store.describe_table(&TABLE).await.unwrap().unwrap().schema.ttl, wanted.ttl);
    assert_eq!(store.create_table(&wanted).await.unwrap(), Created::Existing);
    assert_eq!(proxy.calls("UpdateTimeToLive"), 2, "what is on is not turned on again");
}
