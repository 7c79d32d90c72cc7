//! Puts, updates, deletes and transactions: prepared by the caller, decided by the committer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustc_hash::FxHashSet;
use tokio::sync::oneshot;

use super::super::Engine;
use super::super::committer::{CommitError, Job};
use super::super::group::Group;
use super::encoding::{decode_item, encode_item, row_key};
use super::table::{RowChange, Table};
use super::tokens::{TokenUse, Tokens};
use super::{read_error, settle};
use crate::store::{
    BatchWrite, CancelReason, Condition, Durability, Item, Key, MAX_TRANSACTION, MAX_TRANSACTION_BYTES,
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
    Put { item: Item, encoded: Vec<u8> },
    Update { key: Key, update: Update },
    Delete,
    Check,
}

/// What a write would do, decided against the group so far.
struct Decision {
    /// As it is on disk, whether or not its time has come.
    stored: Option<Item>,
    /// As callers see it.
    visible: Option<Item>,
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
        table.check_item(&item)?;
        let encoded = encode_item(&item);
        Ok(Self { table, row, action: Action::Put { item, encoded }, condition })
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
            return Ok(Decision { stored: None, visible: None, updated: None });
        }
        let stored = group.get(&self.table.rows, &self.row).map_err(read_error)?;
        let stored = stored.map(|bytes| decode_item(&bytes)).transpose()?;
        let now = Duration::from_millis(group.now);
        let visible = stored.clone().filter(|item| !self.table.schema.has_ended(item, now));
        if let Some(condition) = &self.condition
            && !condition.holds(visible.as_ref())
        {
            return Err(StoreError::ConditionFailed { current: visible.map(Box::new) });
        }
        let updated = match &self.action {
            Action::Update { key, update } => Some(self.updated(key, update, visible.clone())?),
            Action::Put { .. } | Action::Delete | Action::Check => None,
        };
        Ok(Decision { stored, visible, updated })
    }

    fn updated(&self, key: &Key, update: &Update, before: Option<Item>) -> Result<Item> {
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
        let item =
            update.apply(before.unwrap_or_else(|| key.clone().into_item())).map_err(StoreError::Invalid)?;
        self.table.check_item(&item)?;
        Ok(item)
    }

    /// Makes the change, and tells what the caller asked to know.
    fn carry_out(&mut self, group: &mut Group, decision: Decision, returning: Returning) -> Option<Item> {
        let Decision { stored, visible, updated } = decision;
        let (new, encoded) = match &mut self.action {
            Action::Put { item, encoded } => (Some(&*item), Some(std::mem::take(encoded))),
            Action::Update { .. } => (updated.as_ref(), None),
            Action::Delete => (None, None),
            Action::Check => return None,
        };
        if new.is_some() || stored.is_some() || !self.table.needs_old_rows() {
            let change = RowChange { row: &self.row, old: stored, new, encoded, expired: false };
            self.table.change_row(group, change);
        }
        match (returning, &self.action) {
            (Returning::Old, _) => visible,
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
    row_key(schema, &key.clone().into_item())
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
        let token =
            transaction.token.as_ref().map(|token| TokenUse::new(token, &transaction.writes)).transpose()?;
        let count = transaction.writes.len();
        if count == 0 || count > MAX_TRANSACTION {
            return Err(StoreError::Invalid(format!(
                "a transaction has 1 to {MAX_TRANSACTION} writes, and not {count}"
            )));
        }
        let prepared = transaction.writes.into_iter().map(|write| Prepared::new(self, write));
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        check_transaction(&prepared)?;
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
            Action::Put { item, .. } => item.size(),
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
