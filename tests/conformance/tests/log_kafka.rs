//! The log on Kafka, tried on a broker of its own and on librdkafka's mock cluster.

use std::sync::Arc;

use courant_conformance::servers::{MockKafka, Shared, Tansu};

static TANSU: Shared<Tansu> = Shared::new();
static MOCK: Shared<MockKafka> = Shared::new();

fn tansu() -> Arc<Tansu> {
    TANSU.get(Tansu::start)
}

fn mock() -> Arc<MockKafka> {
    MOCK.get(|| MockKafka::start(1))
}

mod on_tansu {
    use super::tansu;

    courant_conformance::log_suite!(tansu);
}

mod on_mock_cluster {
    use super::mock;

    courant_conformance::log_reading_and_writing!(mock);
}
