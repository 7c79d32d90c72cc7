//! Making tables and looking at them.

use std::sync::Arc;

use courant_connectors::store::{
    Capacity, Created, KeyAttribute, Name, Store, StoreError, Stream, TableSchema,
};

use super::table::{INDEXES, Table, indexed, item, key, plain, sorted_by};
use super::{fails_with, unique_name};

pub async fn a_table_is_described_as_it_was_made(store: Arc<dyn Store>) {
    let case = "a_table_is_described_as_it_was_made";
    let schemas = [
        TableSchema { name: unique_name(case), ..plain() },
        TableSchema {
            name: unique_name(case),
            ttl: Some(Name::new_static("ends")),
            stream: Stream::OldAndNewImages,
            ..sorted_by(KeyAttribute::bytes("s"))
        },
        TableSchema {
            name: unique_name(case),
            indexes: INDEXES.into(),
            capacity: Capacity::Provisioned { read_units: 5, write_units: 7 },
            point_in_time_recovery: true,
            ..sorted_by(KeyAttribute::number("s"))
        },
    ];
    for mut schema in schemas {
        store.create_table(&schema).await.expect("a new table");
        let description =
            store.describe_table(&schema.name).await.expect("a description").expect("the table");
        let mut described = description.schema;
        // What is not told says nothing, and an index may come in another place.
        if description.unknown.contains(&"point_in_time_recovery") {
            described.point_in_time_recovery = schema.point_in_time_recovery;
        }
        described.indexes.to_mut().sort_by_key(|index| index.name.clone());
        schema.indexes.to_mut().sort_by_key(|index| index.name.clone());
        assert_eq!(described, schema);
    }
}

pub async fn a_table_that_exists_is_left_alone(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_table_that_exists_is_left_alone", plain()).await;
    table.put(item("a")).await;
    let again = TableSchema { name: table.name.clone(), ..indexed() };
    assert_eq!(store.create_table(&again).await.expect("it is there"), Created::Existing);
    assert_eq!(table.get(key("a")).await, Some(item("a")));
    let description = store.describe_table(&table.name).await.expect("a description").expect("the table");
    assert!(description.schema.indexes.is_empty(), "it is as it was: {:?}", description.schema);
}

pub async fn a_dropped_table_is_gone(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_dropped_table_is_gone", plain()).await;
    table.put(item("a")).await;
    assert!(store.tables().await.expect("the tables").contains(&table.name));
    store.drop_table(&table.name).await.expect("it can be dropped");
    assert!(!store.tables().await.expect("the tables").contains(&table.name));
    assert_eq!(store.describe_table(&table.name).await.expect("no table"), None);
    fails_with!(table.try_get(key("a")).await, StoreError::NoSuchTable { .. });
}

pub async fn a_table_made_again_is_empty(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_table_made_again_is_empty", plain()).await;
    table.put(item("a")).await;
    store.drop_table(&table.name).await.expect("it can be dropped");
    // With other keys: nothing of the old one is remembered.
    let schema = TableSchema { name: table.name.clone(), ..sorted_by(KeyAttribute::number("s")) };
    assert!(matches!(store.create_table(&schema).await.expect("it is gone"), Created::New { .. }));
    assert_eq!(table.all(table.partition("a"), None).await, []);
    table.put(courant_connectors::store::Item::new().with("p", "a").with("s", 1)).await;
    assert_eq!(table.all(table.partition("a"), None).await.len(), 1);
}
