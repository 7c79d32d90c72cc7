//! The log's suite on the embedded engine.

use std::sync::Arc;

use async_trait::async_trait;
use courant_conformance::log::LogServer;
use courant_connectors::embedded::{Engine, Options};
use courant_connectors::log::Log;
use tempfile::TempDir;
use tokio::sync::OnceCell;

/// An engine in a folder of its own, opened by the case that uses it.
struct Folder {
    engine: OnceCell<Arc<Engine>>,
    folder: TempDir,
}

#[async_trait]
impl LogServer for Folder {
    async fn log(&self) -> Arc<dyn Log> {
        let open = || async {
            Engine::open(self.folder.path(), Options::default()).await.expect("an empty folder opens")
        };
        Arc::clone(self.engine.get_or_init(open).await) as Arc<dyn Log>
    }
}

fn start() -> Arc<Folder> {
    Arc::new(Folder { engine: OnceCell::new(), folder: tempfile::tempdir().expect("a temporary folder") })
}

courant_conformance::log_suite!(start);
