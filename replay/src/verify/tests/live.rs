//! Writers at work while it looks: nothing that moves is taken for damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use courant_connectors::model::tables::chats::ChatType;
use courant_connectors::model::tables::delivery_state;
use courant_connectors::model::topics::memberships_changed::ChangeType;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::world::{World, found, message, options};
use crate::verify::Options;
use crate::verify::context::now;

const WRITERS: usize = 16;
/// Long enough for a write to be published on a machine that is busy with other tests.
const GRACE: Duration = Duration::from_secs(5);

/// Chats come, people send, acknowledge, join and leave, until told to stop.
async fn write(world: Arc<World>, stop: CancellationToken, sent: Arc<AtomicU64>) {
    let (owner, guest) = (world.user().await, world.user().await);
    let mut chat = world.chat(ChatType::Group, &[&owner]).await;
    for round in 0u64.. {
        if stop.is_cancelled() {
            return;
        }
        if round % 50 == 49 {
            chat = world.chat(ChatType::Group, &[&owner]).await;
        }
        let written = message(&chat, &owner, world.allocate(&chat).await, now());
        world.store_message(&written).await;
        world.publish(&written).await;
        delivery_state::advance(&*world.engine, &owner, &chat, written.sequence, now()).await.unwrap();
        let change = if round % 2 == 0 { ChangeType::Added } else { ChangeType::Removed };
        world.change_member(&chat, &guest, change).await;
        sent.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_at_work_is_in_order() {
    let (world, stop, sent) = (Arc::new(World::healthy().await), CancellationToken::new(), Arc::default());
    let writers = TaskTracker::new();
    for _ in 0..WRITERS {
        writers.spawn(write(Arc::clone(&world), stop.clone(), Arc::clone(&sent)));
    }
    writers.close();
    let mut seen = 0;
    // As often as it takes for messages that were sent meanwhile to be old enough to be missed.
    for _ in 0..60 {
        let options = Options { grace: GRACE, watch: Some(Duration::from_millis(100)), ..options() };
        let report = world.verify(options).await;
        assert_eq!(found(&report), [].into(), "{report:#?}");
        let events = report.checks.iter().find(|check| check.id == "message-event").unwrap();
        seen = events.looked_at;
        if seen >= 500 && report.figures.too_new > 0 {
            break;
        }
    }
    assert!(seen >= 500, "only {seen} of {} were old enough", sent.load(Ordering::Relaxed));
    stop.cancel();
    writers.wait().await;
    let at_rest = world.verify(Options { grace: Duration::ZERO, ..options() }).await;
    assert_eq!(found(&at_rest), [].into());
    assert!(at_rest.figures.items["messages"] >= sent.load(Ordering::Relaxed));
}
