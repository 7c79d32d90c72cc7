//! Puts, updates, deletes and transactions: prepared by the caller, decided by the committer.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::super::Engine;
use super::super::committer::{CommitError, Job};
use super::super::group::Group;
use super::prepared::{Prepared, check_transaction, digest};
use super::settle;
use super::tokens::{TokenUse, Tokens};
use crate::store::{
    BatchWrite, CancelReason, Durability, Item, MAX_TRANSACTION, Result, Returning, StoreError, Transaction,
    Write, WriteStore,
};

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
