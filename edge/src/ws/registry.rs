//! The sockets of this process, by connection and by user.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use courant_connectors::model::{ConnectionId, UserId};
use rustc_hash::FxHashMap;

use super::peer::Peer;

/// How many sockets there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) sockets: usize,
    pub(super) per_device: usize,
    pub(super) per_user: usize,
}

#[derive(Default)]
pub(super) struct Registry(RwLock<Peers>);

#[derive(Default)]
pub(super) struct Peers {
    by_id: FxHashMap<ConnectionId, Arc<Peer>>,
    /// Oldest first. Ids would not do: those of one millisecond are in no order.
    by_user: BTreeMap<(UserId, u64), Arc<Peer>>,
    /// How many there have been.
    added: u64,
}

/// There are as many sockets as there may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

impl Peers {
    pub(super) fn get(&self, id: &ConnectionId) -> Option<&Arc<Peer>> {
        self.by_id.get(id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.by_id.values()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Oldest first.
    pub(super) fn of_user(&self, user: &UserId) -> impl Iterator<Item = &Arc<Peer>> {
        self.by_user
            .range((user.clone(), 0)..)
            .take_while(move |((of, _), _)| of == user)
            .map(|(_, peer)| peer)
    }
}

impl Registry {
    /// Held for one batch at most: whoever connects waits for it.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Peers> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Peers> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a socket. It hears what is said to its user, and takes nobody's place yet.
    pub(super) fn add(&self, peer: &Arc<Peer>, room: Room) -> Result<(), NoRoom> {
        let mut peers = self.write();
        if peers.len() >= room.sockets {
            return Err(NoRoom);
        }
        let connection = &peer.connection;
        peers.added += 1;
        let number = peers.added;
        peer.numbered(number);
        peers.by_user.insert((connection.user.clone(), number), Arc::clone(peer));
        peers.by_id.insert(connection.id.clone(), Arc::clone(peer));
        Ok(())
    }

    /// The socket is its user's; returns those it replaces. Until then it may be somebody's whose session has ended.
    pub(super) fn let_in(&self, peer: &Peer, room: Room) -> Vec<Arc<Peer>> {
        let (peers, connection) = (self.write(), &peer.connection);
        let open: Vec<_> = peers
            .of_user(&connection.user)
            .filter(|other| other.is_let_in() && other.outbox.is_open())
            .cloned()
            .collect();
        peer.let_in();
        let of_device: Vec<_> =
            open.iter().filter(|other| other.connection.device == connection.device).cloned().collect();
        let mut replaced: Vec<_> = oldest_beyond(&of_device, room.per_device).to_vec();
        if replaced.is_empty() {
            replaced.extend_from_slice(oldest_beyond(&open, room.per_user));
        }
        replaced
    }

    pub(super) fn remove(&self, peer: &Peer) {
        let mut peers = self.write();
        peers.by_id.remove(&peer.connection.id);
        peers.by_user.remove(&(peer.connection.user.clone(), peer.number()));
    }
}

/// Those that must go so that one more fits.
fn oldest_beyond(peers: &[Arc<Peer>], limit: usize) -> &[Arc<Peer>] {
    &peers[..(peers.len() + 1).saturating_sub(limit)]
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use courant_connectors::live::Connection;

    use super::super::close::Close;
    use super::super::outbox::{Waiting, Wakers};
    use super::*;

    const ROOM: Room = Room { sockets: 5, per_device: 2, per_user: 3 };

    fn peer(id: &str, user: &str, device: &str) -> Arc<Peer> {
        let connection = Connection {
            id: id.into(),
            user: user.into(),
            device: device.into(),
            gateway: "gw_1".into(),
            connected_at: SystemTime::UNIX_EPOCH,
        };
        Arc::new(Peer::new(connection, "sess_1".into(), 0))
    }

    fn add(registry: &Registry, id: &str, user: &str, device: &str) -> Vec<String> {
        let peer = peer(id, user, device);
        registry.add(&peer, ROOM).unwrap();
        let replaced = registry.let_in(&peer, ROOM);
        for peer in &replaced {
            peer.outbox.close(Close::Replaced, Waiting::Dropped, &mut Wakers::default());
        }
        replaced.iter().map(|peer| peer.connection.id.to_string()).collect()
    }

    #[test]
    fn the_oldest_of_a_device_or_user_makes_room() {
        let registry = Registry::default();
        assert!(add(&registry, "conn_9", "user_1", "phone").is_empty());
        assert!(add(&registry, "conn_8", "user_1", "laptop").is_empty());
        assert!(add(&registry, "conn_7", "user_1", "laptop").is_empty());
        assert_eq!(add(&registry, "conn_6", "user_1", "laptop"), ["conn_8"], "of its device");
        assert_eq!(
            add(&registry, "conn_5", "user_1", "tablet"),
            ["conn_9"],
            "of its user; one closes already"
        );
        assert_eq!(registry.add(&peer("conn_4", "user_2", "phone"), ROOM).err(), Some(NoRoom));
    }

    /// Somebody with a token whose session has ended gets as far as this, as often as they like.
    #[test]
    fn whoever_is_not_let_in_replaces_nobody_and_is_not_counted() {
        let registry = Registry::default();
        assert!(add(&registry, "conn_1", "user_1", "phone").is_empty());
        for id in ["conn_2", "conn_3", "conn_4"] {
            registry.add(&peer(id, "user_1", "phone"), ROOM).unwrap();
        }
        assert!(add(&registry, "conn_5", "user_1", "phone").is_empty());
    }

    #[test]
    fn users_are_told_apart() {
        let registry = Registry::default();
        let first = peer("conn_1", "user_1", "d");
        registry.add(&first, ROOM).unwrap();
        registry.add(&peer("conn_2", "user_10", "d"), ROOM).unwrap();
        let of = |user: &str| registry.read().of_user(&user.into()).count();
        assert_eq!([of("user_1"), of("user_10"), of("user_")], [1, 1, 0]);
        registry.remove(&first);
        assert_eq!([of("user_1"), registry.read().len()], [0, 1]);
    }
}
