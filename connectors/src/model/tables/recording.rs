//! A store that remembers what it was asked, and answers as it was told to.

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;

use crate::store::{
    BatchWrite, Condition, Consistency, Direction, Durability, Get, Item, Page, Query, ReadStore, Result,
    Returning, StoreError, Transaction, Write, WriteStore,
};

/// One request as the documentation would put it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) operation: &'static str,
    pub(super) table: String,
    pub(super) index: Option<String>,
    /// `None` for writes.
    pub(super) consistency: Option<Consistency>,
    pub(super) request: Request,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Get(Get),
    Query(Query),
    Write(Write, Returning, Durability),
    BatchWrite(Vec<BatchWrite>),
}

impl Asked {
    pub(super) fn is_conditional(&self) -> bool {
        matches!(&self.request, Request::Write(write, ..) if write.condition().is_some())
    }

    pub(super) fn is_backward(&self) -> bool {
        matches!(&self.request, Request::Query(query) if query.direction == Direction::Backward)
    }
}

/// Answers in the order given; nothing found and everything done once they are used up.
#[derive(Default)]
pub(super) struct RecordingStore {
    asked: Mutex<Vec<Asked>>,
    answers: Mutex<VecDeque<Answer>>,
}

pub(super) enum Answer {
    Item(Option<Item>),
    Page(Page),
    ConditionFailed,
}

impl RecordingStore {
    pub(super) fn answering(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self { asked: Mutex::default(), answers: Mutex::new(answers.into_iter().collect()) }
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn record(
        &self,
        operation: &'static str,
        table: &str,
        index: Option<&str>,
        consistency: Option<Consistency>,
        request: Request,
    ) -> Option<Answer> {
        let index = index.map(str::to_owned);
        let asked = Asked { operation, table: table.to_owned(), index, consistency, request };
        self.asked.lock().unwrap().push(asked);
        self.answers.lock().unwrap().pop_front()
    }

    fn answer_item(answer: Option<Answer>) -> Result<Option<Item>> {
        match answer {
            None => Ok(None),
            Some(Answer::Item(item)) => Ok(item),
            Some(Answer::ConditionFailed) => Err(StoreError::ConditionFailed { current: None }),
            Some(Answer::Page(_)) => panic!("a page is no answer to this"),
        }
    }
}

#[async_trait]
impl ReadStore for RecordingStore {
    async fn get(&self, get: Get) -> Result<Option<Item>> {
        let (table, consistency) = (get.table.clone(), get.consistency);
        Self::answer_item(self.record("GetItem", &table, None, Some(consistency), Request::Get(get)))
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        let record = |get: Get| {
            let (table, consistency) = (get.table.clone(), get.consistency);
            self.record("BatchGetItem", &table, None, Some(consistency), Request::Get(get))
        };
        gets.into_iter().map(|get| Self::answer_item(record(get))).collect()
    }

    async fn query(&self, query: Query) -> Result<Page> {
        let (table, index, consistency) = (query.table.clone(), query.index.clone(), query.consistency);
        match self.record("Query", &table, index.as_deref(), Some(consistency), Request::Query(query)) {
            None => Ok(Page::default()),
            Some(Answer::Page(page)) => Ok(page),
            Some(_) => panic!("a query is answered with a page"),
        }
    }
}

#[async_trait]
impl WriteStore for RecordingStore {
    async fn write(
        &self,
        write: Write,
        returning: Returning,
        durability: Durability,
    ) -> Result<Option<Item>> {
        let operation = match write {
            Write::Put { .. } => "PutItem",
            Write::Update { .. } => "UpdateItem",
            Write::Delete { .. } => "DeleteItem",
            Write::Check { .. } => panic!("a check stands in a transaction"),
        };
        let table = write.table().clone();
        Self::answer_item(self.record(
            operation,
            &table,
            None,
            None,
            Request::Write(write, returning, durability),
        ))
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()> {
        let table = writes[0].table().clone();
        self.record("BatchWriteItem", &table, None, None, Request::BatchWrite(writes));
        Ok(())
    }

    async fn transact(&self, _: Transaction) -> Result<()> {
        panic!("no access pattern is a transaction by itself; stages compose them of the '_write' functions")
    }
}

/// What a put must not overwrite, or an update must meet.
pub(super) fn condition_of(asked: &Asked) -> &Condition {
    match &asked.request {
        Request::Write(write, ..) => write.condition().expect("the write has a condition"),
        _ => panic!("not a write: {asked:?}"),
    }
}
