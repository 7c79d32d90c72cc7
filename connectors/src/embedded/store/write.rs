//! Puts, updates, deletes and transactions: prepared by the caller, decided by the committer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustc_hash::FxHashSet;
use tokio::sync::oneshot;
use xxhash_rust::xxh3::Xxh3;

use super::super::Engine;
use super::super::committer::{CommitError, Job};
use super::super::group::Group;
use super::encoding::{encode_item, row_key, row_key_of};
use super::settle;
use super::table::{NewRow, RowChange, StoredRow, Table};
use super::tokens::{TokenUse, Tokens};
use crate::store::{
    BatchWrite, CancelReason, Condition, Durability, Item, Key, MAX_TRANSACTION, MAX_TRANSACTION_BYTES, Name,
    Result, Returning, StoreError, Transaction, Update, Write, WriteStore,
};

/// A write whose row is named and whose item is encoded, so that the committer has little left to do.
struct Prepared {
    table: Arc<Table>,
    row: Vec<u8>,
    action: Action,
    condition: Option<Condition>,
}

enum Action {
    Put {
        encoded: Vec<u8>,
        /// As its table's limits count.
        size: usize,
        /// Only for tables that look at it: it is freed where it was made otherwise.
        item: Option<Item>,
    },
    Update {
        key: Key,
        update: Update,
    },
    Delete,
    Check,
}

/// What a write would do, decided against the group so far.
#[derive(Default)]
struct Decision {
    /// As it is on disk, whether or not its time has come.
    stored: Option<StoredRow>,
    /// Whether callers see it.
    is_visible: bool,
    /// The item after an update.
    updated: Option<Item>,
}

impl Prepared {
    fn new(engine: &Engine, write: Write) -> Result<Self> {
        let table = engine.table(write.table())?;
        Ok(match write {
            Write::Put { item, condition, .. } => Self::put(table, item, condition)?,
            Write::Update { key, update, condition, .. } => Self {
                row: checked_row(&table, &key)?,
                table,
                action: Action::Update { key, update },
                condition,
            },
            Write::Delete { key, condition, .. } => {
                Self { row: checked_row(&table, &key)?, table, action: Action::Delete, condition }
            }
            Write::Check { key, condition, .. } => Self {
                row: checked_row(&table, &key)?,
                table,
                action: Action::Check,
                condition: Some(condition),
            },
        })
    }

    fn put(table: Arc<Table>, item: Item, condition: Option<Condition>) -> Result<Self> {
        let row = row_key(&table.schema, &item)?;
        let size = table.check_item(&item)?;
        let encoded = encode_item(&item, size);
        let item = table.looks_at_items().then_some(item);
        Ok(Self { table, row, action: Action::Put { encoded, size, item }, condition })
    }

    fn bytes(&self) -> usize {
        let body = match &self.action {
            Action::Put { encoded, .. } => 2 * encoded.len(),
            Action::Update { .. } | Action::Delete | Action::Check => 0,
        };
        128 + self.row.len() + body
    }

    /// Whether it can be done, and what it meets. Changes nothing.
    fn decide(&self, group: &Group, returning: Returning) -> Result<Decision> {
        self.table.check_exists()?;
        let blind = matches!(self.action, Action::Put { .. } | Action::Delete)
            && self.condition.is_none()
            && returning == Returning::Nothing
            && !self.table.needs_old_rows();
        if blind {
            return Ok(Decision::default());
        }
        let stored = self.table.stored_row(group, &self.row)?;
        let now = Duration::from_millis(group.now);
        let visible = stored.as_ref().map(|stored| &stored.item);
        let visible = visible.filter(|item| !self.table.schema.has_ended(item, now));
        if let Some(condition) = &self.condition
            && !condition.holds(visible)
        {
            return Err(StoreError::ConditionFailed { current: visible.cloned().map(Box::new) });
        }
        let updated = match &self.action {
            Action::Update { key, update } => Some(self.updated(key, update, visible)?),
            Action::Put { .. } | Action::Delete | Action::Check => None,
        };
        Ok(Decision { is_visible: visible.is_some(), stored, updated })
    }

    fn updated(&self, key: &Key, update: &Update, before: Option<&Item>) -> Result<Item> {
        let schema = &self.table.schema;
        let keys = [Some(&schema.partition), schema.sort.as_ref()];
        let touches_key = |name| keys.iter().flatten().any(|key| key.name == name);
        if let Some(action) = update.actions().iter().find(|action| touches_key(action.attribute().as_str()))
        {
            return Err(StoreError::Invalid(format!(
                "the key attribute '{}' cannot be updated",
                action.attribute()
            )));
        }
        let before = before.cloned().unwrap_or_else(|| key.clone().into_item());
        let item = update.apply(before).map_err(StoreError::Invalid)?;
        self.table.check_item(&item)?;
        Ok(item)
    }

    /// Makes the change, and tells what the caller asked to know. Nothing is left of the write afterwards.
    fn carry_out(&mut self, group: &mut Group, decision: Decision, returning: Returning) -> Option<Item> {
        let Decision { stored, is_visible, updated } = decision;
        let new = match &mut self.action {
            Action::Put { encoded, item, .. } => {
                Some(NewRow { encoded: std::mem::take(encoded), item: item.as_ref() })
            }
            Action::Update { .. } => {
                let item = updated.as_ref();
                item.map(|item| NewRow { encoded: encode_item(item, item.size()), item: Some(item) })
            }
            Action::Delete => None,
            Action::Check => return None,
        };
        if new.is_some() || stored.is_some() || !self.table.needs_old_rows() {
            let row = std::mem::take(&mut self.row);
            self.table.change_row(group, RowChange { row, old: stored.as_ref(), new, expired: false });
        }
        match (returning, &self.action) {
            (Returning::Old, _) => stored.filter(|_| is_visible).map(|stored| stored.item),
            (Returning::New, Action::Update { .. }) => updated,
            (Returning::UpdatedNew, Action::Update { update, .. }) => {
                updated.map(|item| update.touched(&item))
            }
            _ => None,
        }
    }
}

pub(super) fn checked_row(table: &Table, key: &Key) -> Result<Vec<u8>> {
    let named = 1 + usize::from(key.sort.is_some());
    let schema = &table.schema;
    if named != 1 + usize::from(schema.sort.is_some()) {
        return Err(StoreError::Invalid(format!(
            "a key of table '{}' names exactly its key attributes",
            schema.name
        )));
    }
    let value = |name: &Name| {
        let (partition, value) = &key.partition;
        let sort = key.sort.as_ref().filter(|(sort, _)| sort == name).map(|(_, value)| value);
        if partition == name { Some(value) } else { sort }
    };
    row_key_of(schema, value)
}

#[async_trait]
impl WriteStore for Engine {
    async fn write(
        &self,
        write: Write,
        returning: Returning,
        durability: Durability,
    ) -> Result<Option<Item>> {
        if matches!(write, Write::Check { .. }) {
            return Err(StoreError::Invalid("a check stands in a transaction, beside writes".to_owned()));
        }
        let tells_new = matches!(returning, Returning::New | Returning::UpdatedNew);
        if tells_new && !matches!(write, Write::Update { .. }) {
            return Err(StoreError::Invalid("only an update tells what is new".to_owned()));
        }
        let prepared = Prepared::new(self, write)?;
        let (reply, answer) = oneshot::channel();
        let job = SingleWrite { prepared, returning, durability, outcome: Ok(None), reply };
        self.answered(Box::new(job), answer).await
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()> {
        let prepared = writes.into_iter().map(|write| match write {
            BatchWrite::Put { table, item } => Prepared::put(self.table(&table)?, item, None),
            BatchWrite::Delete { table, key } => Prepared::new(self, Write::delete(table, key)),
        });
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        let (reply, answer) = oneshot::channel();
        self.answered(Box::new(ManyWrites { prepared, outcome: Ok(()), reply }), answer).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<()> {
        let count = transaction.writes.len();
        if count == 0 || count > MAX_TRANSACTION {
            return Err(StoreError::Invalid(format!(
                "a transaction has 1 to {MAX_TRANSACTION} writes, and not {count}"
            )));
        }
        let prepared = transaction.writes.into_iter().map(|write| Prepared::new(self, write));
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        check_transaction(&prepared)?;
        let token = transaction.token.map(|token| TokenUse::new(&token, digest(&prepared))).transpose()?;
        let (reply, answer) = oneshot::channel();
        let tokens = Arc::clone(&self.shared.tokens);
        let job = WholeTransaction { prepared, token, tokens, outcome: Ok(()), reply };
        self.answered(Box::new(job), answer).await
    }
}

fn check_transaction(prepared: &[Prepared]) -> Result<()> {
    let mut rows = FxHashSet::default();
    if !prepared.iter().all(|write| rows.insert((write.table.number, &write.row))) {
        return Err(StoreError::Invalid("a transaction cannot touch the same item twice".to_owned()));
    }
    let bytes: usize = prepared
        .iter()
        .map(|write| match &write.action {
            Action::Put { size, .. } => *size,
            Action::Update { .. } | Action::Delete | Action::Check => 0,
        })
        .sum();
    if bytes > MAX_TRANSACTION_BYTES {
        return Err(StoreError::Invalid(format!(
            "a transaction of {bytes} bytes is over the limit of {MAX_TRANSACTION_BYTES}"
        )));
    }
    Ok(())
}

/// What the writes do, from what is encoded of them already.
fn digest(prepared: &[Prepared]) -> u128 {
    let mut hash = Xxh3::new();
    let mut add = |bytes: &[u8]| {
        hash.update(&bytes.len().to_le_bytes());
        hash.update(bytes);
    };
    let encoded = |update| postcard::to_allocvec(update).expect("an update can always be written to memory");
    for Prepared { table, row, action, condition } in prepared {
        add(table.name().as_bytes());
        add(row);
        match action {
            Action::Put { encoded, .. } => [b"put", &encoded[..]].into_iter().for_each(&mut add),
            Action::Update { update, .. } => {
                [b"update", &encoded(update)[..]].into_iter().for_each(&mut add);
            }
            Action::Delete => add(b"delete"),
            Action::Check => add(b"check"),
        }
        let condition = postcard::to_allocvec(condition);
        add(&condition.expect("a condition can always be written to memory"));
    }
    hash.digest128()
}

impl Engine {
    pub(super) async fn answered<T>(
        &self,
        job: Box<dyn Job>,
        answer: oneshot::Receiver<Result<T>>,
    ) -> Result<T> {
        self.committer.submit(job).await;
        answer.await.unwrap_or_else(|_| Err(StoreError::UnknownOutcome("the engine ended".to_owned())))
    }
}

struct SingleWrite {
    prepared: Prepared,
    returning: Returning,
    durability: Durability,
    outcome: Result<Option<Item>>,
    reply: oneshot::Sender<Result<Option<Item>>>,
}

impl Job for SingleWrite {
    fn bytes(&self) -> usize {
        self.prepared.bytes()
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn decide(&mut self, group: &mut Group) {
        let decision = self.prepared.decide(group, self.returning);
        self.outcome = decision.map(|decision| self.prepared.carry_out(group, decision, self.returning));
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        // a caller that went away does not want to know
        let _ = self.reply.send(settle(self.outcome, committed));
    }
}

struct ManyWrites {
    prepared: Vec<Prepared>,
    outcome: Result<()>,
    reply: oneshot::Sender<Result<()>>,
}

impl Job for ManyWrites {
    fn bytes(&self) -> usize {
        self.prepared.iter().map(Prepared::bytes).sum()
    }

    fn decide(&mut self, group: &mut Group) {
        for prepared in &mut self.prepared {
            match prepared.decide(group, Returning::Nothing) {
                Ok(decision) => {
                    prepared.carry_out(group, decision, Returning::Nothing);
                }
                Err(error) => self.outcome = Err(error),
            }
        }
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        // a caller that went away does not want to know
        let _ = self.reply.send(settle(self.outcome, committed));
    }
}

struct WholeTransaction {
    prepared: Vec<Prepared>,
    token: Option<TokenUse>,
    tokens: Arc<Tokens>,
    outcome: Result<()>,
    reply: oneshot::Sender<Result<()>>,
}

impl WholeTransaction {
    fn decide_all(&mut self, group: &mut Group) -> Result<()> {
        if let Some(token) = &self.token
            && self.tokens.was_used(group, token)?
        {
            return Ok(());
        }
        let mut decisions = Vec::with_capacity(self.prepared.len());
        let mut reasons = vec![None; self.prepared.len()];
        for (prepared, reason) in self.prepared.iter().zip(&mut reasons) {
            match prepared.decide(group, Returning::Nothing) {
                Ok(decision) => decisions.push(decision),
                Err(StoreError::ConditionFailed { current }) => {
                    *reason = Some(CancelReason::ConditionFailed { current });
                }
                Err(StoreError::Invalid(message)) => *reason = Some(CancelReason::Invalid(message)),
                Err(other) => return Err(other),
            }
        }
        if reasons.iter().any(Option::is_some) {
            return Err(StoreError::TransactionCanceled { reasons });
        }
        for (prepared, decision) in self.prepared.iter_mut().zip(decisions) {
            prepared.carry_out(group, decision, Returning::Nothing);
        }
        if let Some(token) = &self.token {
            self.tokens.remember(group, token);
        }
        Ok(())
    }
}

impl Job for WholeTransaction {
    fn bytes(&self) -> usize {
        self.prepared.iter().map(Prepared::bytes).sum()
    }

    fn decide(&mut self, group: &mut Group) {
        self.outcome = self.decide_all(group);
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        // a caller that went away does not want to know
        let _ = self.reply.send(settle(self.outcome, committed));
    }
}
