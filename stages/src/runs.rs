//! Sets of sequences. A chat's are nearly all there and nearly in order, so a set is kept as the runs without a gap
//! in them: 16 bytes each, the first of them without an allocation.
//!
//! Rejected: a compressed bitmap per chat. It is smaller for a chat with many gaps, and takes some hundred bytes for
//! each of the many chats that have none.

use smallvec::SmallVec;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Runs {
    /// First and last of each run; ascending, apart from one another by at least one.
    runs: SmallVec<[(u64, u64); 1]>,
}

impl Runs {
    /// Whether it was not in there before.
    pub fn insert(&mut self, sequence: u64) -> bool {
        let after = self.first_beyond(sequence);
        if after > 0 && self.runs[after - 1].1 >= sequence {
            return false;
        }
        let joins_before = after > 0 && self.runs[after - 1].1 + 1 == sequence;
        let joins_after = after < self.runs.len() && self.runs[after].0 - 1 == sequence;
        match (joins_before, joins_after) {
            (true, true) => {
                self.runs[after - 1].1 = self.runs[after].1;
                self.runs.remove(after);
            }
            (true, false) => self.runs[after - 1].1 = sequence,
            (false, true) => self.runs[after].0 = sequence,
            (false, false) => self.runs.insert(after, (sequence, sequence)),
        }
        true
    }

    /// Whether it was in there.
    pub fn remove(&mut self, sequence: u64) -> bool {
        let after = self.first_beyond(sequence);
        if after == 0 || self.runs[after - 1].1 < sequence {
            return false;
        }
        let (first, last) = self.runs[after - 1];
        match (first == sequence, last == sequence) {
            (true, true) => drop(self.runs.remove(after - 1)),
            (true, false) => self.runs[after - 1].0 = sequence + 1,
            (false, true) => self.runs[after - 1].1 = sequence - 1,
            (false, false) => {
                self.runs[after - 1].1 = sequence - 1;
                self.runs.insert(after, (sequence + 1, last));
            }
        }
        true
    }

    pub fn contains(&self, sequence: u64) -> bool {
        let after = self.first_beyond(sequence);
        after > 0 && self.runs[after - 1].1 >= sequence
    }

    pub fn highest(&self) -> Option<u64> {
        self.runs.last().map(|(_, last)| *last)
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn len(&self) -> u64 {
        self.runs.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// Sequences from 1 up to the highest that are not in there.
    pub fn gaps(&self) -> u64 {
        let zero = u64::from(self.contains(0));
        self.highest().map_or(0, |highest| highest - (self.len() - zero))
    }

    /// The first run that begins beyond a sequence.
    fn first_beyond(&self, sequence: u64) -> usize {
        // Nearly everything comes in order.
        match self.runs.last() {
            Some((first, _)) if *first <= sequence => self.runs.len(),
            _ => self.runs.partition_point(|(first, _)| *first <= sequence),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(changes in prop::collection::vec((any::<bool>(), 0u64..40), 0..200)) {
            let (mut runs, mut set) = (Runs::default(), BTreeSet::new());
            for (add, sequence) in changes {
                if add {
                    prop_assert_eq!(runs.insert(sequence), set.insert(sequence));
                } else {
                    prop_assert_eq!(runs.remove(sequence), set.remove(&sequence));
                }
                prop_assert!(runs.runs.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", runs);
            }
            for sequence in 0..41 {
                prop_assert_eq!(runs.contains(sequence), set.contains(&sequence));
            }
            prop_assert!(runs.iter().eq(set.iter().copied()));
            prop_assert_eq!(runs.len(), set.len() as u64);
            prop_assert_eq!(runs.highest(), set.last().copied());
            let highest = set.last().copied().unwrap_or(0);
            prop_assert_eq!(runs.gaps(), (1..=highest).filter(|s| !set.contains(s)).count() as u64);
        }
    }

    #[test]
    fn the_ends_of_the_numbers_are_numbers_too() {
        let mut runs = Runs::default();
        assert!(runs.insert(u64::MAX) && runs.insert(0) && !runs.insert(u64::MAX));
        assert!(runs.insert(u64::MAX - 1) && runs.insert(1));
        assert_eq!(runs.runs.len(), 2);
        assert!(runs.remove(u64::MAX) && runs.remove(0) && runs.contains(1));
    }

    #[test]
    fn a_chat_without_gaps_takes_no_allocation() {
        let mut runs = Runs::default();
        for sequence in 1..=100_000 {
            runs.insert(sequence);
        }
        assert!(!runs.runs.spilled() && size_of::<Runs>() <= 32);
    }
}
