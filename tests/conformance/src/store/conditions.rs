//! Writes that happen only if something holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::store::{
    Comparison, Condition, Item, Number, Returning, Store, StoreError, Update, Value, Write,
};

use super::fails_with;
use super::table::{Table, item, key, plain};

const COMPARISONS: [Comparison; 6] = [
    Comparison::Equal,
    Comparison::NotEqual,
    Comparison::Less,
    Comparison::LessOrEqual,
    Comparison::Greater,
    Comparison::GreaterOrEqual,
];

/// Whether the store takes a write of `a` under this condition. The write changes nothing.
async fn takes(table: &Table, condition: Condition) -> bool {
    let write = Write::update(table.name.clone(), key("a"), Update::new().remove("never")).only_if(condition);
    match table.write(write, Returning::Nothing).await {
        Ok(_) => true,
        Err(StoreError::ConditionFailed { .. }) => false,
        Err(other) => panic!("neither taken nor refused: {other:?}"),
    }
}

pub async fn a_put_if_missing_happens_once(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_put_if_missing_happens_once", plain()).await;
    table.put_if(item("a").with("n", 1), Condition::missing("k")).await.expect("the first");
    let second = table.put_if(item("a").with("n", 2), Condition::missing("k")).await;
    fails_with!(second, StoreError::ConditionFailed { .. });
    assert_eq!(table.get(key("a")).await, Some(item("a").with("n", 1)));
}

pub async fn a_failed_condition_shows_what_it_met(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_failed_condition_shows_what_it_met", plain()).await;
    let stored = item("a").with("n", 1);
    table.put(stored.clone()).await;
    let name = || table.name.clone();
    let writes = [
        Write::put(name(), item("a")),
        Write::update(name(), key("a"), Update::new().set("n", 2)),
        Write::delete(name(), key("a")),
    ];
    for write in writes {
        let failed = table.write(write.only_if(Condition::equals("n", 9)), Returning::Nothing).await;
        fails_with!(
            failed,
            StoreError::ConditionFailed { current: Some(current) } if *current == stored
        );
    }
    assert_eq!(table.get(key("a")).await, Some(stored), "nothing happened");
}

pub async fn nothing_stored_is_met_as_nothing(store: Arc<dyn Store>) {
    let table = Table::create(&store, "nothing_stored_is_met_as_nothing", plain()).await;
    let name = || table.name.clone();
    let writes = [
        Write::put(name(), item("a")),
        Write::update(name(), key("a"), Update::new().set("n", 2)),
        Write::delete(name(), key("a")),
    ];
    for write in writes {
        let failed = table.write(write.only_if(Condition::exists("k")), Returning::Nothing).await;
        fails_with!(failed, StoreError::ConditionFailed { current: None });
    }
    assert_eq!(table.get(key("a")).await, None, "a failed update makes no item");
    let delete = Write::delete(name(), key("a")).only_if(Condition::missing("k"));
    table.write(delete, Returning::Nothing).await.expect("a delete of nothing, if there is nothing");
}

pub async fn comparisons_hold_as_the_model_says(store: Arc<dyn Store>) {
    let table = Table::create(&store, "comparisons_hold_as_the_model_says", plain()).await;
    let stored = item("a")
        .with("t", "m")
        .with("n", 10)
        .with("b", Bytes::from_static(&[5, 0]))
        .with("d", "1.50".parse::<Number>().expect("a number"));
    table.put(stored.clone()).await;
    let against: [(&str, Value); 17] = [
        ("t", "l".into()),
        ("t", "m".into()),
        ("t", "mm".into()),
        ("t", "ü".into()),
        ("n", 9.into()),
        ("n", 10.into()),
        ("n", "10.0".parse::<Number>().expect("a number").into()),
        // As text it would be less.
        ("n", 9.into()),
        ("n", 100.into()),
        ("n", (-10).into()),
        ("b", Bytes::from_static(&[5]).into()),
        ("b", Bytes::from_static(&[5, 0]).into()),
        ("b", Bytes::from_static(&[5, 0, 0]).into()),
        ("d", "1.5".parse::<Number>().expect("a number").into()),
        // Another kind, and nothing there.
        ("n", "10".into()),
        ("t", 1.into()),
        ("absent", 1.into()),
    ];
    for (attribute, value) in against {
        for is in COMPARISONS {
            let condition = Condition::compare(attribute, is, value.clone());
            let expected = condition.holds(Some(&stored));
            assert_eq!(takes(&table, condition).await, expected, "{attribute} {is:?} {value:?}");
        }
    }
}

pub async fn every_kind_can_be_equal(store: Arc<dyn Store>) {
    let table = Table::create(&store, "every_kind_can_be_equal", plain()).await;
    let values: [Value; 7] = [
        true.into(),
        Value::Null,
        Value::List(vec![1.into(), "x".into()]),
        Value::Map(BTreeMap::from([("x".to_owned(), Value::List(vec![]))])),
        Value::TextSet(BTreeSet::from(["b".to_owned(), "a".to_owned()])),
        Value::NumberSet(BTreeSet::from([1.into(), 2.into()])),
        Value::BytesSet(BTreeSet::from([Bytes::from_static(&[0])])),
    ];
    for (index, value) in values.iter().enumerate() {
        table.put(item("a").with("v", value.clone())).await;
        assert!(takes(&table, Condition::equals("v", value.clone())).await, "{value:?} equals itself");
        let other = values[(index + 1) % values.len()].clone();
        assert!(!takes(&table, Condition::equals("v", other.clone())).await, "{value:?} is not {other:?}");
        assert!(takes(&table, Condition::compare("v", Comparison::NotEqual, other)).await);
    }
}

pub async fn conditions_can_be_combined(store: Arc<dyn Store>) {
    let table = Table::create(&store, "conditions_can_be_combined", plain()).await;
    let stored = item("a").with("n", 5);
    table.put(stored.clone()).await;
    let yes = || Condition::equals("n", 5);
    let no = || Condition::equals("n", 6);
    let not = |condition| Condition::Not(Box::new(condition));
    let combined = [
        yes().and(yes()),
        yes().and(no()),
        no().or(yes()),
        no().or(no()),
        not(no()),
        not(yes().and(no())),
        not(not(yes())),
        no().or(yes().and(not(no()))),
        Condition::All(vec![no().or(yes()), yes().or(no())]),
        Condition::Any(vec![yes().and(no()), not(yes())]),
        Condition::All(vec![yes()]),
        Condition::Any(vec![no()]),
        Condition::All(vec![]),
        Condition::Any(vec![]),
        not(Condition::Any(vec![])),
        Condition::missing("seq").or(Condition::less("seq", 9)),
        Condition::exists("n").and(Condition::missing("seq")),
    ];
    for condition in combined {
        let expected = condition.holds(Some(&stored));
        assert_eq!(takes(&table, condition.clone()).await, expected, "{condition:?}");
    }
}

pub async fn a_value_only_moves_forward(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_value_only_moves_forward", plain()).await;
    let to = |seq: i32| {
        let forward = Condition::missing("seq").or(Condition::less("seq", seq));
        Write::update(table.name.clone(), key("a"), Update::new().set("seq", seq)).only_if(forward)
    };
    let mut moved = Vec::new();
    for seq in [3, 1, 3, 7, 5] {
        moved.push(table.write(to(seq), Returning::Nothing).await.is_ok());
    }
    assert_eq!(moved, [true, false, false, true, false]);
    assert_eq!(table.get(key("a")).await, Some(Item::new().with("k", "a").with("seq", 7)));
}
