//! Which messages were published lately.
//!
//! Events of a chat come in the order of their sequences, so what was seen of one is a run or two: millions of events are
//! a few hundred runs, which stay where the processor finds them. A message each would be as many cold look-ups.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::matching::Name;

/// How long an event is remembered. Streams lag by seconds, and a shard that was another's begins some seconds ago.
pub(super) const REMEMBERED: Duration = Duration::from_secs(120);
/// Runs remembered at the most. Beyond it those that grow no more are forgotten first, and their messages may be published twice.
const MAX_RUNS: usize = 200_000;

#[derive(Default)]
pub(super) struct Remembered {
    /// By chat, in order and apart from each other.
    runs: FxHashMap<Arc<str>, SmallVec<[Run; 1]>>,
    /// Each run once: its chat, its first sequence, and when it was looked at last or began.
    oldest: VecDeque<(Instant, Arc<str>, u64)>,
    /// When the last event was seen that is forgotten by now.
    forgotten: Option<Instant>,
}

/// Events seen without a gap.
struct Run {
    first: u64,
    last: u64,
    /// When the latest of them was seen.
    at: Instant,
}

impl Remembered {
    pub(super) fn contains(&self, name: &Name) -> bool {
        let Some(runs) = self.runs.get(&name.chat) else { return false };
        before(runs, name.sequence).is_some_and(|at| name.sequence <= runs[at].last)
    }

    pub(super) fn add(&mut self, name: Name, now: Instant) {
        self.forget(now);
        let Name { chat, sequence } = name;
        let Some(runs) = self.runs.get_mut(&chat) else {
            self.runs.insert(Arc::clone(&chat), SmallVec::from_buf([Run::of(sequence, now)]));
            return self.oldest.push_back((now, chat, sequence));
        };
        let at = before(runs, sequence);
        if let Some(run) = at.map(|at| &mut runs[at])
            && sequence <= run.last + 1
        {
            (run.last, run.at) = (run.last.max(sequence), now);
            return;
        }
        runs.insert(at.map_or(0, |at| at + 1), Run::of(sequence, now));
        self.oldest.push_back((now, chat, sequence));
    }

    /// Whether every event that was seen is remembered whose message was stored so long ago.
    pub(super) fn covers(&self, ago: Duration, now: Instant) -> bool {
        self.forgotten.is_none_or(|forgotten| forgotten + ago < now)
    }

    fn forget(&mut self, now: Instant) {
        while let Some((looked_at, _, _)) = self.oldest.front() {
            let is_full = self.oldest.len() >= MAX_RUNS;
            if !is_full && *looked_at + REMEMBERED >= now {
                return;
            }
            let Some((looked_at, chat, first)) = self.oldest.pop_front() else { return };
            let Some(runs) = self.runs.get_mut(&chat) else { continue };
            let Some(at) = runs.iter().position(|run| run.first == first) else { continue };
            let seen = runs[at].at;
            if seen > looked_at && (is_full || seen + REMEMBERED >= now) {
                // it has grown since
                self.oldest.push_back((seen, chat, first));
                continue;
            }
            runs.remove(at);
            if runs.is_empty() {
                self.runs.remove(&chat);
            }
            self.forgotten = self.forgotten.max(Some(seen));
        }
    }

    #[cfg(test)]
    pub(super) fn runs(&self) -> usize {
        self.runs.values().map(SmallVec::len).sum()
    }
}

impl Run {
    fn of(sequence: u64, at: Instant) -> Self {
        Self { first: sequence, last: sequence, at }
    }
}

/// The run that begins at this sequence, or else the last before it.
fn before(runs: &[Run], sequence: u64) -> Option<usize> {
    runs.partition_point(|run| run.first <= sequence).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn name(chat: &str, sequence: u64) -> Name {
        Name { chat: chat.into(), sequence }
    }

    #[tokio::test(start_paused = true)]
    async fn events_in_order_are_one_run() {
        let (mut remembered, now) = (Remembered::default(), Instant::now());
        (1..=10_000).for_each(|sequence| remembered.add(name("a", sequence), now));
        assert!(remembered.contains(&name("a", 1)) && remembered.contains(&name("a", 10_000)));
        assert!(!remembered.contains(&name("a", 10_001)) && !remembered.contains(&name("b", 1)));
        assert_eq!((remembered.runs(), remembered.oldest.len()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_is_forgotten_when_nothing_was_added_for_long() {
        let (mut remembered, begun) = (Remembered::default(), Instant::now());
        let later = |seconds| begun + Duration::from_secs(seconds);
        remembered.add(name("a", 1), begun);
        remembered.add(name("b", 1), begun);
        remembered.add(name("b", 2), later(100));
        remembered.add(name("c", 1), later(130));
        assert!(!remembered.contains(&name("a", 1)) && remembered.contains(&name("b", 1)));
        assert!(remembered.covers(Duration::from_secs(129), later(130)), "a's is from before that");
        assert!(!remembered.covers(Duration::from_secs(131), later(130)), "a's may have been of then");
        remembered.add(name("c", 2), later(230));
        assert!(!remembered.contains(&name("b", 2)), "its time has come too");
    }

    #[tokio::test(start_paused = true)]
    async fn runs_are_bounded_in_number() {
        let (mut remembered, now) = (Remembered::default(), Instant::now());
        for sequence in 0..=MAX_RUNS as u64 {
            remembered.add(name("a", 2 * sequence), now + Duration::from_micros(sequence));
        }
        assert_eq!((remembered.runs(), remembered.oldest.len()), (MAX_RUNS, MAX_RUNS));
        assert!(!remembered.contains(&name("a", 0)) && remembered.contains(&name("a", 2)));
        assert!(!remembered.covers(Duration::from_secs(1), now));
    }

    proptest! {
        #[test]
        fn whatever_was_added_is_contained_and_nothing_else(
            sequences in proptest::collection::vec(1..60u64, 0..80),
        ) {
            let (mut remembered, now) = (Remembered::default(), Instant::now());
            let mut added = BTreeSet::new();
            for sequence in sequences {
                added.insert(sequence);
                remembered.add(name("a", sequence), now);
                for any in 0..62 {
                    prop_assert_eq!(remembered.contains(&name("a", any)), added.contains(&any), "{}", any);
                }
            }
        }
    }
}
