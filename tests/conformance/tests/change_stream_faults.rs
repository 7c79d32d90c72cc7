//! The change stream of the DynamoDB connector when iterators expire, data is trimmed, shards end.

use std::borrow::Cow;

use courant_conformance::servers::{Dynoxide, Fault, FaultyProxy, connect};
use courant_connectors::dynamodb::DynamoDb;
use courant_connectors::store::{
    AdminStore, Capacity, Change, ChangeStream, Durability, Item, KeyAttribute, Name, Returning,
    SequenceNumber, Shard, ShardId, ShardRead, ShardReader, ShardStart, StoreError, Stream, TableSchema,
    Write, WriteStore,
};
use serde_json::json;

const TABLE: Name = Name::new_static("table");

struct Harmed {
    proxy: FaultyProxy,
    store: DynamoDb,
    shard: ShardId,
    _server: Dynoxide,
}

impl Harmed {
    async fn start() -> Self {
        let server = Dynoxide::start();
        let proxy = FaultyProxy::before(server.address()).await;
        let store = connect(proxy.address(), |config| config).await;
        let schema = TableSchema {
            name: TABLE,
            partition: KeyAttribute::text("k"),
            sort: None,
            indexes: Cow::Borrowed(&[]),
            ttl: None,
            stream: Stream::OldAndNewImages,
            capacity: Capacity::OnDemand,
            point_in_time_recovery: false,
        };
        store.create_table(&schema).await.expect("a new table");
        let harmed = Self { proxy, store, shard: ShardId(Name::default()), _server: server };
        harmed.put(0).await;
        let shards = harmed.store.shards(&TABLE).await.expect("it has a stream");
        Self { shard: shards[0].id.clone(), ..harmed }
    }

    /// One more change.
    async fn put(&self, n: u64) {
        let put = Write::put(TABLE, Item::new().with("k", "a").with("n", n));
        self.store.write(put, Returning::Nothing, Durability::Synced).await.expect("a put");
    }

    async fn open(&self, start: ShardStart) -> Box<dyn ShardReader> {
        self.store.open_shard(&TABLE, &self.shard, start).await.expect("the shard is there")
    }
}

/// The numbers that were put, of the changes of this many reads.
async fn read(reader: &mut Box<dyn ShardReader>, reads: usize) -> Vec<u64> {
    let mut seen = Vec::new();
    for _ in 0..reads {
        match reader.read(100).await.expect("the shard can be read") {
            ShardRead::Changes(changes) => seen.extend(changes.iter().filter_map(number)),
            ShardRead::Ended => break,
        }
    }
    seen
}

fn number(change: &Change) -> Option<u64> {
    change.new.as_ref()?.u64("n")
}

fn expired() -> Fault {
    Fault::error("ExpiredIteratorException")
}

#[tokio::test]
async fn an_expired_iterator_is_renewed_where_it_was() {
    let harmed = Harmed::start().await;
    let mut reader = harmed.open(ShardStart::Oldest).await;
    harmed.proxy.plan("GetRecords", [expired()]);
    assert_eq!(read(&mut reader, 2).await, [0], "before anything was read: from the oldest");
    harmed.put(1).await;
    harmed.proxy.plan("GetRecords", [expired(), expired()]);
    assert_eq!(read(&mut reader, 4).await, [1], "after the last that was read, neither lost nor twice");
}

#[tokio::test]
async fn an_expired_iterator_of_the_latest_loses_nothing() {
    let harmed = Harmed::start().await;
    let mut reader = harmed.open(ShardStart::Latest).await;
    assert!(read(&mut reader, 1).await.is_empty());
    harmed.put(1).await;
    harmed.proxy.plan("GetRecords", [expired()]);
    let seen = read(&mut reader, 3).await;
    assert!(seen.ends_with(&[1]), "what came since is there; what came shortly before may be: {seen:?}");
}

#[tokio::test]
async fn an_old_change_is_not_the_latest() {
    let harmed = Harmed::start().await;
    let mut reader = harmed.open(ShardStart::Latest).await;
    let record = |seconds: u64, n: &str| {
        json!({ "eventName": "INSERT", "dynamodb": {
            "ApproximateCreationDateTime": seconds,
            "SequenceNumber": format!("10000000000000000000{n}"),
            "Keys": { "k": { "S": "a" } },
            "NewImage": { "k": { "S": "a" }, "n": { "N": n } },
        }})
    };
    // The year 2001, and a time that has not come.
    let records = [record(1_000_000_000, "1"), record(32_000_000_000, "2")];
    let records = json!({ "Records": records, "NextShardIterator": "x" });
    harmed.proxy.plan("GetRecords", [expired(), Fault::Answer { status: 200, body: records }]);
    assert_eq!(read(&mut reader, 2).await, [2]);
}

#[tokio::test]
async fn trimmed_data_is_told_when_opening_and_when_reading() {
    let harmed = Harmed::start().await;
    let trimmed = || Fault::error("TrimmedDataAccessException");
    let after = ShardStart::After(SequenceNumber("100000000000000000001".into()));
    for fault in [trimmed(), Fault::error("ResourceNotFoundException")] {
        harmed.proxy.plan("GetShardIterator", [fault]);
        let opened = harmed.store.open_shard(&TABLE, &harmed.shard, after.clone()).await.map(drop);
        let error = opened.unwrap_err();
        assert!(matches!(&error, StoreError::Trimmed { table, .. } if *table == TABLE), "{error:?}");
        assert!(error.to_string().contains("100000000000000000001 of shard"), "{error}");
    }
    let mut reader = harmed.open(ShardStart::Oldest).await;
    for fault in [trimmed(), Fault::error("ResourceNotFoundException")] {
        harmed.proxy.plan("GetRecords", [fault]);
        let error = reader.read(1).await.unwrap_err();
        assert!(matches!(error, StoreError::Trimmed { .. }), "{error:?}");
    }
    harmed.proxy.plan("GetRecords", [expired()]);
    harmed.proxy.plan("GetShardIterator", [trimmed()]);
    let error = reader.read(1).await.unwrap_err();
    assert!(matches!(error, StoreError::Trimmed { .. }), "the reader was away for too long: {error:?}");
}

#[tokio::test]
async fn an_ended_shard_gives_its_rest_and_ends() {
    let harmed = Harmed::start().await;
    let mut reader = harmed.open(ShardStart::Oldest).await;
    let removed_by_ttl = json!({
        "eventName": "REMOVE",
        "userIdentity": { "Type": "Service", "PrincipalId": "dynamodb.amazonaws.com" },
        "dynamodb": {
            "ApproximateCreationDateTime": 1_700_000_000,
            "SequenceNumber": "100000000000000000009",
            "Keys": { "k": { "S": "a" } },
            "OldImage": { "k": { "S": "a" } },
        },
    });
    let last = Fault::Answer { status: 200, body: json!({ "Records": [removed_by_ttl] }) };
    harmed.proxy.plan("GetRecords", [last]);
    let ShardRead::Changes(changes) = reader.read(10).await.unwrap() else { panic!("its rest comes first") };
    assert_eq!(changes.len(), 1);
    assert!(changes[0].expired && changes[0].new.is_none() && changes[0].old.is_some(), "{changes:?}");
    for _ in 0..2 {
        assert_eq!(reader.read(10).await.unwrap(), ShardRead::Ended);
    }
    assert_eq!(harmed.proxy.calls("GetRecords"), 1, "the server is not asked about what has ended");
}

#[tokio::test]
async fn shards_come_in_pages() {
    let harmed = Harmed::start().await;
    let page = |shards: serde_json::Value, last: Option<&str>| {
        let mut stream = json!({ "StreamStatus": "ENABLED", "Shards": shards });
        if let Some(last) = last {
            stream["LastEvaluatedShardId"] = last.into();
        }
        Fault::Answer { status: 200, body: json!({ "StreamDescription": stream }) }
    };
    let first = json!([{ "ShardId": "shard-1" }]);
    let second = json!([{ "ShardId": "shard-2", "ParentShardId": "shard-1" }]);
    harmed.proxy.plan("DescribeStream", [page(first, Some("shard-1")), page(second, None)]);
    let id = |id: &str| ShardId(id.into());
    assert_eq!(
        harmed.store.shards(&TABLE).await.unwrap(),
        [Shard { id: id("shard-1"), parent: None }, Shard { id: id("shard-2"), parent: Some(id("shard-1")) }]
    );
}

#[tokio::test]
async fn throttling_is_waited_out_and_moves_nothing() {
    let harmed = Harmed::start().await;
    let mut reader = harmed.open(ShardStart::Oldest).await;
    harmed.proxy.plan("GetRecords", vec![Fault::throttle(); 2]);
    assert_eq!(read(&mut reader, 1).await, [0]);
    harmed.put(1).await;
    harmed.proxy.always("GetRecords", Fault::throttle());
    assert!(matches!(reader.read(10).await, Err(StoreError::Throttled(_))));
    harmed.proxy.heal();
    assert_eq!(read(&mut reader, 1).await, [1], "a failed read can be repeated");
}

#[tokio::test]
async fn a_dropped_read_loses_nothing() {
    let harmed = Harmed::start().await;
    let mut reader = harmed.open(ShardStart::Oldest).await;
    harmed.proxy.plan("GetRecords", [Fault::Hang]);
    let dropped = tokio::time::timeout(std::time::Duration::from_millis(200), reader.read(10)).await;
    assert!(dropped.is_err(), "it was under way: {dropped:?}");
    assert_eq!(read(&mut reader, 1).await, [0]);
}
