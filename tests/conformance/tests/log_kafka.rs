//! The log on Kafka, tried on a broker of its own and on librdkafka's mock cluster.

use std::sync::Arc;

use courant_conformance::servers::{MockKafka, Shared, Tansu};

static TANSU: Shared<Tansu> = Shared::new();
static MOCK: Shared<MockKafka> = Shared::new();

fn tansu() -> Arc<Tansu> {
    TANSU.get(Tansu::start)
}

/// tansu 0.6 deletes every topic when it is asked to delete one, so cases that delete have a server of their
/// own.
fn own_tansu() -> Arc<Tansu> {
    Arc::new(Tansu::start())
}

fn mock() -> Arc<MockKafka> {
    MOCK.get(|| MockKafka::start(1))
}

mod on_tansu {
    use super::{own_tansu, tansu};

    courant_conformance::log_reading_and_writing!(tansu);
    courant_conformance::log_topics!(own_tansu);
    courant_conformance::log_handover!(tansu);
    // it answers a time after everything with the start, and takes a reset while a group has members
    courant_conformance::log_cases!(tansu, times, [offsets_are_found_by_time]);
    courant_conformance::log_cases!(tansu, resetting, [a_group_starts_where_it_was_reset_to]);
}

mod on_mock_cluster {
    use super::mock;

    courant_conformance::log_reading_and_writing!(mock);
    // it makes no topics, finds no times, takes no reset of a group that ever had members, and refuses a commit during
    // a rebalance if the machine is slow
    courant_conformance::log_cases!(mock, resetting, [a_group_with_members_is_not_reset]);
}
