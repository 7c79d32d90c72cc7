//! The stream's suite on the embedded engine.

use std::sync::Arc;

use courant_conformance::store::UnderTest;
use courant_connectors::embedded::{Engine, Options};

async fn start() -> UnderTest {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let engine = Engine::open(folder.path(), Options::default()).await.expect("an empty folder opens");
    UnderTest::keeping(Arc::clone(&engine) as Arc<_>, folder)
}

courant_conformance::stream_suite!(start);
