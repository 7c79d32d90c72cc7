//! Many writes at random, compared with what the conditions and updates themselves say.
//!
//! The typed trees of `courant-connectors` can be evaluated without a store; a store must come to the same,
//! write by write. It finds what no one thought of asking: a condition that is compiled wrongly in one
//! combination, an update that is half done.

use std::collections::BTreeMap;
use std::sync::Arc;

use courant_connectors::store::{
    CancelReason, Comparison, Condition, Item, Returning, Store, StoreError, Update, Value, Write,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::table::{Table, item, key, plain};

const KEYS: [&str; 4] = ["a", "b", "c", "d"];
const ATTRIBUTES: [&str; 3] = ["x", "y", "size"];
const WRITES: usize = 300;

/// What should be stored.
type Model = BTreeMap<&'static str, Item>;

/// One write, apart from the store: the item it names, and what is there afterwards.
struct Step {
    k: &'static str,
    change: Change,
    condition: Option<Condition>,
}

enum Change {
    Put(Item),
    Update(Update),
    Delete,
}

enum Expected {
    Done(Option<Item>),
    ConditionFailed(Option<Item>),
    Refused,
}

impl Step {
    fn any(random: &mut StdRng, k: &'static str) -> Self {
        let change = match random.random_range(0..4) {
            0 => Change::Put(ATTRIBUTES.iter().fold(item(k), |item, attribute| match any_value(random) {
                Some(value) => item.with(*attribute, value),
                None => item,
            })),
            1 => Change::Delete,
            _ => Change::Update(any_update(random)),
        };
        let condition = random.random_bool(0.6).then(|| any_condition(random, 3));
        Self { k, change, condition }
    }

    fn expected(&self, model: &Model) -> Expected {
        let stored = model.get(self.k);
        if self.condition.as_ref().is_some_and(|condition| !condition.holds(stored)) {
            return Expected::ConditionFailed(stored.cloned());
        }
        match &self.change {
            Change::Put(item) => Expected::Done(Some(item.clone())),
            Change::Delete => Expected::Done(None),
            Change::Update(update) => match update.apply(stored.cloned().unwrap_or_else(|| item(self.k))) {
                Ok(item) => Expected::Done(Some(item)),
                Err(_) => Expected::Refused,
            },
        }
    }

    fn write(&self, table: &Table) -> Write {
        let name = table.name.clone();
        let write = match &self.change {
            Change::Put(item) => Write::put(name, item.clone()),
            Change::Update(update) => Write::update(name, key(self.k), update.clone()),
            Change::Delete => Write::delete(name, key(self.k)),
        };
        match &self.condition {
            Some(condition) => write.only_if(condition.clone()),
            None => write,
        }
    }
}

/// `None` a third of the time.
fn any_value(random: &mut StdRng) -> Option<Value> {
    match random.random_range(0..3) {
        0 => None,
        1 => Some(Value::from(random.random_range(-2..3))),
        _ => Some(Value::from(["", "m", "n"][random.random_range(0..3)])),
    }
}

fn any_update(random: &mut StdRng) -> Update {
    // Each attribute at most once, and at least one: naming one twice is asked for elsewhere.
    let from = random.random_range(0..ATTRIBUTES.len());
    ATTRIBUTES[from..].iter().fold(Update::new(), |update, attribute| {
        match (random.random_range(0..4), any_value(random)) {
            (0, Some(value)) => update.set(*attribute, value),
            (1, Some(value)) => update.set_if_missing(*attribute, value),
            (2, _) => update.add(*attribute, random.random_range(-2..3)),
            _ => update.remove(*attribute),
        }
    })
}

fn any_condition(random: &mut StdRng, depth: u32) -> Condition {
    let attribute = ATTRIBUTES[random.random_range(0..ATTRIBUTES.len())];
    let comparisons = [
        Comparison::Equal,
        Comparison::NotEqual,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
    ];
    let some = |random: &mut StdRng| {
        let count = random.random_range(0..4);
        (0..count).map(|_| any_condition(random, depth - 1)).collect()
    };
    match random.random_range(0..if depth == 0 { 4 } else { 7 }) {
        0 => Condition::exists(attribute),
        1 => Condition::missing(attribute),
        2 | 3 => {
            let is = comparisons[random.random_range(0..comparisons.len())];
            Condition::compare(attribute, is, any_value(random).unwrap_or(Value::from(0)))
        }
        4 => Condition::All(some(random)),
        5 => Condition::Any(some(random)),
        _ => Condition::Not(Box::new(any_condition(random, depth - 1))),
    }
}

fn any_step(random: &mut StdRng) -> Step {
    let k = KEYS[random.random_range(0..KEYS.len())];
    Step::any(random, k)
}

fn keep(model: &mut Model, k: &'static str, item: Option<Item>) {
    match item {
        Some(item) => model.insert(k, item),
        None => model.remove(k),
    };
}

async fn is_stored(table: &Table, model: &Model, when: &str) {
    for k in KEYS {
        assert_eq!(table.get(key(k)).await.as_ref(), model.get(k), "{k} {when}");
    }
}

pub async fn random_writes_do_as_the_model(store: Arc<dyn Store>) {
    let table = Table::create(&store, "random_writes_do_as_the_model", plain()).await;
    let seed = rand::random();
    let mut random = StdRng::seed_from_u64(seed);
    let mut model = Model::new();
    for n in 0..WRITES {
        let step = any_step(&mut random);
        let write = step.write(&table);
        let when = format!("at write {n} with seed {seed}: {write:?}");
        match (step.expected(&model), table.write(write, Returning::Nothing).await) {
            (Expected::Done(item), Ok(_)) => keep(&mut model, step.k, item),
            (Expected::ConditionFailed(met), Err(StoreError::ConditionFailed { current })) => {
                assert_eq!(current.map(|item| *item), met, "{when}");
            }
            (Expected::Refused, Err(StoreError::Invalid(_))) => {}
            (_, other) => panic!("{other:?} {when}, stored {:?}", model.get(step.k)),
        }
        is_stored(&table, &model, &when).await;
    }
}

pub async fn random_transactions_do_as_the_model(store: Arc<dyn Store>) {
    let table = Table::create(&store, "random_transactions_do_as_the_model", plain()).await;
    let seed = rand::random();
    let mut random = StdRng::seed_from_u64(seed);
    let mut model = Model::new();
    for n in 0..WRITES / KEYS.len() {
        let first = random.random_range(0..KEYS.len());
        let steps: Vec<Step> = KEYS[first..].iter().map(|k| Step::any(&mut random, k)).collect();
        let writes: Vec<Write> = steps.iter().map(|step| step.write(&table)).collect();
        let when = format!("at transaction {n} with seed {seed}: {writes:?}");
        let expected: Vec<Expected> = steps.iter().map(|step| step.expected(&model)).collect();
        match table.transact(writes).await {
            Ok(()) => {
                for (step, expected) in steps.iter().zip(expected) {
                    let Expected::Done(item) = expected else {
                        panic!("{} was not to be done {when}", step.k)
                    };
                    keep(&mut model, step.k, item);
                }
            }
            Err(StoreError::TransactionCanceled { reasons }) => {
                let as_expected =
                    reasons.iter().zip(&expected).all(|(reason, expected)| match (reason, expected) {
                        (None, Expected::Done(_)) | (Some(CancelReason::Invalid(_)), Expected::Refused) => {
                            true
                        }
                        (Some(CancelReason::ConditionFailed { current }), Expected::ConditionFailed(met)) => {
                            current.as_deref() == met.as_ref()
                        }
                        _ => false,
                    });
                assert!(as_expected && reasons.len() == expected.len(), "{reasons:?} {when}");
                assert!(reasons.iter().any(Option::is_some), "canceled for no reason {when}");
            }
            other => panic!("{other:?} {when}"),
        }
        is_stored(&table, &model, &when).await;
    }
}
