//! Connections that are not sockets: how many there are of each address, and which of them can go.
//!
//! A connection costs memory and an open file before anybody knows whose it is. So one address holds a bounded number
//! of them, and when there is no room for another, of its address or at all, the one goes that has waited longest for
//! a request: it does nothing, and a client that finds it closed connects again. Somebody who opens connections and says
//! nothing, or says it byte by byte, pushes out their own. What is being answered is never cut.
//!
//! Sockets are not counted here: they are somebody's who signed in, and counted by user. Rejected: refusing newcomers
//! when there is no room, which lets whoever came first keep everybody else out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

use super::metrics;
use crate::limits::by_address;

/// Everybody who is connected and has no socket.
pub(super) struct Visitors {
    per_address: usize,
    /// One address that many come from.
    proxies: Arc<[IpNet]>,
    here: Mutex<Here>,
}

#[derive(Default)]
struct Here {
    /// By whom an address stands for. SipHash: strangers choose their addresses.
    by_address: HashMap<Arc<str>, OfAddress>,
    /// Those that wait for a request, longest first.
    waiting: BTreeMap<u64, Waiting>,
    /// How often somebody began to wait.
    turns: u64,
}

#[derive(Default)]
struct OfAddress {
    connections: usize,
    /// Those that wait, as in [`Here::waiting`].
    waiting: BTreeSet<u64>,
}

struct Waiting {
    address: Option<Arc<str>>,
    cut: CancellationToken,
}

/// Whether there is a place for another connection, whoever's it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum House {
    HasRoom,
    Full,
}

/// The address has as many connections as it may, and all of them are being answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

impl Visitors {
    pub(super) fn new(per_address: usize, proxies: Arc<[IpNet]>) -> Arc<Self> {
        Arc::new(Self { per_address, proxies, here: Mutex::default() })
    }

    /// Lets somebody in, who waits for a request from now on. Whoever has waited longest makes room: of the same address
    /// if that has too many, or else of all if the house is full.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr, house: House) -> Result<Visit, NoRoom> {
        let address = address.to_canonical();
        let is_proxy = self.proxies.iter().any(|proxies| proxies.contains(&address));
        let address: Option<Arc<str>> = (!is_proxy).then(|| by_address(address).into());
        let mut here = self.lock();
        let of_address = address.as_ref().and_then(|address| here.by_address.get(address));
        if let Some(full) = of_address.filter(|of_address| of_address.connections >= self.per_address) {
            let longest = full.waiting.first().copied().ok_or(NoRoom)?;
            here.cut(longest);
        } else if house == House::Full
            && let Some(longest) = here.waiting.keys().next().copied()
        {
            here.cut(longest);
        }
        if let Some(address) = &address {
            here.by_address.entry(Arc::clone(address)).or_default().connections += 1;
        }
        let cut = CancellationToken::new();
        let turn = here.begin_to_wait(address.clone(), cut.clone());
        drop(here);
        Ok(Visit { visitors: Arc::clone(self), address, cut, turn: Mutex::new(Some(turn)) })
    }

    fn lock(&self) -> MutexGuard<'_, Here> {
        // Nothing in here panics halfway.
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Here {
    fn begin_to_wait(&mut self, address: Option<Arc<str>>, cut: CancellationToken) -> u64 {
        self.turns += 1;
        let turn = self.turns;
        if let Some(of_address) = address.as_ref().and_then(|address| self.by_address.get_mut(address)) {
            of_address.waiting.insert(turn);
        }
        self.waiting.insert(turn, Waiting { address, cut });
        turn
    }

    /// `None` if it was cut meanwhile.
    fn end_to_wait(&mut self, turn: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&turn)?;
        let of_address = waiting.address.as_ref().and_then(|address| self.by_address.get_mut(address));
        if let Some(of_address) = of_address {
            of_address.waiting.remove(&turn);
        }
        Some(waiting)
    }

    /// It leaves the count now and not when its task comes to it: whoever pushed it out has its place.
    fn cut(&mut self, turn: u64) {
        if let Some(waiting) = self.end_to_wait(turn) {
            self.leave(waiting.address.as_ref());
            waiting.cut.cancel();
            metrics::cut();
        }
    }

    fn leave(&mut self, address: Option<&Arc<str>>) {
        let Some(address) = address else { return };
        if let Some(of_address) = self.by_address.get_mut(address) {
            of_address.connections -= 1;
            if of_address.connections == 0 {
                self.by_address.remove(address);
            }
        }
    }
}

/// One connection, as long as it speaks HTTP.
pub(super) struct Visit {
    visitors: Arc<Visitors>,
    address: Option<Arc<str>>,
    cut: CancellationToken,
    /// Since when it waits; `None` while it is answered.
    turn: Mutex<Option<u64>>,
}

impl Visit {
    /// Ends when somebody else takes its place.
    pub(super) async fn cut(&self) {
        self.cut.cancelled().await;
    }

    /// A request has come and is being answered until what is returned is dropped; `None` if it comes too late.
    pub(super) fn ask(self: &Arc<Self>) -> Option<Asking> {
        let turn = self.turn().take();
        if let Some(turn) = turn {
            self.visitors.lock().end_to_wait(turn)?;
        }
        Some(Asking(Arc::clone(self)))
    }

    fn turn(&self) -> MutexGuard<'_, Option<u64>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let turn = self.turn().take();
        let mut here = self.visitors.lock();
        let was_cut = turn.is_some_and(|turn| here.end_to_wait(turn).is_none());
        if !was_cut && !self.cut.is_cancelled() {
            here.leave(self.address.as_ref());
        }
    }
}

/// A request that is being answered.
pub(super) struct Asking(Arc<Visit>);

impl Drop for Asking {
    fn drop(&mut self) {
        let visit = &self.0;
        let turn = visit.visitors.lock().begin_to_wait(visit.address.clone(), visit.cut.clone());
        *visit.turn() = Some(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visitors(per_address: usize) -> Arc<Visitors> {
        Visitors::new(per_address, Arc::new(["10.0.0.0/8".parse().unwrap()]))
    }

    fn enter(visitors: &Arc<Visitors>, address: &str) -> Arc<Visit> {
        Arc::new(visitors.enter(address.parse().unwrap(), House::HasRoom).expect("there is room"))
    }

    fn are_cut<const N: usize>(visits: [&Arc<Visit>; N]) -> [bool; N] {
        visits.map(|visit| visit.cut.is_cancelled())
    }

    #[test]
    fn the_one_of_the_address_that_waited_longest_makes_room() {
        let visitors = visitors(2);
        let others = enter(&visitors, "192.0.2.9");
        let (first, second) = (enter(&visitors, "192.0.2.1"), enter(&visitors, "192.0.2.1"));
        // It has asked since, so it has not waited longest.
        drop(first.ask().unwrap());
        let third = enter(&visitors, "::ffff:192.0.2.1");
        assert_eq!(are_cut([&others, &first, &second, &third]), [false, false, true, false]);
        drop(second);
        let _fourth = enter(&visitors, "192.0.2.1");
        assert_eq!(are_cut([&first, &third]), [true, false], "who was cut is not counted, nor twice");
    }

    #[test]
    fn whoever_is_answered_is_not_cut() {
        let visitors = visitors(1);
        let visit = enter(&visitors, "192.0.2.1");
        let asking = visit.ask().unwrap();
        assert_eq!(visitors.enter("192.0.2.1".parse().unwrap(), House::Full).err(), Some(NoRoom));
        let _other = visitors.enter("192.0.2.2".parse().unwrap(), House::Full).ok().unwrap();
        assert_eq!(are_cut([&visit]), [false]);
        drop(asking);
        let _next = enter(&visitors, "192.0.2.1");
        assert_eq!(are_cut([&visit]), [true], "it waited");
        assert!(visit.ask().is_none(), "it comes too late");
    }

    #[test]
    fn a_full_house_costs_whoever_waited_longest_of_all_or_of_an_address_that_has_too_many() {
        let visitors = visitors(1);
        let (first, second) = (enter(&visitors, "192.0.2.1"), enter(&visitors, "192.0.2.2"));
        let full = |address: &str| visitors.enter(address.parse().unwrap(), House::Full).ok().unwrap();
        let _third = full("192.0.2.2");
        assert_eq!(are_cut([&first, &second]), [false, true], "an address pushes out its own");
        let _fourth = full("192.0.2.3");
        assert_eq!(are_cut([&first]), [true]);
    }

    #[test]
    fn proxies_are_many_and_networks_are_one() {
        let visitors = visitors(1);
        let (one, other) = (enter(&visitors, "10.0.0.1"), enter(&visitors, "10.0.0.1"));
        assert_eq!(are_cut([&one, &other]), [false, false]);
        let (one, _other) = (enter(&visitors, "2001:db8::1"), enter(&visitors, "2001:db8::2"));
        assert_eq!(are_cut([&one]), [true], "one network of IPv6 is one customer");
    }

    #[test]
    fn nothing_is_kept_of_those_who_left() {
        let visitors = visitors(2);
        let visits: Vec<_> = (0..9).map(|n| enter(&visitors, &format!("192.0.2.{}", n % 3))).collect();
        let asking = visits.iter().find_map(Visit::ask);
        drop(visits);
        assert_eq!(visitors.lock().by_address.len(), 1, "it is being answered");
        drop(asking);
        let here = visitors.lock();
        assert_eq!((here.by_address.len(), here.waiting.len()), (0, 0));
    }
}
