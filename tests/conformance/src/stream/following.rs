//! A table of a case, those who follow it, and what they were given.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use courant_connectors::model::WorkerId;
use courant_connectors::model::tables::stream_leases::{self, Lease};
use courant_connectors::store::{Change, Name, Remedy, Store, Stream, TableSchema};
use courant_connectors::stream::{StreamEvent, StreamOptions, StreamWorker};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::resharded::Resharded;
use crate::eventually;
use crate::store::table::{Table, item, plain};

/// Short, so that the dead are found soon; long enough for signs of life on a busy machine.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// What somebody was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) to: String,
    pub(super) key: String,
    pub(super) version: u64,
    pub(super) is_scanned: bool,
}

pub(super) struct Followed {
    pub(super) stream: Arc<Resharded>,
    table: Table,
    given: Arc<Mutex<Vec<Given>>>,
    versions: Mutex<BTreeMap<String, u64>>,
}

/// A worker in a task of its own, which takes what comes and says that it is done.
pub(super) struct Running {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Running {
    /// In the middle of whatever it does.
    pub(super) async fn dies(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    pub(super) async fn closes(self) {
        self.stop.send(()).expect("it runs");
        self.task.await.expect("it ends well");
    }
}

impl Followed {
    pub(super) async fn new(store: &Arc<dyn Store>, case: &str) -> Self {
        let streamed = TableSchema { stream: Stream::OldAndNewImages, ..plain() };
        let table = Table::create(store, case, streamed).await;
        store.create_table(&stream_leases::SCHEMA).await.expect("leases need a table");
        let stream = Resharded::of(Arc::clone(store), table.name.clone()).await;
        Self { stream, table, given: Arc::default(), versions: Mutex::default() }
    }

    pub(super) fn options(&self, group: &str, worker: &str) -> StreamOptions {
        let keys = vec![Name::new_static("k")];
        let mut options = StreamOptions::new(self.table.name.clone(), keys, group, WorkerId::from(worker));
        (options.lease, options.list_shards_every) = (LEASE, Duration::from_millis(200));
        (options.idle_wait, options.longest_idle_wait) =
            (Duration::from_millis(10), Duration::from_millis(50));
        options
    }

    pub(super) fn join(&self, group: &str, worker: &str) -> StreamWorker {
        self.join_with(self.options(group, worker))
    }

    pub(super) fn join_with(&self, options: StreamOptions) -> StreamWorker {
        StreamWorker::join(Arc::clone(&self.stream) as Arc<_>, options)
    }

    /// Somebody of the group `g`.
    pub(super) fn runs(&self, worker: &str) -> Running {
        self.runs_in("g", worker)
    }

    pub(super) fn runs_in(&self, group: &str, worker: &str) -> Running {
        self.runs_with(self.options(group, worker))
    }

    pub(super) fn runs_with(&self, options: StreamOptions) -> Running {
        let (stop, stopped) = oneshot::channel();
        let name = format!("{}/{}", options.group, options.worker);
        let (joined, given) = (self.join_with(options), Arc::clone(&self.given));
        Running { task: tokio::spawn(follow(joined, name, given, stopped)), stop }
    }

    /// The next version of each of the first so many keys.
    pub(super) async fn write(&self, keys: usize) {
        for key in 0..keys {
            let key = format!("key-{key}");
            let version = {
                let mut versions = self.versions.lock().unwrap();
                let version = versions.entry(key.clone()).or_default();
                *version += 1;
                *version
            };
            self.table.put(item(&key).with("n", version)).await;
        }
    }

    /// What was given to a group so far.
    pub(super) fn given(&self, group: &str) -> Vec<Given> {
        let (given, of_group) = (self.given.lock().unwrap(), format!("{group}/"));
        given.iter().filter(|given| given.to.starts_with(&of_group)).cloned().collect()
    }

    /// Who has which shard.
    pub(super) async fn leases(&self, group: &str) -> Vec<Lease> {
        let group = format!("{group}/{}", self.table.name);
        stream_leases::of_group(&*self.table.store, &group).await.expect("leases can be read").1
    }

    /// Forgets what was given so far.
    pub(super) fn forget(&self) {
        self.given.lock().unwrap().clear();
    }

    /// Waits until every key has been given as it is.
    pub(super) async fn all_came(&self, group: &str) {
        let newest = self.versions.lock().unwrap().clone();
        eventually("everything comes", async || {
            let mut seen: BTreeMap<String, u64> = BTreeMap::new();
            for given in self.given(group) {
                let version = seen.entry(given.key).or_default();
                *version = given.version.max(*version);
            }
            (seen == newest).then_some(())
        })
        .await;
    }

    /// Every version of every key from the first on, in order; each once unless somebody died.
    pub(super) fn nothing_is_missing(&self, group: &str, times: Times) {
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        for given in self.given(group) {
            let highest = seen.entry(given.key.clone()).or_default();
            let is_next = given.version == *highest + 1;
            let is_again = given.version <= *highest && times == Times::OrMore;
            assert!(!given.is_scanned && (is_next || is_again), "{given:?} after version {highest}");
            *highest = given.version.max(*highest);
        }
        assert_eq!(seen, *self.versions.lock().unwrap());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Times {
    Once,
    OrMore,
}

async fn follow(
    mut worker: StreamWorker,
    name: String,
    given: Arc<Mutex<Vec<Given>>>,
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        let event = tokio::select! {
            event = worker.next(5) => event,
            _ = &mut stopped => return worker.close().await.expect("it lets go"),
        };
        match event {
            Ok(StreamEvent::Changes(handed)) => {
                let note = |(_, change): &(u64, Change)| Given {
                    to: name.clone(),
                    key: change.new.as_ref().and_then(|item| item.text("k")).expect("a key").to_owned(),
                    version: change.new.as_ref().and_then(|item| item.u64("n")).expect("a version"),
                    is_scanned: handed.is_scanned,
                };
                given.lock().unwrap().extend(handed.changes.iter().map(note));
                let (last, _) = handed.changes.last().expect("at least one");
                worker.done([(handed.shard.clone(), *last)]).await.expect("places can be written");
            }
            Ok(StreamEvent::Gone(_)) => {}
            Err(error) => assert_eq!(error.remedy(), Remedy::Retry, "{error}"),
        }
    }
}
