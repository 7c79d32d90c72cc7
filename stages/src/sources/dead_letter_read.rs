//! `dead-letter-read`: offers the letters of a queue to a pipeline again.
//!
//! A letter leaves its queue only when its record has been disposed of, so a crash in between runs it twice and
//! never loses it. The journal has no positions of its own: records are numbered as they are read, and the
//! numbers are turned back into letters when the runtime commits.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use courant_connectors::files::dead_letters::{Cursor, StoredLetter};
use courant_pipeline::spec::{ANY, BuildContext, Built, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch};
use courant_pipeline::{Key, Payload, Record, Source, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;

use crate::host::{DeadLetterStore, file_error};

pub static SPEC: StageSpec = StageSpec::source::<Config>("dead-letter-read", ANY)
    .summary("runs the dead letters of a queue again; each leaves the queue once it is dealt with")
    .example("[[pipeline.stage]]\nkind = \"dead-letter-read\"\nparams = { queue = \"ingest\" }\n");

/// Between two looks at a queue that has no more.
const POLL: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The queue to read: a stage's `dead_letter`, or the name of its pipeline. Records come with the key,
    /// headers and payload they failed with, and headers that tell why: `dead-letter-id`, `-queue`,
    /// `-pipeline`, `-stage`, `-class`, `-error`, `-attempts` and `-failed-at`. A record that fails again
    /// becomes a new letter and must go to another queue than this one, by its stage's `dead_letter`: it would come
    /// back for ever.
    pub queue: String,
    /// Wait for more letters instead of finishing when the queue is empty.
    #[serde(default)]
    pub follow: bool,
    /// Only letters of this pipeline.
    #[serde(default)]
    pub from_pipeline: Option<String>,
    /// Only letters of the stage with this name.
    #[serde(default)]
    pub from_stage: Option<String>,
    /// Only these letters, by id.
    #[serde(default)]
    pub ids: Option<Vec<String>>,
    /// Finish after this many letters. Letters come in the order they were written, so a run that writes new ones to
    /// the same queue does not read them again if it reads as many as there were when it began.
    #[serde(default)]
    pub limit: Option<NonZeroU64>,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let mut problems = Vec::new();
        if self.queue.is_empty() {
            problems.push(Problem::new("queue", "the queue has no name"));
        }
        let store = context.services.get::<DeadLetterStore>();
        if store.is_none() {
            let message = "this process keeps no dead letters, so there are none to read";
            problems.push(Problem::new("queue", message).help("run it where a data folder is configured"));
        }
        match store {
            Some(store) if problems.is_empty() => Ok(self.into_source(store)),
            _ => Err(problems),
        }
    }
}

impl Config {
    fn into_source(self, store: Arc<DeadLetterStore>) -> Built {
        // With a limit it ends, whatever else is written to the queue.
        let drained = self.limit.is_none().then(|| self.queue.clone());
        let built = Built::source(DeadLetterRead {
            store,
            at_end: if self.follow { AtEnd::Wait } else { AtEnd::Finish },
            choice: Choice {
                pipeline: self.from_pipeline,
                stage: self.from_stage,
                ids: self.ids.map(|ids| ids.into_iter().collect()),
            },
            left: self.limit.map_or(u64::MAX, NonZeroU64::get),
            queue: self.queue,
            cursor: Cursor::default(),
            under_way: BTreeMap::new(),
            ids: HashSet::new(),
            next: 0,
        });
        match drained {
            Some(queue) => built.drains(queue),
            None => built,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    Finish,
    Wait,
}

/// Which letters of the queue are wanted.
struct Choice {
    pipeline: Option<String>,
    stage: Option<String>,
    ids: Option<HashSet<String>>,
}

impl Choice {
    fn wants(&self, stored: &StoredLetter) -> bool {
        self.pipeline.as_ref().is_none_or(|pipeline| *pipeline == stored.letter.pipeline)
            && self.stage.as_ref().is_none_or(|stage| *stage == stored.letter.stage)
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&stored.id))
    }
}

struct DeadLetterRead {
    store: Arc<DeadLetterStore>,
    queue: String,
    choice: Choice,
    at_end: AtEnd,
    /// Letters to hand out at the most.
    left: u64,
    cursor: Cursor,
    /// Letters handed out and not yet settled, by the position behind them.
    under_way: BTreeMap<u64, String>,
    /// The same letters: after a compaction the journal offers them again.
    ids: HashSet<String>,
    next: u64,
}

#[async_trait]
impl Source for DeadLetterRead {
    fn identity(&self) -> String {
        format!("dead-letters:{}", self.queue)
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Source
    }

    /// Letters are numbered as they are handed out.
    fn positions_last(&self) -> bool {
        false
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        loop {
            if self.left == 0 {
                return Ok(Read::End);
            }
            let pending = self.store.journal().pending(&self.queue, &self.cursor, max).await;
            let (letters, cursor) = pending.map_err(|error| file_error("read dead letters", error))?;
            // From here on nothing waits, so a dropped call has either read nothing or returned it.
            let at_end = letters.is_empty();
            self.cursor = cursor;
            let batch = self.hand_out(letters);
            if !batch.is_empty() {
                return Ok(Read::Batch(batch));
            }
            match self.at_end {
                AtEnd::Finish if at_end => return Ok(Read::End),
                AtEnd::Wait if at_end => sleep(POLL).await,
                _ => {} // all of them are under way already; there may be more behind them
            }
        }
    }

    async fn commit(&mut self, positions: &Positions) -> Result<(), StageError> {
        let Some(settled) = positions.get(&Partition::only()) else { return Ok(()) };
        let ids: Vec<String> = self.under_way.range(..=settled).map(|(_, id)| id.clone()).collect();
        let done = self.store.journal().settle(&self.queue, ids).await;
        done.map_err(|error| file_error("settle dead letters", error))?;
        // Only now: should it fail, the next commit covers them again.
        let rest = self.under_way.split_off(&(settled + 1));
        for id in std::mem::replace(&mut self.under_way, rest).into_values() {
            self.ids.remove(&id);
        }
        Ok(())
    }
}

impl DeadLetterRead {
    fn hand_out(&mut self, letters: Vec<StoredLetter>) -> ReadBatch {
        let mut batch = ReadBatch::new(Partition::only(), letters.len());
        for letter in letters {
            if self.left > 0 && self.choice.wants(&letter) && self.ids.insert(letter.id.clone()) {
                self.left -= 1;
                self.next += 1;
                self.under_way.insert(self.next, letter.id.clone());
                batch.push(to_record(letter), self.next);
            }
        }
        batch
    }
}

fn to_record(stored: StoredLetter) -> Record {
    let letter = stored.letter;
    let mut record = Record::new(Payload::Text(letter.payload));
    record.key = letter.key.map(Key::new);
    for (name, value) in letter.headers {
        record.headers.set(name, value);
    }
    // After the letter's own, which may hold those of an earlier death.
    record.headers.set("dead-letter-id", stored.id);
    record.headers.set("dead-letter-queue", stored.queue);
    record.headers.set("dead-letter-pipeline", letter.pipeline);
    record.headers.set("dead-letter-stage", letter.stage);
    record.headers.set("dead-letter-class", letter.class);
    record.headers.set("dead-letter-error", letter.error);
    record.headers.set("dead-letter-attempts", letter.attempts.to_string());
    record.headers.set("dead-letter-failed-at", letter.failed_at.to_string());
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::letter;
    use crate::testing::{build, payloads, read, source};
    use courant_pipeline::Services;
    use courant_pipeline::config::Loader;
    use courant_pipeline::dead_letter::DeadLetters as _;
    use serde_json::json;

    async fn store(folder: &tempfile::TempDir) -> Arc<DeadLetterStore> {
        Arc::new(DeadLetterStore::open(folder.path()).await.unwrap())
    }

    fn reader(store: &Arc<DeadLetterStore>, follow: bool) -> Box<dyn Source> {
        let services = Services::default().with(Arc::clone(store));
        source(&SPEC, json!({"queue": "q", "follow": follow}), &services)
    }

    async fn waiting(store: &DeadLetterStore) -> Vec<String> {
        let letters = store.journal().list(Some("q"), 100).await.unwrap();
        letters.iter().map(|kept| String::from_utf8_lossy(&kept.letter.payload).into_owned()).collect()
    }

    fn at(position: u64) -> Positions {
        Positions::from([(Partition::only(), position)])
    }

    #[tokio::test]
    async fn a_letter_stays_until_its_record_is_settled() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        store.put(vec![letter("q", "1"), letter("q", "2"), letter("q", "3")]).await.unwrap();
        let mut source = reader(&store, false);
        source.open(&Positions::new()).await.unwrap();
        let batch = read(&mut *source, 2).await.unwrap();
        assert_eq!(payloads(&batch), ["1", "2"]);
        assert_eq!(waiting(&store).await, ["1", "2", "3"]);
        source.commit(&at(batch.resume_at()[0])).await.unwrap();
        assert_eq!(waiting(&store).await, ["2", "3"]);
        assert_eq!(payloads(&read(&mut *source, 2).await.unwrap()), ["3"]);
        assert!(read(&mut *source, 2).await.is_none());
        source.commit(&at(3)).await.unwrap();
        assert_eq!(waiting(&store).await, [] as [&str; 0]);
    }

    #[tokio::test]
    async fn an_unsettled_letter_is_offered_to_the_next_reader_and_not_twice_to_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        store.put(vec![letter("q", "1"), letter("q", "2")]).await.unwrap();
        let mut source = reader(&store, false);
        let batch = read(&mut *source, 9).await.unwrap();
        // Settling by another hand compacts the queue under the reader.
        let ids = store.journal().list(Some("q"), 1).await.unwrap();
        store.journal().settle("q", vec![ids[0].id.clone(); 2]).await.unwrap();
        store.put(vec![letter("q", "3")]).await.unwrap();
        assert_eq!(payloads(&read(&mut *source, 1).await.unwrap()), ["3"]);
        drop((source, batch));
        assert_eq!(payloads(&read(&mut *reader(&store, false), 9).await.unwrap()), ["2", "3"]);
    }

    #[tokio::test]
    async fn a_record_carries_what_it_died_of() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        store.put(vec![letter("q", "{}")]).await.unwrap();
        let batch = read(&mut *reader(&store, false), 9).await.unwrap();
        let record = batch.records().slots()[0].record();
        assert_eq!(record.key.as_ref().unwrap().as_str(), "chat_1");
        for (name, value) in [
            ("origin", "conn_1"),
            ("dead-letter-stage", "persist"),
            ("dead-letter-error", "no such chat"),
            ("dead-letter-attempts", "3"),
        ] {
            assert_eq!(record.headers.get(name), Some(value));
        }
    }

    #[tokio::test]
    async fn only_chosen_letters_are_read_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        let mut other = letter("q", "2");
        other.stage = "publish".into();
        store.put(vec![letter("q", "1"), other, letter("q", "3"), letter("q", "4")]).await.unwrap();
        let ids: Vec<String> =
            store.journal().list(Some("q"), 9).await.unwrap().into_iter().map(|kept| kept.id).collect();
        let services = Services::default().with(Arc::clone(&store));
        let params = json!({"queue": "q", "from_pipeline": "ingest", "from_stage": "persist", "limit": 2});
        let mut chosen = source(&SPEC, params, &services);
        assert_eq!(payloads(&read(&mut *chosen, 9).await.unwrap()), ["1", "3"]);
        assert!(read(&mut *chosen, 9).await.is_none());
        chosen.commit(&at(2)).await.unwrap();
        assert_eq!(waiting(&store).await, ["2", "4"]);
        let mut chosen = source(&SPEC, json!({"queue": "q", "ids": [ids[3]]}), &services);
        assert_eq!(payloads(&read(&mut *chosen, 9).await.unwrap()), ["4"]);
    }

    #[tokio::test(start_paused = true)]
    async fn following_waits_for_letters() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder).await;
        let mut source = reader(&store, true);
        assert!(tokio::time::timeout(Duration::from_secs(60), source.read(9)).await.is_err());
        store.put(vec![letter("q", "1")]).await.unwrap();
        assert_eq!(payloads(&read(&mut *source, 9).await.unwrap()), ["1"]);
    }

    #[test]
    fn a_pipeline_may_not_read_the_letters_it_writes() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(DeadLetterStore::unopened(folder.path()));
        let loader = Loader::new(crate::registry(), Services::default().with(store));
        let load = |params: &str| {
            let text = format!(
                "[[pipeline]]\nname = 'again'\nstage = [{{ kind = 'dead-letter-read', params = {params} }}, {{ kind = 'stdout' }}]"
            );
            loader.load_str("pipelines.toml", &text, []).map(drop).map_err(|found| found.to_string())
        };
        assert!(load("{ queue = 'again' }").unwrap_err().contains("come back for ever"));
        assert_eq!(load("{ queue = 'again', limit = 7 }"), Ok(()));
        assert_eq!(load("{ queue = 'ingest' }"), Ok(()));
    }

    #[tokio::test]
    async fn what_cannot_work_is_refused_when_it_is_built() {
        let folder = tempfile::tempdir().unwrap();
        let problem = |params, services: &Services| build(&SPEC, params, services).err().unwrap().remove(0);
        let absent = problem(json!({"queue": "q"}), &Services::default());
        assert!(absent.message.contains("keeps no dead letters"), "{absent:?}");
        let services = Services::default().with(store(&folder).await);
        assert!(problem(json!({"queue": ""}), &services).message.contains("no name"));
    }
}
