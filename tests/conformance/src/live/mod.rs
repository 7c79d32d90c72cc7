//! What every live state must do: one case, one function, run on memory, on a Redis server and on a Redis cluster by
//! [`live_suite!`](crate::live_suite).
//!
//! Cases use ids of their own, so that many can share a server. Those about time start with short limits, and wait
//! for the clock of the server, which cannot be paused.

pub mod channels;
pub mod connections;
pub mod counters;
mod counting;
pub mod members;
pub mod presence;
pub mod restricted;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::live::{Heard, Limits, Listener, Live};
use tokio::time::{Instant, sleep, timeout};

use crate::LIMIT;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// What ends within a test: long enough that a stalled machine does not end it too early.
pub const SHORT: Duration = Duration::from_secs(2);

/// What is tested, and what has to live as long.
pub struct Subject {
    pub live: Arc<dyn Live>,
    pub server: Option<Box<dyn Any + Send>>,
}

/// Everything ends after [`SHORT`].
pub fn short_limits() -> Limits {
    Limits {
        connection_ttl: SHORT,
        members_ttl: SHORT,
        fill_ttl: SHORT,
        presence_ttl: SHORT,
        ..Limits::default()
    }
}

/// Looks until there is something to see, and returns it.
///
/// # Panics
/// If it is not there within [`LIMIT`].
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(started.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        sleep(PAUSE).await;
    }
}

/// The next thing a listener hears.
///
/// # Panics
/// If it hears nothing within [`LIMIT`].
pub async fn hear(listener: &mut Box<dyn Listener>) -> Heard {
    timeout(LIMIT, listener.next()).await.expect("nothing was heard").expect("a listener goes on")
}

/// One test per case. Takes an async function from [`Limits`] to [`Subject`], by its full path.
#[macro_export]
macro_rules! live_suite {
    ($start:path) => {
        $crate::live_cases! { $start;
            connections: [
                a_registered_connection_is_found_whole,
                who_is_not_connected_has_no_connections,
                a_user_has_several_devices_on_several_gateways,
                registering_again_changes_nothing,
                a_connection_that_changes_hands_belongs_to_one_user,
                unregistering_forgets_those_named_and_no_others,
                heartbeats_name_connections_that_are_not_known,
                a_connection_without_heartbeats_ends,
                heartbeats_keep_a_connection,
                many_are_asked_for_at_once,
                ids_may_be_any_text,
            ];
            members: [
                a_chat_is_unknown_until_filled,
                a_chat_without_members_is_known,
                answers_come_in_the_order_asked,
                an_invalidation_forgets,
                an_invalidation_voids_fills_that_began_before_it,
                a_void_fill_does_not_replace_a_later_one,
                fillers_at_the_same_time_agree,
                beginning_leaves_what_is_known,
                members_and_permissions_end,
                large_chats_are_cached_whole,
                no_race_brings_back_a_former_member,
            ];
            presence: [
                presence_is_what_was_set_last,
                presence_ends,
            ];
            counters: [
                counts_add_up,
                a_window_ends_counted_from_its_first_count,
                a_window_of_nothing_is_refused,
                nothing_is_lost_when_many_count_at_once,
            ];
            channels: [
                nobody_hears_what_nobody_listens_to,
                messages_are_heard_in_order,
                every_listener_hears_its_channels_and_no_others,
                payloads_are_any_bytes,
                a_slow_listener_gets_a_gap_and_holds_up_nobody,
                a_dropped_listener_is_gone,
                waiting_can_be_given_up,
            ];
            restricted: [
                a_grant_is_enough_for_deliveries,
                who_delivers_cannot_keep_connections,
                who_fills_the_cache_cannot_read_it,
                one_channel_outside_the_grant_refuses_all,
            ];
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! live_cases {
    ($start:path; $($family:ident: [$($case:ident,)*];)*) => { $(
        mod $family { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::live::$family::$case($start).await;
            }
        )* }
    )* };
}
