//! A map whose entries end by themselves.
//!
//! An ended entry is not returned; it is taken out when the map has doubled since the last sweep. So a sweep costs
//! every insertion a constant amount, and the map holds at most twice what was alive at the last sweep. An index by
//! time would free memory sooner, and would have to be kept right on every heartbeat.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

use tokio::time::Instant;

/// Sweeping a map smaller than this frees nothing worth it.
const SMALLEST_SWEEP: usize = 1024;

/// Keys that clients choose need the default hasher.
pub(super) struct Expiring<K, V, S = RandomState> {
    entries: HashMap<K, Entry<V>, S>,
    sweep_at: usize,
}

struct Entry<V> {
    value: V,
    ends: Instant,
}

impl<K, V, S: Default> Default for Expiring<K, V, S> {
    fn default() -> Self {
        Self { entries: HashMap::default(), sweep_at: SMALLEST_SWEEP }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Expiring<K, V, S> {
    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_at(key, Instant::now())
    }

    /// For many in a row: the clock costs as much as the look-up.
    pub(super) fn get_at<Q: Eq + Hash + ?Sized>(&self, key: &Q, now: Instant) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let entry = self.entries.get(key)?;
        (entry.ends > now).then_some(&entry.value)
    }

    pub(super) fn get_with_end<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<(&V, Instant)>
    where
        K: Borrow<Q>,
    {
        let entry = self.entries.get(key)?;
        (entry.ends > Instant::now()).then_some((&entry.value, entry.ends))
    }

    /// Returns what was there, and what the sweep this insertion may have caused took out.
    pub(super) fn insert(&mut self, key: K, value: V, ends: Instant) -> Vec<V> {
        let mut gone: Vec<V> =
            self.entries.insert(key, Entry { value, ends }).map(|entry| entry.value).into_iter().collect();
        if self.entries.len() >= self.sweep_at {
            let now = Instant::now();
            gone.extend(self.entries.extract_if(|_, entry| entry.ends <= now).map(|(_, entry)| entry.value));
            self.sweep_at = SMALLEST_SWEEP.max(self.entries.len() * 2);
            self.entries.shrink_to(self.sweep_at);
        }
        gone
    }

    pub(super) fn get_or_insert_default(&mut self, key: &K, ends: Instant) -> &mut V
    where
        K: Clone,
        V: Default,
    {
        if self.get(key).is_none() {
            self.insert(key.clone(), V::default(), ends);
        }
        &mut self.entries.get_mut(key).expect("it was there or has just been inserted").value
    }

    /// Whether there was anything to extend.
    pub(super) fn extend(&mut self, key: &K, ends: Instant) -> bool {
        match self.entries.get_mut(key) {
            Some(entry) if entry.ends > Instant::now() => {
                entry.ends = ends;
                true
            }
            _ => false,
        }
    }

    /// Ended or not.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key).map(|entry| entry.value)
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn an_entry_ends_exactly_when_its_time_is_over() {
        let mut map: Expiring<_, _> = Expiring::default();
        map.insert("a", 1, Instant::now() + TTL);
        advance(TTL.checked_sub(Duration::from_millis(1)).unwrap()).await;
        assert_eq!(map.get("a"), Some(&1));
        advance(Duration::from_millis(1)).await;
        assert_eq!(map.get("a"), None);
        assert!(!map.extend(&"a", Instant::now() + TTL), "what has ended is not brought back");
        assert_eq!(map.get("a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_ended_does_not_add_up() {
        let mut map: Expiring<_, _> = Expiring::default();
        for key in 0..100 * SMALLEST_SWEEP {
            map.insert(key, (), Instant::now() + TTL);
            if key % 100 == 0 {
                advance(TTL / 2).await;
            }
            assert!(map.held() <= SMALLEST_SWEEP, "{} held", map.held());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sweeping_keeps_what_is_alive() {
        let mut map: Expiring<_, _> = Expiring::default();
        for key in 0..3 * SMALLEST_SWEEP {
            map.insert(key, key, Instant::now() + TTL);
        }
        assert_eq!(
            (0..3 * SMALLEST_SWEEP).filter(|key| map.get(key) == Some(key)).count(),
            3 * SMALLEST_SWEEP
        );
    }
}
