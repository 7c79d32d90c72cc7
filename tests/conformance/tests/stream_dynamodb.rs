//! The stream's suite on the DynamoDB connector, against dynoxide.

use std::sync::{Arc, LazyLock};

use courant_conformance::servers::Dynoxide;
use courant_conformance::store::UnderTest;

/// One for all cases: they use tables of their own.
static SERVER: LazyLock<Dynoxide> = LazyLock::new(Dynoxide::start);

async fn start() -> UnderTest {
    UnderTest::new(Arc::new(SERVER.connect().await))
}

courant_conformance::stream_suite!(start);
