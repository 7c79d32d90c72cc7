//! The data model's suite on the embedded engine.

use std::sync::Arc;

use courant_conformance::model::create_tables;
use courant_conformance::servers::Shared;
use courant_conformance::store::UnderTest;
use courant_connectors::embedded::{Engine, Options};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::task::block_in_place;

/// One for all cases: they use ids of their own, and making the tables takes longer than most of them.
static OPENED: Shared<Opened> = Shared::new();

struct Opened {
    engine: Arc<Engine>,
    _folder: TempDir,
}

impl Opened {
    async fn with_tables() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let engine = Engine::open(folder.path(), Options::default()).await.expect("an empty folder opens");
        create_tables(&*engine).await;
        Self { engine, _folder: folder }
    }
}

async fn start() -> UnderTest {
    let opened = block_in_place(|| OPENED.get(|| Handle::current().block_on(Opened::with_tables())));
    UnderTest::keeping(Arc::clone(&opened.engine) as Arc<_>, opened)
}

courant_conformance::model_suite!(start);
