//! A store and a log that also say what the engine would never let in: two items with one key, an index that does not
//! follow, an event in the wrong partition, numbers that go back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use async_trait::async_trait;
use courant_connectors::embedded::Engine;
use courant_connectors::log::{
    Consumer, Fetch, LogError, LogRecord, Offsets, ReadLog, Reader, Subscription, Topic, TopicPartition,
    Watermarks,
};
use courant_connectors::model::topics::MessagePersisted;
use courant_connectors::store::{Get, Item, Page, Query, ReadStore, Scan, ScanStore, StoreError, Within};

pub(crate) struct Lies {
    engine: Arc<Engine>,
    /// Messages that there are beside those in the table.
    pub(crate) doubled: Mutex<Vec<Item>>,
    /// Rows of `user_chats-index` that are left out, by chat and user.
    pub(crate) hidden: Mutex<BTreeSet<(String, String)>>,
    /// Rows of it that there are beside those of the table.
    pub(crate) ghosts: Mutex<Vec<Item>>,
    /// Records after the last one of a partition.
    pub(crate) appended: Mutex<BTreeMap<TopicPartition, Vec<LogRecord>>>,
    /// Watermarks and counters, by chat, that are one less at a second look.
    pub(crate) set_back: Mutex<BTreeSet<(&'static str, String)>>,
    second_look: AtomicBool,
}

impl Lies {
    pub(crate) fn about(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            doubled: Mutex::default(),
            hidden: Mutex::default(),
            ghosts: Mutex::default(),
            appended: Mutex::default(),
            set_back: Mutex::default(),
            second_look: AtomicBool::new(false),
        }
    }

    /// The events that are in a partition.
    pub(crate) async fn events_of(&self, partition: &TopicPartition) -> Vec<MessagePersisted> {
        let marks = self.engine.watermarks(&partition.topic).await.unwrap()[partition.partition as usize];
        let mut reader = self.engine.read_from([(partition.clone(), marks.low)].into()).await.unwrap();
        let mut events = Vec::new();
        while (events.len() as u64) < marks.high - marks.low {
            if let Fetch::Records { records, .. } = reader.fetch(1000).await.unwrap() {
                // What is no event counts too, so that the end is found.
                events.extend(records.iter().map(|record| MessagePersisted::decode(record).ok()));
            }
        }
        events.into_iter().flatten().collect()
    }

    pub(crate) fn begin_second_look(&self) {
        self.second_look.store(true, Ordering::Relaxed);
    }

    fn go_back(&self, get: &Get, item: &mut Item) {
        if !self.second_look.load(Ordering::Relaxed) {
            return;
        }
        for attribute in ["last_acked_sequence", "sequence_counter"] {
            let chat = item.text("chat_id").unwrap_or_default().to_owned();
            let Some(value) = item.u64(attribute) else { continue };
            let is_meant = |(table, of): &(&str, String)| *table == get.table.as_str() && *of == chat;
            if self.set_back.lock().unwrap().iter().any(is_meant) {
                item.set(attribute, value - 1);
            }
        }
    }

    fn lie_about_index(&self, query: &Query, page: &mut Page) {
        let user = query.partition.1.as_text().unwrap_or_default();
        let name = |item: &Item| {
            let text = |name| item.text(name).unwrap_or_default().to_owned();
            (text("chat_id"), text("user_id"))
        };
        let hidden = self.hidden.lock().unwrap();
        page.items.retain(|item| !hidden.contains(&name(item)));
        let is_asked_for = |item: &&Item| {
            let chat = item.text("chat_id").unwrap_or_default();
            let in_range = match query.range.as_ref().map(|range| &range.within) {
                Some(Within::Bounds(std::ops::Bound::Included(only), _)) => only.as_text() == Some(chat),
                _ => true,
            };
            in_range && item.text("user_id") == Some(user)
        };
        page.items.extend(self.ghosts.lock().unwrap().iter().filter(is_asked_for).cloned());
    }

    fn double(&self, page: &mut Page) {
        let doubled = self.doubled.lock().unwrap();
        let key = |item: &Item| (item.text("chat_id").map(str::to_owned), item.u64("sequence"));
        let there: Vec<_> = page.items.iter().map(key).collect();
        page.items.extend(doubled.iter().filter(|item| there.contains(&key(item))).cloned());
    }
}

#[async_trait]
impl ReadStore for Lies {
    async fn get(&self, get: Get) -> Result<Option<Item>, StoreError> {
        self.engine.get(get).await
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>, StoreError> {
        let mut found = self.engine.batch_get(gets.clone()).await?;
        for (get, item) in gets.iter().zip(&mut found) {
            if let Some(item) = item {
                self.go_back(get, item);
            }
        }
        Ok(found)
    }

    async fn query(&self, query: Query) -> Result<Page, StoreError> {
        let mut page = self.engine.query(query.clone()).await?;
        if query.index.as_deref() == Some("user_chats-index") {
            self.lie_about_index(&query, &mut page);
        }
        if query.table == "messages" {
            self.double(&mut page);
        }
        Ok(page)
    }
}

#[async_trait]
impl ScanStore for Lies {
    async fn scan(&self, scan: Scan) -> Result<Page, StoreError> {
        let is_messages = scan.table == "messages";
        let mut page = self.engine.scan(scan).await?;
        if is_messages {
            self.double(&mut page);
        }
        Ok(page)
    }
}

#[async_trait]
impl ReadLog for Lies {
    async fn subscribe(&self, _: Subscription) -> Result<Box<dyn Consumer>, LogError> {
        unreachable!("looking joins no group")
    }

    async fn read_from(&self, offsets: Offsets) -> Result<Box<dyn Reader>, LogError> {
        let (partition, from) = offsets.first_key_value().expect("a partition is read");
        let end = self.engine.watermarks(&partition.topic).await?[partition.partition as usize].high;
        let appended = self.appended.lock().unwrap().get(partition).cloned().unwrap_or_default();
        let inner = Offsets::from([(partition.clone(), (*from).min(end))]);
        let inner = self.engine.read_from(inner).await?;
        Ok(Box::new(LongerReader { inner, partition: partition.clone(), at: *from, end, appended }))
    }

    async fn watermarks(&self, topic: &Topic) -> Result<Vec<Watermarks>, LogError> {
        let mut marks = self.engine.watermarks(topic).await?;
        for (partition, records) in self.appended.lock().unwrap().iter() {
            if partition.topic == *topic {
                marks[partition.partition as usize].high += records.len() as u64;
            }
        }
        Ok(marks)
    }

    async fn offsets_at(&self, topic: &Topic, time: SystemTime) -> Result<Offsets, LogError> {
        self.engine.offsets_at(topic, time).await
    }

    async fn committed(&self, group: &str, topic: &Topic) -> Result<Offsets, LogError> {
        self.engine.committed(group, topic).await
    }

    async fn reset_group(&self, _: &str, _: &Offsets) -> Result<(), LogError> {
        unreachable!("looking changes nothing")
    }
}

/// A partition, and then what was appended to it.
struct LongerReader {
    inner: Box<dyn Reader>,
    partition: TopicPartition,
    at: u64,
    end: u64,
    appended: Vec<LogRecord>,
}

#[async_trait]
impl Reader for LongerReader {
    async fn fetch(&mut self, max: usize) -> Result<Fetch, LogError> {
        if self.at < self.end {
            let fetched = self.inner.fetch(max).await?;
            if let Fetch::Records { records, .. } = &fetched {
                self.at = records.last().map_or(self.at, |last| last.offset + 1);
            }
            return Ok(fetched);
        }
        let mut records = self.appended.split_off(usize::try_from(self.at - self.end).unwrap());
        for (offset, record) in (self.at..).zip(&mut records) {
            record.offset = offset;
        }
        self.at += records.len() as u64;
        Ok(Fetch::Records { from: self.partition.clone(), records })
    }

    async fn pause(&mut self, _: &[TopicPartition]) -> Result<(), LogError> {
        Ok(())
    }

    async fn resume(&mut self, _: &[TopicPartition]) -> Result<(), LogError> {
        Ok(())
    }

    fn lag(&self) -> Vec<(TopicPartition, u64)> {
        Vec::new()
    }
}
