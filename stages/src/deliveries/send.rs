//! Sends frames to the gateways where the users they are for are connected: one question finds the connections of
//! everybody concerned, one publish per gateway carries all frames for it, in their order.

use bytes::{Bytes, BytesMut};
use courant_connectors::live::{Channel, Connection, Live};
use courant_connectors::model::frames::{NotADelivery, write_delivery};
use courant_connectors::model::{GatewayId, UserId};
use courant_pipeline::StageError;
use courant_pipeline::spec::{Access, Level, Mode};
use rustc_hash::FxHashMap;

use super::Addressed;
use crate::backends::{access, live_error};

/// A publish ends at about this much: thousands of frames, and little enough that whoever else uses the connection does
/// not wait for it.
const PUBLISH_BYTES: usize = 512 * 1024;

/// What a line is beside its frame, for a small chat.
const LINE_BYTES: usize = 250;

/// A frame to be sent, and the connection it came from, which does not get it.
pub(crate) struct Outgoing<'a> {
    pub(crate) addressed: &'a Addressed,
    pub(crate) origin: Option<&'a str>,
}

/// What a stage declares that sends.
pub(crate) fn send_access() -> [Access; 4] {
    [
        access(Level::Live, Mode::Read, "connection"),
        access(Level::Live, Mode::Read, "user_connections"),
        // What has ended is taken out of the sets on the way.
        access(Level::Live, Mode::Write, "user_connections"),
        access(Level::Live, Mode::Write, "deliver"),
    ]
}

/// Sends what there is. Returns those that cannot be written down, by their index; the others are on their way.
pub(crate) async fn send(
    live: &dyn Live,
    frames: &[Option<Outgoing<'_>>],
) -> Result<Vec<(usize, NotADelivery)>, StageError> {
    let audiences = Audiences::of(frames);
    let connections = live.connections_of(&audiences.users).await;
    let connections = connections.map_err(|error| live_error("find connections", error))?;
    let mut outbox = Outbox::default();
    let routes = audiences.routes(&connections, &mut outbox);
    let lengths = frames.iter().flatten().map(|outgoing| outgoing.addressed.frame.len() + LINE_BYTES);
    outbox.make_room(lengths.sum());
    let mut unwritten = Vec::new();
    for (index, outgoing) in frames.iter().enumerate() {
        let Some(outgoing) = outgoing else { continue };
        if let Err(error) = outbox.put(outgoing, &routes[audiences.of_frame[index]]) {
            unwritten.push((index, error));
        }
    }
    publish(live, outbox).await?;
    Ok(unwritten)
}

async fn publish(live: &dyn Live, outbox: Outbox) -> Result<(), StageError> {
    let publishes = outbox.into_publishes();
    if publishes.is_empty() {
        return Ok(());
    }
    let heard = live.publish(&publishes).await.map_err(|error| live_error("publish to gateways", error))?;
    for ((channel, _), _) in publishes.iter().zip(heard).filter(|(_, heard)| *heard == 0) {
        tracing::debug!(
            channel = channel.as_str(),
            "nobody listens: the gateway's connections are left to end"
        );
    }
    Ok(())
}

/// The different lists of users that the frames of a batch are for, and their users, each once.
#[derive(Default)]
struct Audiences {
    users: Vec<UserId>,
    /// By audience: indexes of users.
    lists: Vec<Vec<usize>>,
    /// By frame: index of its audience.
    of_frame: Vec<usize>,
}

/// The connections of an audience on one gateway.
struct Route<'a> {
    gateway: usize,
    connections: Vec<&'a Connection>,
}

impl Audiences {
    /// Frames of a chat share their list, so it is looked at once.
    fn of(frames: &[Option<Outgoing<'_>>]) -> Self {
        let mut audiences = Self { of_frame: Vec::with_capacity(frames.len()), ..Self::default() };
        let mut by_list: FxHashMap<*const UserId, usize> = FxHashMap::default();
        let mut by_user: FxHashMap<&UserId, usize> = FxHashMap::default();
        for outgoing in frames {
            let Some(Outgoing { addressed, .. }) = outgoing else {
                audiences.of_frame.push(usize::MAX);
                continue;
            };
            let Self { users, lists, of_frame } = &mut audiences;
            let audience = *by_list.entry(addressed.users.as_ptr()).or_insert_with(|| {
                let index_of = |user| {
                    *by_user.entry(user).or_insert_with(|| {
                        users.push(user.clone());
                        users.len() - 1
                    })
                };
                lists.push(addressed.users.iter().map(index_of).collect());
                lists.len() - 1
            });
            of_frame.push(audience);
        }
        audiences
    }

    /// Where each audience is connected.
    fn routes<'a>(&self, connections: &'a [Vec<Connection>], outbox: &mut Outbox) -> Vec<Vec<Route<'a>>> {
        let mut gateways: FxHashMap<&'a GatewayId, usize> = FxHashMap::default();
        let mut route = |users: &Vec<usize>| {
            let mut routes: Vec<Route<'a>> = Vec::new();
            for connection in users.iter().flat_map(|user| &connections[*user]) {
                let gateway =
                    *gateways.entry(&connection.gateway).or_insert_with(|| outbox.open(&connection.gateway));
                match routes.iter_mut().find(|route| route.gateway == gateway) {
                    Some(route) => route.connections.push(connection),
                    None => routes.push(Route { gateway, connections: vec![connection] }),
                }
            }
            routes
        };
        self.lists.iter().map(&mut route).collect()
    }
}

/// What is to be published, by gateway.
#[derive(Default)]
struct Outbox {
    gateways: Vec<(Channel, BytesMut)>,
    full: Vec<(Channel, Bytes)>,
}

impl Outbox {
    fn open(&mut self, gateway: &GatewayId) -> usize {
        self.gateways.push((Channel::deliver(gateway), BytesMut::new()));
        self.gateways.len() - 1
    }

    /// Expects this much in all, spread evenly; more only costs a copy.
    fn make_room(&mut self, bytes: usize) {
        let each = bytes / self.gateways.len().max(1);
        for (_, lines) in &mut self.gateways {
            lines.reserve(each.min(PUBLISH_BYTES));
        }
    }

    /// Adds a frame for everybody on the routes but the connection that it came from.
    fn put(&mut self, outgoing: &Outgoing<'_>, routes: &[Route<'_>]) -> Result<(), NotADelivery> {
        let Outgoing { addressed, origin } = *outgoing;
        for Route { gateway, connections } in routes {
            let mut others = connections
                .iter()
                .map(|connection| &connection.id)
                .filter(|id| Some(id.as_str()) != origin)
                .peekable();
            if others.peek().is_none() {
                continue;
            }
            let (channel, lines) = &mut self.gateways[*gateway];
            write_delivery(lines, &addressed.chat_id, addressed.sequence, others, &addressed.frame)?;
            if lines.len() >= PUBLISH_BYTES {
                self.full.push((channel.clone(), lines.split().freeze()));
            }
        }
        Ok(())
    }

    fn into_publishes(self) -> Vec<(Channel, Bytes)> {
        let rest = self.gateways.into_iter().filter(|(_, lines)| !lines.is_empty());
        let rest = rest.map(|(channel, lines)| (channel, lines.freeze()));
        self.full.into_iter().chain(rest).collect()
    }
}
