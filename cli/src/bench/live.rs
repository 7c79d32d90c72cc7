//! `courant bench live`: what delivering a message asks of live state, at 1, 64 and 1024 in flight.
//!
//! Registering a connection, looking up the connections of a chat's five members, and publishing a delivery that somebody
//! hears. There is no limit to compare with: a server answers as fast as its network, memory as fast as the machine.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use courant_connectors::live::{Channel, Connection, Live, LiveError};
use courant_connectors::model::{ConnectionId, GatewayId, UserId};
use courant_pipeline::clock;

use super::load::closed_loop;
use super::{Figure, IN_FLIGHT, RECORD_BYTES};

/// Users that are connected, and looked up five at a time.
const USERS: usize = 1000;
const MEMBERS: usize = 5;

/// Measures and reports each figure.
pub async fn run(
    live: Arc<dyn Live>,
    lasting: Duration,
    mut report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let round = lasting / u32::try_from(IN_FLIGHT.len() * Work::ALL.len()).expect("a few parts");
    let world = Arc::new(World::new(live));
    for user in 0..USERS {
        world.live.register(&world.connection(user)).await?;
    }
    let listening = {
        let mut listener = world.live.subscribe(&[Channel::deliver(&world.gateway)]).await?;
        // Heard and thrown away, as fast as it comes.
        tokio::spawn(async move { while listener.next().await.is_ok() {} })
    };
    for work in Work::ALL {
        for in_flight in IN_FLIGHT {
            let calls = |caller| calls(&world, work, caller);
            let measured = closed_loop(in_flight, 1, round, calls).await?;
            let mut figure =
                Figure::new(format!("live_{}_{in_flight}", work.name()), measured.rate, "calls/s");
            figure.p50_ms = Some(measured.p50.as_secs_f64() * 1e3);
            figure.p99_ms = Some(measured.p99.as_secs_f64() * 1e3);
            report(&figure);
        }
    }
    listening.abort();
    let connections: Vec<_> = (0..USERS).map(|user| world.connection(user)).collect();
    world.live.unregister(&connections).await?;
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Work {
    Register,
    Lookup,
    Publish,
}

impl Work {
    const ALL: [Self; 3] = [Self::Register, Self::Lookup, Self::Publish];

    const fn name(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Lookup => "lookup",
            Self::Publish => "publish",
        }
    }
}

struct World {
    live: Arc<dyn Live>,
    gateway: GatewayId,
    users: Vec<(UserId, ConnectionId)>,
    delivery: Bytes,
}

impl World {
    fn new(live: Arc<dyn Live>) -> Self {
        let users = (0..USERS).map(|_| (UserId::generate(), ConnectionId::generate())).collect();
        let delivery = Bytes::from(vec![b'x'; RECORD_BYTES]);
        Self { live, gateway: GatewayId::generate(), users, delivery }
    }

    fn connection(&self, user: usize) -> Connection {
        let (user, id) = &self.users[user % USERS];
        Connection {
            id: id.clone(),
            user: user.clone(),
            device: "dev_bench".into(),
            gateway: self.gateway.clone(),
            connected_at: clock::now(),
        }
    }
}

type Calling = std::pin::Pin<Box<dyn Future<Output = Result<(), LiveError>> + Send>>;

fn calls(world: &Arc<World>, work: Work, caller: usize) -> impl FnMut(u64) -> Calling + Send + use<> {
    let world = Arc::clone(world);
    move |call| {
        let world = Arc::clone(&world);
        let user = caller * 31 + usize::try_from(call).unwrap_or_default();
        Box::pin(async move {
            match work {
                Work::Register => world.live.register(&world.connection(user)).await,
                Work::Lookup => {
                    let users: Vec<_> =
                        (0..MEMBERS).map(|n| world.users[(user + n) % USERS].0.clone()).collect();
                    world.live.connections_of(&users).await.map(drop)
                }
                Work::Publish => {
                    let publish = [(Channel::deliver(&world.gateway), world.delivery.clone())];
                    world.live.publish(&publish).await.map(drop)
                }
            }
        })
    }
}
