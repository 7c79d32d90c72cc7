//! Many reads, or many plain writes, in few calls.
//!
//! DynamoDB takes a hundred keys or twenty-five writes a call, refuses a key that comes twice, answers in any
//! order and may leave a part undone when it is busy or the answer grows too large. Here any number goes in,
//! in any order; what was left undone is sent again while that makes progress, and a bounded number of times
//! otherwise.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use aws_sdk_dynamodb::types::{DeleteRequest, KeysAndAttributes, PutRequest, WriteRequest};
use futures::{StreamExt, TryStreamExt, stream};
use rand::RngExt;

use super::DynamoDb;
use super::attempts::Attempts;
use super::convert::{Attributes, item_from, key_to_attributes, to_attributes};
use super::error::Doing;
use super::limits::check_item;
use super::read::is_strong;
use super::tables::unless_ended;
use crate::store::{BatchWrite, Get, Item, Key, Name, Result, TableSchema};

/// DynamoDB's limits for one call.
const KEYS_PER_CALL: usize = 100;
const WRITES_PER_CALL: usize = 25;

/// Calls of one batch at the same time: enough to hide the way there and back, few enough to leave room for
/// others.
const CALLS_AT_ONCE: usize = 4;

/// A table and its key's attributes in a form that can be looked up.
type Identity = (Name, Vec<u8>);

impl DynamoDb {
    pub(super) async fn get_in_batches(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        let doing = Doing::with_tables("batch get items", gets.iter().map(|get| &get.table));
        let mut strong: HashMap<Name, bool> = HashMap::new();
        for get in &gets {
            *strong.entry(get.table.clone()).or_default() |= is_strong(get.consistency);
        }
        let asked: Vec<Identity> =
            gets.iter().map(|get| identity(&get.table, &get.key.clone().into_item())).collect();
        let mut seen = HashSet::new();
        let different: Vec<(Name, Key)> = gets
            .into_iter()
            .zip(&asked)
            .filter(|(_, identity)| seen.insert(*identity))
            .map(|(get, _)| (get.table, get.key))
            .collect();

        let calls = different.chunks(KEYS_PER_CALL).map(|keys| self.keys_by_table(keys, &strong));
        let calls = calls.collect::<Result<Vec<_>>>()?;
        let found: Vec<Vec<(Identity, Item)>> = stream::iter(calls)
            .map(|call| self.get_all_of(&doing, call))
            .buffer_unordered(CALLS_AT_ONCE)
            .try_collect()
            .await?;
        let found: HashMap<Identity, Item> = found.into_iter().flatten().collect();
        Ok(asked.iter().map(|identity| found.get(identity).cloned()).collect())
    }

    fn keys_by_table(
        &self,
        keys: &[(Name, Key)],
        strong: &HashMap<Name, bool>,
    ) -> Result<HashMap<String, KeysAndAttributes>> {
        let mut by_table: HashMap<&Name, Vec<Attributes>> = HashMap::new();
        for (table, key) in keys {
            by_table.entry(table).or_default().push(key_to_attributes(key.clone()));
        }
        let call = by_table.into_iter().map(|(table, keys)| {
            let keys =
                KeysAndAttributes::builder().set_keys(Some(keys)).consistent_read(strong[table]).build();
            let doing = Doing::new("batch get items", table);
            Ok((self.tables.full_name(table), keys.map_err(|error| doing.invalid(error))?))
        });
        call.collect()
    }

    async fn get_all_of(
        &self,
        doing: &Doing,
        mut left: HashMap<String, KeysAndAttributes>,
    ) -> Result<Vec<(Identity, Item)>> {
        let mut found = Vec::new();
        let mut patience = Patience::default();
        loop {
            let count = count_of(&left, |keys| keys.keys().len());
            let sent = self.clients.repeatable.batch_get_item().set_request_items(Some(left)).send();
            let answer = sent.await.map_err(|error| doing.read_failed(&error))?;
            for (full_name, items) in answer.responses.unwrap_or_default() {
                let Some(table) = self.tables.own_name(&full_name) else { continue };
                let schema = self.schema(&table).await?;
                for attributes in items {
                    let item = item_from(attributes)?;
                    let identity = identity(&table, &key_of(&schema, &item));
                    found.extend(unless_ended(&schema, item).map(|item| (identity, item)));
                }
            }
            left = answer.unprocessed_keys.unwrap_or_default();
            match count_of(&left, |keys| keys.keys().len()) {
                0 => return Ok(found),
                unread => patience.wait(doing, unread, count).await?,
            }
        }
    }

    pub(super) async fn write_in_batches(&self, writes: Vec<BatchWrite>) -> Result<()> {
        let doing = Doing::with_tables("batch write items", writes.iter().map(BatchWrite::table));
        let writes = self.last_of_each_key(&doing, writes).await?;
        let calls = writes.chunks(WRITES_PER_CALL).map(|writes| {
            let mut call: HashMap<String, Vec<WriteRequest>> = HashMap::new();
            for (table, write) in writes {
                call.entry(self.tables.full_name(table)).or_default().push(write.clone());
            }
            call
        });
        stream::iter(calls.collect::<Vec<_>>())
            .map(Ok)
            .try_for_each_concurrent(CALLS_AT_ONCE, |call| self.write_all_of(&doing, call))
            .await
    }

    /// Each key once, with its last write.
    async fn last_of_each_key(
        &self,
        doing: &Doing,
        writes: Vec<BatchWrite>,
    ) -> Result<Vec<(Name, WriteRequest)>> {
        let mut seen = HashSet::new();
        let mut kept = Vec::with_capacity(writes.len());
        for write in writes.into_iter().rev() {
            let key = match &write {
                BatchWrite::Put { table, item } => key_of(&*self.schema(table).await?, item),
                BatchWrite::Delete { key, .. } => key.clone().into_item(),
            };
            if seen.insert(identity(write.table(), &key)) {
                kept.push(request(doing, write)?);
            }
        }
        kept.reverse();
        Ok(kept)
    }

    async fn write_all_of(&self, doing: &Doing, mut left: HashMap<String, Vec<WriteRequest>>) -> Result<()> {
        let mut patience = Patience::default();
        loop {
            let count = count_of(&left, Vec::len);
            let attempts = Attempts::default();
            let sent = self.clients.repeatable.batch_write_item().set_request_items(Some(left));
            let answer = sent.customize().interceptor(attempts.clone()).send().await;
            let answer = answer.map_err(|error| doing.write_failed(&error, &attempts))?;
            left = answer.unprocessed_items.unwrap_or_default();
            match count_of(&left, Vec::len) {
                0 => return Ok(()),
                undone => patience.wait(doing, undone, count).await?,
            }
        }
    }
}

/// How often a call that does nothing is repeated. With the pauses below this is about three seconds.
const FRUITLESS_TRIES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waits between calls that leave something undone, longer each time nothing was done.
#[derive(Default)]
struct Patience {
    fruitless: u32,
}

impl Patience {
    async fn wait(&mut self, doing: &Doing, undone: usize, asked: usize) -> Result<()> {
        self.fruitless = if undone < asked { 0 } else { self.fruitless + 1 };
        if self.fruitless == FRUITLESS_TRIES {
            return Err(doing.throttled(format_args!("{undone} were left undone {FRUITLESS_TRIES} times")));
        }
        let longest = FIRST_PAUSE.saturating_mul(1 << self.fruitless).min(LONGEST_PAUSE);
        // Anything up to the longest, so that those who were refused together do not come back together.
        let part: f64 = rand::rng().random();
        tokio::time::sleep(longest.mul_f64(part)).await;
        Ok(())
    }
}

fn count_of<T>(call: &HashMap<String, T>, count: impl Fn(&T) -> usize) -> usize {
    call.values().map(count).sum()
}

fn request(doing: &Doing, write: BatchWrite) -> Result<(Name, WriteRequest)> {
    let incomplete = |error| doing.invalid(error);
    let (table, request) = match write {
        BatchWrite::Put { table, item } => {
            check_item(doing, &item)?;
            let put =
                PutRequest::builder().set_item(Some(to_attributes(item))).build().map_err(incomplete)?;
            (table, WriteRequest::builder().put_request(put))
        }
        BatchWrite::Delete { table, key } => {
            let key = Some(key_to_attributes(key));
            let delete = DeleteRequest::builder().set_key(key).build().map_err(incomplete)?;
            (table, WriteRequest::builder().delete_request(delete))
        }
    };
    Ok((table, request.build()))
}

fn key_of(schema: &TableSchema, item: &Item) -> Item {
    let names = schema.key_names(None);
    names.filter_map(|name| Some((name.clone(), item.get(name)?.clone()))).collect()
}

fn identity(table: &Name, key: &Item) -> Identity {
    // Values have one representation each, and attributes an order, so equal keys have equal bytes.
    let bytes = postcard::to_stdvec(key).expect("items have a plain form and memory to hold it");
    (table.clone(), bytes)
}
