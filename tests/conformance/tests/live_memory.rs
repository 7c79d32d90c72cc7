//! Live state in memory does what live state must do.

use std::sync::Arc;

use courant_conformance::live::Subject;
use courant_connectors::embedded::MemoryLive;
use courant_connectors::live::Limits;

async fn start(limits: Limits) -> Subject {
    Subject { live: Arc::new(MemoryLive::with_limits(limits)), server: None }
}

courant_conformance::live_suite!(crate::start);
