//! Changing attributes of an item.

use std::sync::Arc;

use courant_connectors::store::{Item, Number, Returning, Store, Update};
use futures::future::join_all;

use super::is_refused;
use super::table::{Table, item, key, plain};

pub async fn an_update_makes_the_item(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_update_makes_the_item", plain()).await;
    table.update(key("a"), Update::new().set("x", 1), Returning::Nothing).await.expect("an update");
    assert_eq!(table.get(key("a")).await, Some(item("a").with("x", 1)));
}

pub async fn an_update_without_actions_makes_the_item(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_update_without_actions_makes_the_item", plain()).await;
    table.update(key("a"), Update::new(), Returning::Nothing).await.expect("an update of nothing");
    assert_eq!(table.get(key("a")).await, Some(item("a")));
    table.put(item("b").with("x", 1)).await;
    table.update(key("b"), Update::new(), Returning::Nothing).await.expect("an update of nothing");
    assert_eq!(table.get(key("b")).await, Some(item("b").with("x", 1)));
}

pub async fn every_action_does_what_it_says(store: Arc<dyn Store>) {
    let table = Table::create(&store, "every_action_does_what_it_says", plain()).await;
    table.put(item("a").with("there", 1).with("n", 40).with("gone", 1).with("kept", 1)).await;
    let update = Update::new()
        .set("new", "x")
        .set_if_missing("there", 2)
        .set_if_missing("absent", 2)
        .add("n", 2)
        .add("fresh", 7)
        .remove("gone")
        .remove("never");
    table.update(key("a"), update, Returning::Nothing).await.expect("all actions at once");
    let expected = item("a")
        .with("new", "x")
        .with("there", 1)
        .with("absent", 2)
        .with("n", 42)
        .with("fresh", 7)
        .with("kept", 1);
    assert_eq!(table.get(key("a")).await, Some(expected));
}

pub async fn an_update_tells_what_was_asked(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_update_tells_what_was_asked", plain()).await;
    let add = || Update::new().add("n", 1).set_if_missing("once", "x").remove("gone");
    let told = async |returning| table.update(key("a"), add(), returning).await.expect("an update");
    // The first makes the item. What it tells of the old one is nothing on AWS and the key on dynoxide.
    told(Returning::Nothing).await;
    assert_eq!(told(Returning::Old).await, Some(item("a").with("n", 1).with("once", "x")));
    table.update(key("a"), Update::new().set("other", 9), Returning::Nothing).await.expect("an update");
    let whole = item("a").with("n", 3).with("once", "x").with("other", 9);
    assert_eq!(told(Returning::New).await, Some(whole));
    assert_eq!(told(Returning::UpdatedNew).await, Some(Item::new().with("n", 4).with("once", "x")));
    assert_eq!(told(Returning::Nothing).await, None);
}

pub async fn what_an_update_removed_is_not_told(store: Arc<dyn Store>) {
    let table = Table::create(&store, "what_an_update_removed_is_not_told", plain()).await;
    table.put(item("a").with("x", 1)).await;
    let told =
        table.update(key("a"), Update::new().remove("x"), Returning::UpdatedNew).await.expect("an update");
    assert_eq!(told, Some(Item::new()), "there is an item, and nothing left of what was named");
}

pub async fn numbers_are_added_exactly(store: Arc<dyn Store>) {
    let table = Table::create(&store, "numbers_are_added_exactly", plain()).await;
    let number = |text: &str| text.parse::<Number>().expect("a number");
    let steps = [
        ("0.1", "0.1"),
        ("0.2", "0.3"),
        ("-1", "-0.7"),
        ("9223372036854775807", "9223372036854775806.3"),
        ("0.7", "9223372036854775807"),
        ("1", "9223372036854775808"),
        ("-18446744073709551616", "-9223372036854775808"),
    ];
    for (add, sum) in steps {
        let update = Update::new().add("n", number(add));
        let told = table.update(key("a"), update, Returning::UpdatedNew).await.expect("an addition");
        assert_eq!(told, Some(Item::new().with("n", number(sum))), "after adding {add}");
    }
}

pub async fn what_is_no_number_is_not_added_to(store: Arc<dyn Store>) {
    let table = Table::create(&store, "what_is_no_number_is_not_added_to", plain()).await;
    table.put(item("a").with("n", "five")).await;
    is_refused!(table.update(key("a"), Update::new().add("n", 1).set("x", 1), Returning::Nothing).await);
    assert_eq!(table.get(key("a")).await, Some(item("a").with("n", "five")), "nothing of it happened");
}

pub async fn keys_cannot_be_updated(store: Arc<dyn Store>) {
    let table = Table::create(&store, "keys_cannot_be_updated", plain()).await;
    table.put(item("a")).await;
    for update in [Update::new().set("k", "b"), Update::new().remove("k")] {
        is_refused!(table.update(key("a"), update, Returning::Nothing).await);
    }
    assert_eq!(table.get(key("a")).await, Some(item("a")));
}

pub async fn an_attribute_is_named_once(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_attribute_is_named_once", plain()).await;
    for update in [Update::new().set("n", 1).add("n", 1), Update::new().set("n", 1).remove("n")] {
        is_refused!(table.update(key("a"), update, Returning::Nothing).await);
    }
    assert_eq!(table.get(key("a")).await, None);
}

pub async fn concurrent_adds_give_distinct_values(store: Arc<dyn Store>) {
    let table = Table::create(&store, "concurrent_adds_give_distinct_values", plain()).await;
    let adds = (0..100).map(|_| table.update(key("a"), Update::new().add("n", 1), Returning::UpdatedNew));
    let told = join_all(adds).await;
    let mut values: Vec<u64> = told
        .into_iter()
        .map(|told| told.expect("an addition").and_then(|item| item.u64("n")).expect("its value"))
        .collect();
    values.sort_unstable();
    assert_eq!(values, (1..=100).collect::<Vec<u64>>());
}
