//! What must be true of the folder after the process was killed.

use std::collections::BTreeMap;
use std::path::Path;

use courant_connectors::embedded::{Engine, Options};
use courant_connectors::log::{Fetch, LogRecord, ReadLog, Topic, TopicPartition, Watermarks};
use courant_connectors::store::{
    AdminStore, ChangeStream, Consistency, Item, Name, Query, ReadStore, Scan, ScanStore, Segment, ShardRead,
    ShardStart, TableSchema,
};

use super::model::Model;
use super::writer::record;
use super::{GROUP, OWNERS, PAIRS, ROWS, TOPICS, clock_of_the_test, padding, row, row_id, start_of, tables};

type Rows = BTreeMap<String, Item>;

impl Model {
    /// Opens the folder and compares all of it with what was told; then knows what was found.
    ///
    /// # Panics
    /// If anything is missing, wrong, or there without having been asked for.
    pub async fn verify(&mut self, folder: &Path) {
        let options = Options { clock: clock_of_the_test(), ..Options::default() };
        let engine = Engine::open(folder, options).await.unwrap_or_else(|error| panic!("{error}"));
        let checked = engine.check(|_| ()).await.expect("a check can be made");
        assert_eq!(checked.findings, Vec::<String>::new(), "the parts of the folder disagree");
        let names = engine.tables().await.expect("tables are known");
        self.verify_tables(&names);
        // killed before it had made them all, in the first round
        if names.iter().filter(|name| !name.starts_with("passing-")).count() == tables().len() {
            let [rows_schema, left_schema, right_schema] = tables();
            let rows = scan(&engine, &rows_schema.name).await;
            self.verify_rows(&rows);
            verify_indexes(&engine, &rows_schema, &rows).await;
            let left = scan(&engine, &left_schema.name).await;
            self.verify_pairs(&left, &scan(&engine, &right_schema.name).await);
            self.replay(&engine, &rows_schema.name, rows).await;
            self.replay(&engine, &left_schema.name, left).await;
            for (topic, partitions) in TOPICS {
                self.verify_log(&engine, topic, partitions).await;
            }
            self.verify_offsets(&engine).await;
        }
        assert!(self.records.is_empty(), "told of and not there: {:?}", self.records);
        engine.close().await;
        self.rounds += 1;
    }

    fn verify_tables(&mut self, names: &[Name]) {
        for table in &self.created {
            let there = names.iter().any(|name| name == table);
            if self.dropped.contains(table) {
                assert!(!there, "table '{table}' was dropped and is there");
            } else if !self.drop_asked.contains(table) {
                assert!(there, "table '{table}' was made and is not there");
            }
        }
        let passing = names.iter().filter(|name| name.starts_with("passing-"));
        self.created = passing.map(ToString::to_string).collect();
        self.drop_asked.clear();
        self.dropped.clear();
    }

    fn verify_rows(&mut self, found: &Rows) {
        for id in 0..ROWS {
            let next = self.version_on_its_way(id);
            let last = self.rows.get(&id).copied().filter(|_| !self.gone.contains(&id));
            if let Some(item) = found.get(&row_id(id)) {
                let version = item.u64("version").expect("a row has a version");
                assert!(Some(version) == last || version == next, "{id}: {version}, told {last:?}");
                assert_eq!(row(id, version).as_ref(), Some(item), "not as it was written");
                self.rows.insert(id, version);
                self.gone.remove(&id);
                continue;
            }
            if let Some(last) = last {
                let may_be_gone = |item: Item| item.u64("ends").is_some_and(|end| end < self.latest());
                let gone = [last, next].iter().any(|version| row(id, *version).is_none_or(may_be_gone));
                assert!(gone, "row {id} in version {last} was acknowledged and is not there");
            }
            self.gone.insert(id);
        }
        assert!(found.len() <= ROWS as usize, "rows that nobody wrote");
    }

    /// No process takes that long.
    fn latest(&self) -> u64 {
        start_of(self.rounds).as_secs() + 1000
    }

    fn verify_pairs(&mut self, left: &Rows, right: &Rows) {
        let mut sum = 0;
        for id in 0..PAIRS {
            let name = format!("pair-{id}");
            let count = left.get(&name).and_then(|item| item.u64("count")).unwrap_or(0);
            let told = self.pairs.get(&id).copied().unwrap_or(0);
            assert!(count == told || count == told + 1, "pair {id}: {count} found, {told} told");
            if count > 0 {
                let expected = Item::new()
                    .with("id", name.clone())
                    .with("count", count)
                    .with("payload", bytes::Bytes::from(padding(count)));
                assert_eq!((left.get(&name), right.get(&name)), (Some(&expected), Some(&expected)));
            }
            self.pairs.insert(id, count);
            sum += count;
        }
        let total = right.get("total").and_then(|item| item.u64("count")).unwrap_or(0);
        assert_eq!(total, sum, "half of a transaction is there");
    }

    /// The changes since the last round lead from what the table was to what it is.
    async fn replay(&mut self, engine: &Engine, table: &Name, found: Rows) {
        let replayed = self.replayed.entry(table.clone()).or_default();
        for shard in engine.shards(table).await.expect("the table has a change stream") {
            let place = (table.clone(), shard.id.clone());
            let start = self.positions.get(&place).cloned().map_or(ShardStart::Oldest, ShardStart::After);
            let mut reader = engine.open_shard(table, &shard.id, start).await.expect("its place is kept");
            while let ShardRead::Changes(changes) = reader.read(1000).await.expect("changes can be read") {
                let Some(last) = changes.last() else { break };
                self.positions.insert(place.clone(), last.sequence.clone());
                assert!(changes.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
                for change in changes {
                    let id = change.key.partition.1.as_text().expect("keys are text").to_owned();
                    assert_eq!(replayed.get(&id), change.old.as_ref(), "the stream does not follow on");
                    assert!(!change.expired || change.old.is_some_and(|old| old.get("ends").is_some()));
                    match change.new {
                        Some(new) => replayed.insert(id, new),
                        None => replayed.remove(&id),
                    };
                }
            }
        }
        assert_eq!(*replayed, found, "the change stream of '{table}' leads to another table");
    }

    async fn verify_log(&mut self, engine: &Engine, topic: &str, partitions: u32) {
        let watermarks = engine.watermarks(&Topic::from(topic)).await.expect("the topic is there");
        assert_eq!(watermarks.len(), partitions as usize);
        for (partition, watermarks) in (0..).zip(watermarks) {
            let end = self.ends.get(&(topic.to_owned(), partition)).copied().unwrap_or(0);
            assert!(
                watermarks.low <= end && end <= watermarks.high,
                "{topic}/{partition}: {watermarks:?}, {end}"
            );
            let records = read(engine, topic, partition, watermarks).await;
            self.verify_records(topic, partition, end, &records);
            self.ends.insert((topic.to_owned(), partition), watermarks.high);
        }
    }

    /// Every sender's records are there in order and once, at the places it was told.
    fn verify_records(&mut self, topic: &str, partition: u32, end: u64, records: &[LogRecord]) {
        let mut next: BTreeMap<(u64, u32), u64> = BTreeMap::new();
        assert!(records.windows(2).all(|pair| pair[0].at <= pair[1].at), "times fall in {topic}/{partition}");
        for found in records {
            let text = String::from_utf8_lossy(&found.payload[..found.payload.len().min(60)]).into_owned();
            let mut words = text.split(' ').map_while(|word| word.parse::<u64>().ok());
            let mut word = || words.next().unwrap_or_else(|| panic!("no record of ours: {text}"));
            let (round, sender, number) = (word(), u32::try_from(word()).expect("few senders"), word());
            let written = record(round, sender, number);
            assert_eq!(
                (&found.key, &found.payload),
                (&written.key, &written.payload),
                "not as it was written"
            );
            let this_round = round == self.rounds;
            assert_eq!(
                this_round,
                found.offset >= end,
                "{topic}/{partition} {}: round {round}",
                found.offset
            );
            let first = if this_round { 0 } else { number };
            let expected = next.entry((round, sender)).or_insert(first);
            assert_eq!(number, *expected, "lost or twice in {topic}/{partition}");
            *expected += 1;
            let told = self.records.remove(&(topic.to_owned(), partition, found.offset));
            assert!(told.is_none_or(|told| told == (sender, number)), "another one stands at its place");
        }
    }

    async fn verify_offsets(&mut self, engine: &Engine) {
        let found = engine.committed(GROUP, &Topic::from("events")).await.expect("offsets can be read");
        for (partition, (told, asked)) in &mut self.committed {
            let place = TopicPartition::new(&Topic::from("events"), *partition);
            let offset = found.get(&place).copied().unwrap_or(0);
            assert!((*told..=*asked.max(told)).contains(&offset), "{offset}: told {told}, asked {asked}");
            (*told, *asked) = (offset, offset);
        }
    }
}

async fn scan(engine: &Engine, table: &Name) -> Rows {
    let mut rows = Rows::new();
    let mut start_after = None;
    loop {
        let scan = Scan {
            table: table.clone(),
            segment: Segment::WHOLE,
            limit: None,
            start_after,
            consistency: Consistency::Strong,
        };
        let page = engine.scan(scan).await.expect("a table can be read");
        rows.extend(
            page.items.into_iter().map(|item| (item.text("id").expect("rows have ids").to_owned(), item)),
        );
        match page.next {
            None => return rows,
            next => start_after = next,
        }
    }
}

/// The indexes hold every row, under the right owner and in order, and nothing else.
async fn verify_indexes(engine: &Engine, schema: &TableSchema, rows: &Rows) {
    for index in schema.indexes.iter() {
        for owner in (0..OWNERS).map(|owner| format!("owner-{owner}")) {
            let mut expected: Vec<&Item> =
                rows.values().filter(|item| item.text("owner") == Some(&owner)).collect();
            expected.sort_by_key(|item| item.u64("version"));
            let mut query = Query::new(schema.name.clone(), "owner", owner.clone());
            query.index = Some(index.name.clone());
            let mut found = Vec::new();
            loop {
                let page = engine.query(query.clone()).await.expect("an index can be read");
                found.extend(page.items);
                match page.next {
                    None => break,
                    next => query.start_after = next,
                }
            }
            let ids = |item: &Item| item.text("id").map(ToOwned::to_owned);
            let mut found_ids: Vec<_> = found.iter().map(|item| (item.u64("version"), ids(item))).collect();
            let mut expected_ids: Vec<_> =
                expected.iter().map(|item| (item.u64("version"), ids(item))).collect();
            assert!(found_ids.is_sorted_by_key(|(version, _)| *version), "'{}' is out of order", index.name);
            found_ids.sort();
            expected_ids.sort();
            assert_eq!(found_ids, expected_ids, "index '{}' of {owner}", index.name);
        }
    }
}

async fn read(engine: &Engine, topic: &str, partition: u32, watermarks: Watermarks) -> Vec<LogRecord> {
    let Watermarks { low, high } = watermarks;
    let place = TopicPartition::new(&Topic::from(topic), partition);
    let mut reader = engine.read_from(BTreeMap::from([(place, low)])).await.expect("it is in range");
    let mut records: Vec<LogRecord> = Vec::new();
    while low + (records.len() as u64) < high {
        let Fetch::Records { records: fetched, .. } = reader.fetch(1000).await.expect("records can be read")
        else {
            panic!("a reader for itself is assigned nothing");
        };
        for record in fetched {
            assert_eq!(record.offset, low + records.len() as u64, "offsets are dense");
            records.push(record);
        }
    }
    records
}
