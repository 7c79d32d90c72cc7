//! The data model's suite on the DynamoDB connector, against dynoxide.

use std::sync::{Arc, LazyLock};

use courant_conformance::model::create_tables;
use courant_conformance::servers::Dynoxide;
use courant_conformance::store::UnderTest;
use tokio::sync::OnceCell;

/// One for all cases: they use ids of their own.
static SERVER: LazyLock<Dynoxide> = LazyLock::new(Dynoxide::start);
/// Made by the first case, while the others wait: a new table is there before its time to live is set.
static TABLES: OnceCell<()> = OnceCell::const_new();

async fn start() -> UnderTest {
    let store = SERVER.connect().await;
    TABLES.get_or_init(|| create_tables(&store)).await;
    UnderTest::new(Arc::new(store))
}

courant_conformance::model_suite!(start);
