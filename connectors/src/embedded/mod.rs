//! The embedded engine: store and log in one folder and one process, with no server.
//!
//! Underneath is fjall, an ordered key-value engine with a journal. Above it, one thread decides and writes everything:
//! whatever waits becomes one batch and one sync (`committer`), so that conditional writes are serializable and a
//! thousand writes cost the disk what one costs. A caller is answered when its write is on disk. Reads go straight to
//! fjall, at a moment between two groups (`moment`): they see every finished write, and transactions as a whole.
//!
//! - `committer`, `group`, `runway`: deciding and writing. `shared`: the catalog. `recovery`, `journal`,
//!   `manifest`: what opening finds. `trouble`: what errors of the engine below mean.
//! - `store`, `log`: the two traits' families on top. [`live`]: live state, which is in memory only and apart from it.
//! - [`state`]: what a stage keeps, apart from both.
//! - `care`, `space`, `check`, `compact`, `backup`: looking after a folder.

mod backup;
mod care;
mod check;
mod clock;
mod committer;
mod compact;
mod group;
mod journal;
pub mod live;
mod log;
mod manifest;
mod moment;
mod recovery;
mod runway;
mod shared;
mod space;
mod spare;
pub mod state;
mod store;
mod trouble;
mod upkeep;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fjall::PersistMode;

use self::committer::Committer;
use self::runway::Runway;
use self::shared::{Shared, folder_builder};
use self::upkeep::Upkeep;

pub use self::backup::{is_engine_folder, restore};
pub use self::care::{CareError, Progress};
pub use self::check::Checked;
pub use self::clock::Clock;
pub use self::live::MemoryLive;
pub use self::recovery::OpenError;
pub use self::space::{IndexSpace, Space, TableSpace, TopicSpace};
pub use self::store::PlainRows;

/// How an engine is opened. The defaults suit a machine with a gigabyte to spare.
#[derive(Clone)]
pub struct Options {
    pub clock: Clock,
    /// Blocks read from disk that are kept in memory.
    pub cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: Clock::wall(), cache_bytes: 128 << 20 }
    }
}

/// The journal holds what is in memory only, and is replayed when the folder is opened: its size bounds both that memory
/// and that time.
const JOURNAL_BYTES: u64 = 256 << 20;

/// How often and how far apart a folder in use is tried.
const OPEN_TRIES: u32 = 4;
const OPEN_PAUSE: Duration = Duration::from_millis(100);

/// Threads that write full memory tables to files and tidy the files up. More than cores: while some tidy up for long,
/// another must be free to empty memory, or writers wait.
const WORKERS: usize = 4;

/// An open folder. Handles of store and log are made by sharing it: `Arc<Engine>` is an `Arc<dyn Store>` and an
/// `Arc<dyn Log>`.
pub struct Engine {
    shared: Arc<Shared>,
    committer: Arc<Committer>,
    /// Absent where nothing is to be removed by itself.
    upkeep: Option<Upkeep>,
    folder: PathBuf,
}

impl Engine {
    /// Opens the folder, creating it if it is missing. Only one process can have it open.
    pub async fn open(folder: impl Into<PathBuf>, options: Options) -> Result<Arc<Self>, OpenError> {
        let mut engine = Self::open_as_it_is(folder.into(), options).await?;
        engine.upkeep = Some(Upkeep::start(&engine.shared, &engine.committer));
        Ok(Arc::new(engine))
    }

    /// Opens the folder and removes nothing that time has ended.
    async fn open_as_it_is(folder: PathBuf, options: Options) -> Result<Self, OpenError> {
        let mut tries = 1;
        let (shared, committer, folder) = loop {
            let (opened, options) = (folder.clone(), options.clone());
            let opening = tokio::task::spawn_blocking(move || Self::open_now(opened, options));
            match opening.await.unwrap_or_else(|error| Err(OpenError::panicked(&folder, error))) {
                // one that has just been stopped may still be letting go
                Err(OpenError::InUse { .. }) if tries < OPEN_TRIES => tokio::time::sleep(OPEN_PAUSE).await,
                opened => break opened?,
            }
            tries += 1;
        };
        Ok(Self { shared, committer, upkeep: None, folder })
    }

    fn open_now(
        folder: PathBuf,
        options: Options,
    ) -> Result<(Arc<Shared>, Arc<Committer>, PathBuf), OpenError> {
        recovery::check_files(&folder)?;
        // What users wrote is for the owner; a folder that is there keeps the permissions somebody gave it.
        let io = |source| OpenError::Io { folder: folder.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(io)?;
        let builder = folder_builder(&folder)
            .cache_size(options.cache_bytes)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(WORKERS);
        let database = builder.open().map_err(|error| OpenError::new(&folder, error))?;
        let runway = Runway::new(&folder, database.clone());
        let shared = Shared::open(database, options.clock).map_err(|error| OpenError::new(&folder, error))?;
        store::open_tables(&shared).map_err(|error| OpenError::unread(&folder, &error, error.remedy()))?;
        log::open_topics(&shared).map_err(|error| OpenError::unread(&folder, &error, error.remedy()))?;
        shared.empty_leftovers().map_err(|error| OpenError::new(&folder, error))?;
        let shared = Arc::new(shared);
        let committer = Committer::start(Arc::clone(&shared), runway, folder.display().to_string());
        let committer = committer.map_err(io)?;
        Ok((shared, Arc::new(committer), folder))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes what time has ended, now; otherwise that happens every half minute.
    pub async fn sweep(&self) {
        while upkeep::sweep_once(&self.shared, &self.committer).await {}
    }

    /// Why nothing is written any more, as after the disk was full; what is there can still be read.
    pub fn trouble(&self) -> Option<String> {
        self.committer.closed()
    }

    /// Finishes what waits and puts everything on disk. Later writes are refused; another process can open the folder
    /// once the last handle is dropped.
    pub async fn close(&self) {
        self.upkeep.iter().for_each(Upkeep::stop);
        let (committer, database) = (Arc::clone(&self.committer), self.shared.database.clone());
        let closing = tokio::task::spawn_blocking(move || {
            committer.close();
            database.persist(PersistMode::SyncAll)
        });
        match closing.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the last sync of the embedded engine failed"),
            Err(error) => tracing::error!(%error, "closing the embedded engine failed"),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.upkeep.iter().for_each(Upkeep::stop);
        self.committer.close();
    }
}
