//! Sessions whose end nobody told of: each look at them is made by the test, on a gateway that makes none by itself.

use courant_connectors::live::LiveError;
use courant_connectors::model::tables::sessions::revoke;

use super::super::gateway::Registered;
use super::super::registrations::{Because, CONFIRM_AFTER, look_up, register, sweep};
use super::super::ticks;
use super::*;

struct Resting {
    world: World,
    gateway: Gateway,
}

impl Resting {
    async fn new() -> Self {
        let world = world().await;
        let gateway = Gateway::new(&world.api);
        Self { world, gateway }
    }

    /// A socket that is open and known to live state.
    async fn open(&self, user: &str) -> Registered {
        let session = format!("sess_{user}");
        self.world.sign_in(user, &session).await;
        let (session_id, device_id) = (session.as_str().into(), "dev_1".into());
        let caller = Caller { user_id: user.into(), session_id, device_id };
        let registered = self.gateway.shared().admit(caller, None).ok().unwrap();
        register(self.gateway.shared(), &registered.peer).await;
        registered
    }

    async fn end_session(&self, user: &str) {
        let session = format!("sess_{user}");
        assert!(revoke(&*self.world.store, &session.as_str().into()).await.unwrap().is_some());
    }

    async fn sweep(&self, now: u32) {
        sweep(self.gateway.shared(), Because::ItIsTime, now).await.unwrap();
    }
}

fn are_open<const N: usize>(sockets: [&Registered; N]) -> [bool; N] {
    sockets.map(|socket| socket.peer.outbox.is_open())
}

#[tokio::test]
async fn the_first_sweep_finds_a_session_that_ended_while_its_socket_was_opened() {
    let resting = Resting::new().await;
    let (ended, other) = (resting.open("user_1").await, resting.open("user_2").await);
    resting.end_session("user_1").await;
    resting.sweep(resting.gateway.shared().ticks.now()).await;
    assert_eq!(are_open([&ended, &other]), [false, true]);
}

#[tokio::test]
async fn later_ones_find_it_when_its_time_has_come() {
    let resting = Resting::new().await;
    let ended = resting.open("user_1").await;
    let now = resting.gateway.shared().ticks.now();
    resting.sweep(now).await;
    resting.end_session("user_1").await;
    let due = now + ticks::of(CONFIRM_AFTER);
    resting.sweep(due - 1).await;
    assert_eq!(are_open([&ended]), [true], "the store is asked now and then, not all the time");
    resting.sweep(due).await;
    assert_eq!(are_open([&ended]), [false]);
}

/// Who ends a session cannot tell anybody then, so it is all the more up to the store.
#[tokio::test]
async fn it_is_found_while_live_state_is_down() {
    let resting = Resting::new().await;
    let (ended, other) = (resting.open("user_1").await, resting.open("user_2").await);
    resting.end_session("user_1").await;
    let shared = resting.gateway.shared();
    let all: Vec<_> = shared.registry.read().all().cloned().collect();
    let down = Err(LiveError::Unavailable("connection refused".to_owned()));
    let swept = look_up(shared, &all, Because::ItIsTime, down, shared.ticks.now()).await;
    assert!(swept.is_err(), "which is said");
    assert_eq!(are_open([&ended, &other]), [false, true]);
}
