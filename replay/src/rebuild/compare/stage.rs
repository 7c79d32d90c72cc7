//! Two sets of entries, range by range and then key by key.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use courant_pipeline::derived::Entry;
use serde::{Deserialize, Serialize};

use super::spill::{Loaded, RANGES, Spilled, Summary};

/// What was found of one sink's store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageComparison {
    pub stage: String,
    /// Entries that the authority says there should be, and those there are: each key as it was last looked at.
    pub expected: u64,
    pub actual: u64,
    pub expected_digest: String,
    pub actual_digest: String,
    pub ranges: usize,
    pub ranges_differing: usize,
    /// Keys that are too new to be compared.
    pub left_out: u64,
    /// Should be there and is not.
    pub missing: Found,
    /// Is there and should not be.
    pub extra: Found,
    /// Is there in a lower version.
    pub stale: Found,
    /// Is there and says something else.
    pub different: Found,
}

/// How much is remembered of what differs.
#[derive(Clone, Copy)]
pub(super) struct Most {
    /// By name, of each kind of difference.
    pub(super) examples: usize,
    /// For another look.
    pub(super) keys: usize,
}

/// How many, and some of them by key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub count: u64,
    pub examples: Vec<String>,
}

impl StageComparison {
    pub fn differences(&self) -> u64 {
        self.missing.count + self.extra.count + self.stale.count + self.different.count
    }
}

/// The two sides.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sides {
    expected: Summary,
    actual: Summary,
}

impl Sides {
    fn join(&mut self, other: Self) {
        self.expected.join(other.expected);
        self.actual.join(other.actual);
    }
}

/// What is worth another look.
pub(in crate::rebuild) struct Again {
    /// That differ.
    pub(super) keys: Arc<HashSet<Box<str>>>,
    /// Of all the other keys, which stay as they were found.
    pub(super) others: Sides,
}

/// Blocks. Only some keys may be given, with a summary of the others.
pub(super) fn compare(
    stage: String,
    expected: &Spilled,
    actual: &Spilled,
    others: Sides,
    until: u64,
    most: Most,
) -> std::io::Result<(StageComparison, Again)> {
    let mut comparing = Comparing {
        found: StageComparison { stage, ranges: RANGES, ..StageComparison::default() },
        others,
        again: Sides::default(),
        differing: HashSet::new(),
        until,
        most,
    };
    for range in 0..RANGES {
        let sides = Sides { expected: expected.summaries[range], actual: actual.summaries[range] };
        if sides.expected == sides.actual {
            comparing.others.join(sides);
        } else {
            comparing.range(&expected.load(range)?.newest, &actual.load(range)?);
        }
    }
    let Comparing { mut found, others, again, differing, .. } = comparing;
    let mut all = others;
    all.join(again);
    (found.expected, found.expected_digest) = (all.expected.count, format!("{:016x}", all.expected.digest));
    (found.actual, found.actual_digest) = (all.actual.count, format!("{:016x}", all.actual.digest));
    Ok((found, Again { keys: Arc::new(differing), others }))
}

struct Comparing {
    found: StageComparison,
    /// Of keys that differ, and of the others.
    again: Sides,
    others: Sides,
    differing: HashSet<Box<str>>,
    until: u64,
    most: Most,
}

impl Comparing {
    fn range(&mut self, expected: &HashMap<Box<str>, Entry>, actual: &Loaded) {
        let before = self.found.differences();
        let Loaded { newest, doubles } = actual;
        for double in doubles {
            self.key(None, Some(double));
        }
        for entry in newest.values().filter(|entry| !expected.contains_key(&entry.key)) {
            self.key(None, Some(entry));
        }
        for (key, entry) in expected {
            self.key(Some(entry), newest.get(key));
        }
        for entry in expected.values() {
            self.sides_of(entry).expected.add(entry);
        }
        for entry in newest.values().chain(doubles) {
            self.sides_of(entry).actual.add(entry);
        }
        if self.found.differences() > before {
            self.found.ranges_differing += 1;
        }
    }

    fn sides_of(&mut self, entry: &Entry) -> &mut Sides {
        if self.differing.contains(&entry.key) { &mut self.again } else { &mut self.others }
    }

    fn key(&mut self, expected: Option<&Entry>, actual: Option<&Entry>) {
        let newest = expected.map_or(0, |entry| entry.at).max(actual.map_or(0, |entry| entry.at));
        let kind = match (expected, actual) {
            (Some(expected), Some(actual))
                if (expected.version, expected.digest) == (actual.version, actual.digest) =>
            {
                return;
            }
            _ if newest > self.until => {
                self.found.left_out += 1;
                return;
            }
            (Some(_), None) => &mut self.found.missing,
            (None, _) => &mut self.found.extra,
            (Some(expected), Some(actual)) if actual.version < expected.version => &mut self.found.stale,
            (Some(_), Some(_)) => &mut self.found.different,
        };
        let Some(entry) = expected.or(actual) else { return };
        kind.count += 1;
        if kind.examples.len() < self.most.examples {
            kind.examples.push(entry.key.to_string());
        }
        if self.differing.len() < self.most.keys {
            self.differing.insert(entry.key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spill::Spill;
    use super::*;

    fn entry(key: &str, version: u64, digest: u64, at: u64) -> Entry {
        Entry { key: key.into(), digest, version, at }
    }

    fn compared(expected: Vec<Entry>, actual: Vec<Entry>) -> StageComparison {
        let folder = tempfile::tempdir().unwrap();
        let spilled = |name: &str, entries: Vec<Entry>| {
            let spill = Spill::create(&folder.path().join(name)).unwrap();
            spill.add(entries).unwrap();
            spill.finish().unwrap()
        };
        let (expected, actual) = (spilled("expected", expected), spilled("actual", actual));
        let most = Most { examples: 2, keys: 10 };
        compare("s".into(), &expected, &actual, Sides::default(), 100, most).unwrap().0
    }

    fn counts(found: &StageComparison) -> [u64; 5] {
        let StageComparison { missing, extra, stale, different, left_out, .. } = found;
        [missing.count, extra.count, stale.count, different.count, *left_out]
    }

    #[test]
    fn every_kind_of_difference_is_told_from_the_others() {
        let many = || (0..500).map(|n| entry(&format!("k{n}"), 1, n, 1));
        let same = compared(many().collect(), many().rev().collect());
        assert_eq!(counts(&same), [0; 5]);
        assert_eq!((same.expected, same.actual, &same.actual_digest), (500, 500, &same.expected_digest));

        let mut actual: Vec<_> = many().collect();
        actual.remove(3);
        actual.push(entry("more", 1, 1, 1));
        actual[10].version = 0;
        actual[11].digest = 77;
        actual[12].version = 2;
        let found = compared(many().collect(), actual);
        assert_eq!(counts(&found), [1, 1, 1, 2, 0]);
        assert_eq!((&found.missing.examples[0][..], &found.extra.examples[0][..]), ("k3", "more"));
        assert_eq!(found.stale.examples, ["k11"]);
        assert_ne!(found.actual_digest, found.expected_digest);
    }

    #[test]
    fn the_newest_of_a_key_counts_in_whatever_order() {
        let expected = vec![entry("a", 1, 10, 1), entry("a", 3, 30, 3), entry("a", 2, 20, 2)];
        let found = compared(expected.clone(), vec![entry("a", 3, 30, 3)]);
        assert_eq!((counts(&found), found.expected), ([0; 5], 1));
        assert_eq!(found.actual_digest, found.expected_digest);
        assert_eq!(counts(&compared(expected, vec![entry("a", 2, 20, 2)])), [0, 0, 1, 0, 0]);
    }

    #[test]
    fn what_is_younger_than_the_fence_is_left_out_by_key() {
        let expected = vec![entry("a", 1, 1, 50), entry("a", 2, 2, 101), entry("b", 1, 1, 101)];
        let found = compared(expected.clone(), vec![entry("a", 1, 1, 50)]);
        assert_eq!(counts(&found), [0, 0, 0, 0, 2], "the row that is there is not extra");
        let found = compared(vec![entry("a", 1, 1, 50)], vec![entry("a", 2, 2, 101), entry("c", 1, 1, 102)]);
        assert_eq!(counts(&found), [0, 0, 0, 0, 2]);
    }

    #[test]
    fn an_entry_that_is_there_twice_is_one_too_many() {
        let found = compared(vec![entry("a", 1, 1, 1)], vec![entry("a", 1, 1, 1), entry("a", 1, 1, 1)]);
        assert_eq!(counts(&found), [0, 1, 0, 0, 0]);
        assert_ne!(found.actual_digest, found.expected_digest);
        let versions = vec![entry("a", 1, 1, 1), entry("a", 2, 2, 2)];
        assert_eq!(counts(&compared(versions.clone(), versions)), [0; 5], "a newer one takes its place");
    }

    #[test]
    fn a_double_is_not_cancelled_out() {
        let twice = vec![entry("a", 1, 1, 1), entry("a", 1, 1, 1), entry("b", 1, 1, 1)];
        let found = compared(twice, vec![entry("b", 1, 1, 1)]);
        assert_eq!(counts(&found), [1, 0, 0, 0, 0]);
    }
}
