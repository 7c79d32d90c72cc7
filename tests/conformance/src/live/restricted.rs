//! Handles that cannot do more than was granted, in front of live state that would.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::capability::{Access, Grant, RestrictedLive};
use courant_connectors::live::{
    Channel, Connections as _, Counters as _, Limits, Live, LiveError, MembershipCache as _, Presence,
    PresenceBoard as _, Publish as _, Status, Subscribe as _,
};
use courant_connectors::model::{ChatId, UserId};

use super::channels::{channel, heard, number};
use super::connections::connection;
use super::counting::CountingLive;
use super::{Subject, hear};

/// What sending frames to gateways takes.
fn delivery() -> Grant {
    Grant::nothing()
        .family("connection", Access::Read)
        .family("user_connections", Access::Read)
        .family("user_connections", Access::Write)
        .family("deliver", Access::Write)
}

fn restricted(live: &Arc<dyn Live>, grant: Grant) -> (RestrictedLive, Arc<CountingLive>) {
    let counting = CountingLive::before(Arc::clone(live));
    (RestrictedLive::new(Arc::clone(&counting) as Arc<_>, Arc::new(grant)), counting)
}

/// Asserts which access to which family was refused.
macro_rules! is_refused {
    ($answer:expr, $verb:literal $family:literal) => {
        match $answer.map(drop) {
            Err(LiveError::NotAllowed { access, name }) => {
                assert_eq!((access, name.as_str()), ($verb, $family));
            }
            other => panic!("expected that to {} '{}' is refused, got {other:?}", $verb, $family),
        }
    };
}

pub async fn a_grant_is_enough_for_deliveries(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let connected = connection();
    live.register(&connected).await.unwrap();
    let channel = Channel::deliver(&connected.gateway);
    let mut gateway = live.subscribe(from_ref(&channel)).await.unwrap();
    let (handle, asked) = restricted(&live, delivery());
    let found = handle.connections_of(from_ref(&connected.user)).await.unwrap();
    assert_eq!(found, [[connected]]);
    assert_eq!(handle.publish(&[(channel.clone(), number(1))]).await.unwrap(), [1]);
    assert_eq!(asked.asked(), 2);
    assert_eq!(hear(&mut gateway).await, heard(&channel, number(1)));
}

pub async fn who_delivers_cannot_keep_connections(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let (handle, asked) = restricted(&live, delivery());
    let (connected, chat) = (connection(), ChatId::generate());
    let presence = Presence { status: Status::Online, last_seen: String::new() };
    is_refused!(handle.register(&connected).await, "write" "connection");
    is_refused!(handle.heartbeat(from_ref(&connected)).await, "write" "connection");
    is_refused!(handle.unregister(from_ref(&connected)).await, "write" "connection");
    is_refused!(handle.connections_on(&connected.gateway).await, "read" "gateway_connections");
    is_refused!(handle.members(from_ref(&chat)).await, "read" "chat_members");
    is_refused!(handle.begin_fill(&chat).await, "write" "chat_members");
    is_refused!(handle.invalidate(&[chat]).await, "write" "chat_members");
    is_refused!(handle.set_presence(&connected.user, presence).await, "write" "user_presence");
    is_refused!(handle.presence_of(from_ref(&connected.user)).await, "read" "user_presence");
    is_refused!(handle.count("logins", 1, Duration::from_secs(1)).await, "write" "rate");
    is_refused!(handle.subscribe(&[channel()]).await, "listen to" "deliver");
    assert_eq!(asked.asked(), 0, "none of it came as far as the server");
    assert_eq!(live.connections_of(&[connected.user]).await.unwrap(), [[]]);
}

pub async fn who_fills_the_cache_cannot_read_it(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let (chat, user) = (ChatId::generate(), UserId::generate());
    let (filler, _) = restricted(&live, Grant::nothing().family("chat_members", Access::Write));
    let token = filler.begin_fill(&chat).await.unwrap();
    assert!(filler.fill(token, from_ref(&user)).await.unwrap());
    is_refused!(filler.members(from_ref(&chat)).await, "read" "chat_members");
    let (reader, asked) = restricted(&live, Grant::nothing().family("chat_members", Access::Read));
    is_refused!(reader.invalidate(from_ref(&chat)).await, "write" "chat_members");
    assert_eq!(asked.asked(), 0, "it did not come as far as the server");
    assert_eq!(reader.members(from_ref(&chat)).await.unwrap(), [Some(vec![user])]);
    filler.invalidate(from_ref(&chat)).await.unwrap();
    assert_eq!(reader.members(from_ref(&chat)).await.unwrap(), [None]);
}

/// A list with a channel of somebody else is neither sent nor heard in part.
pub async fn one_channel_outside_the_grant_refuses_all(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let grant = Grant::nothing().family("deliver", Access::Read).family("deliver", Access::Write);
    let (handle, asked) = restricted(&live, grant);
    let (inside, revoked, other) = (channel(), Channel::revoked_sessions(), Channel::named("other"));
    let mut listener = live.subscribe(from_ref(&inside)).await.unwrap();
    let both = |outside: &Channel| [(inside.clone(), number(1)), (outside.clone(), number(1))];
    is_refused!(handle.publish(&both(&revoked)).await, "publish to" "revoked");
    is_refused!(handle.publish(&both(&other)).await, "publish to" "other");
    is_refused!(handle.subscribe(&[inside.clone(), revoked]).await, "listen to" "revoked");
    is_refused!(handle.subscribe(&[inside.clone(), other]).await, "listen to" "other");
    assert_eq!(asked.asked(), 0, "none of it came as far as the server");
    handle.publish(&[(inside.clone(), number(2))]).await.unwrap();
    assert_eq!(hear(&mut listener).await, heard(&inside, number(2)), "the first that is heard");
}
