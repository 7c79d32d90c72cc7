//! Looks for clients that say nothing or take nothing. One look at all sockets instead of a timer in each.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::close::Close;
use super::gateway::Shared;
use super::outbox::{Waiting, Wakers};
use super::ticks;

/// How late a socket may be closed.
const LOOK: Duration = Duration::from_secs(1);

pub(super) async fn run(shared: Arc<Shared>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        look(&shared);
    }
}

fn look(shared: &Shared) {
    let now = shared.ticks.now();
    let (silence, stall) =
        (ticks::of(shared.config.heartbeat.interval() * 2), ticks::of(shared.config.write_timeout.0));
    let (peers, mut wakers) = (shared.registry.read(), Wakers::default());
    for peer in peers.all() {
        if peer.outbox.stalled_since().is_some_and(|since| now.saturating_sub(since) > stall) {
            peer.outbox.cut(Close::SlowConsumer, &mut wakers);
        } else if peer.silent_for(now) > silence {
            peer.outbox.close(Close::Silent, Waiting::Dropped, &mut wakers);
        }
    }
}
