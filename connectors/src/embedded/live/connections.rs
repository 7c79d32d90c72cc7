//! Connections, and which of them a user and a gateway have.
//!
//! Every delivery looks here. Ids of users, connections and gateways are made by servers, so nobody can choose some that
//! collide, and a quick hasher will do.

use std::collections::BTreeSet;
use std::hash::Hash;

use rustc_hash::{FxBuildHasher, FxHashMap};
use tokio::time::Instant;

use super::expiring::Expiring;
use crate::live::Connection;
use crate::model::{ConnectionId, GatewayId, UserId};

#[derive(Default)]
pub(super) struct ConnectionTable {
    known: Expiring<ConnectionId, Connection, FxBuildHasher>,
    of_user: Index<UserId>,
    on_gateway: Index<GatewayId>,
}

type Index<K> = FxHashMap<K, BTreeSet<ConnectionId>>;

impl ConnectionTable {
    pub(super) fn insert(&mut self, connection: Connection, ends: Instant) {
        for gone in self.known.insert(connection.id.clone(), connection.clone(), ends) {
            self.forget(&gone);
        }
        self.of_user.entry(connection.user).or_default().insert(connection.id.clone());
        self.on_gateway.entry(connection.gateway).or_default().insert(connection.id);
    }

    /// Whether it is known.
    pub(super) fn extend(&mut self, id: &ConnectionId, ends: Instant) -> bool {
        self.known.extend(id, ends)
    }

    pub(super) fn remove(&mut self, id: &ConnectionId) {
        if let Some(connection) = self.known.remove(id) {
            self.forget(&connection);
        }
    }

    pub(super) fn of_user(&self, user: &UserId, now: Instant) -> impl Iterator<Item = &Connection> {
        self.alive(self.of_user.get(user), now)
    }

    pub(super) fn on_gateway(&self, gateway: &GatewayId, now: Instant) -> impl Iterator<Item = &Connection> {
        self.alive(self.on_gateway.get(gateway), now)
    }

    fn alive<'a>(
        &'a self,
        ids: Option<&'a BTreeSet<ConnectionId>>,
        now: Instant,
    ) -> impl Iterator<Item = &'a Connection> {
        ids.into_iter().flatten().filter_map(move |id| self.known.get_at(id, now))
    }

    fn forget(&mut self, connection: &Connection) {
        take_out(&mut self.of_user, &connection.user, &connection.id);
        take_out(&mut self.on_gateway, &connection.gateway, &connection.id);
    }
}

fn take_out<K: Eq + Hash>(index: &mut Index<K>, key: &K, id: &ConnectionId) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use tokio::time::advance;

    use super::*;

    fn connection(id: &str, user: &str) -> Connection {
        Connection {
            id: id.into(),
            user: user.into(),
            device: "device".into(),
            gateway: "gateway".into(),
            connected_at: SystemTime::UNIX_EPOCH,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_indexes_shrink_with_what_they_point_to() {
        let ttl = Duration::from_secs(60);
        let mut table = ConnectionTable::default();
        for n in 0..20_000 {
            table.insert(connection(&format!("c{n}"), &format!("u{n}")), Instant::now() + ttl);
            if n % 100 == 0 {
                advance(ttl / 2).await;
            }
        }
        assert!(table.of_user.len() <= 1024, "{} users held", table.of_user.len());
        assert!(table.on_gateway["gateway"].len() <= 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_changes_hands_leaves_its_user() {
        let ends = Instant::now() + Duration::from_secs(60);
        let mut table = ConnectionTable::default();
        table.insert(connection("c", "one"), ends);
        table.insert(connection("c", "two"), ends);
        assert_eq!(table.of_user(&"one".into(), Instant::now()).count(), 0);
        assert_eq!(table.of_user(&"two".into(), Instant::now()).count(), 1);
        table.remove(&"c".into());
        assert!(table.of_user.is_empty() && table.on_gateway.is_empty());
    }
}
