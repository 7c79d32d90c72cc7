//! Which records a stage has taken, kept beside what it made of them, so that a record that is read again counts once.
//!
//! Records come at least once: after a crash a source reads on from its last commit. They also come out of order, since a
//! key that waits for a retry lets others pass, so a single position per partition would lose records. What is kept is
//! therefore exact: the positions taken beyond the one up to which everything is settled, as ranges. Sources bound how
//! much that can be, and the settled position ([`Origin::settled`]) sweeps it up.
//!
//! It is only as good as positions are: a topic that is deleted and made anew begins again at positions that count as
//! taken. Rebuild what was made from it then.

use std::collections::{BTreeMap, BTreeSet};

use courant_pipeline::Origin;
use serde::{Deserialize, Serialize};

/// Sources that are remembered, the newest: a file that is rotated every hour is another source each time.
const SOURCES: usize = 256;

/// How far a stage has come, by source and partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    /// In the order they were first seen.
    sources: Vec<(String, BTreeMap<String, Reached>)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Reached {
    /// Everything up to here was dealt with.
    through: u64,
    /// Runs of positions taken beyond it: first and last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    beyond: BTreeMap<u64, u64>,
    /// The same for what stages made of one record.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    parts: BTreeSet<(u64, u32)>,
}

impl Applied {
    pub(crate) fn contains(&self, origin: &Origin<'_>) -> bool {
        let source = self.sources.iter().rev().find(|(source, _)| source == origin.source);
        let reached = source.and_then(|(_, partitions)| partitions.get(origin.partition.as_str()));
        reached.is_some_and(|reached| reached.contains(origin))
    }

    /// Takes the record; whether it is new.
    pub(crate) fn take(&mut self, origin: &Origin<'_>) -> bool {
        let reached = self.reached(origin);
        reached.settle(origin.settled);
        !reached.contains(origin) && {
            reached.insert(origin);
            true
        }
    }

    fn reached(&mut self, origin: &Origin<'_>) -> &mut Reached {
        let known = self.sources.iter().rposition(|(source, _)| source == origin.source);
        let index = known.unwrap_or_else(|| {
            if self.sources.len() == SOURCES {
                self.sources.remove(0);
            }
            self.sources.push((origin.source.to_owned(), BTreeMap::new()));
            self.sources.len() - 1
        });
        let partitions = &mut self.sources[index].1;
        if !partitions.contains_key(origin.partition.as_str()) {
            partitions.insert(origin.partition.as_str().to_owned(), Reached::default());
        }
        partitions.get_mut(origin.partition.as_str()).expect("it was put there")
    }
}

impl Reached {
    fn contains(&self, origin: &Origin<'_>) -> bool {
        let at = origin.resume_at;
        at <= self.through
            || match origin.part {
                0 => self.beyond.range(..=at).next_back().is_some_and(|(_, last)| *last >= at),
                part => self.parts.contains(&(at, part)),
            }
    }

    /// Only what is not there yet.
    fn insert(&mut self, origin: &Origin<'_>) {
        let at = origin.resume_at;
        if origin.part > 0 {
            self.parts.insert((at, origin.part));
            return;
        }
        let last = at.checked_add(1).and_then(|next| self.beyond.remove(&next)).unwrap_or(at);
        match self.beyond.range_mut(..at).next_back() {
            Some((_, before)) if *before + 1 == at => *before = last,
            _ => drop(self.beyond.insert(at, last)),
        }
    }

    fn settle(&mut self, settled: Option<u64>) {
        let Some(settled) = settled.filter(|settled| *settled > self.through) else { return };
        self.through = settled;
        while let Some(first) = self.beyond.first_entry().filter(|first| *first.key() <= settled) {
            let last = first.remove();
            if last > settled {
                self.beyond.insert(settled + 1, last);
            }
        }
        self.parts = self.parts.split_off(&(settled + 1, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use courant_pipeline::stage::Partition;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn origin(partition: &Partition, resume_at: u64, part: u32, settled: Option<u64>) -> Origin<'_> {
        Origin { source: "s", partition, resume_at, part, settled }
    }

    #[test]
    fn runs_stay_small_and_sources_apart() {
        let (one, two) = (Partition::from("1"), Partition::from("2"));
        let mut applied = Applied::default();
        for at in [2, 1, 4, 3, 7] {
            assert!(applied.take(&origin(&one, at, 0, None)));
        }
        assert!(!applied.take(&origin(&one, 3, 0, None)));
        assert!(applied.take(&origin(&one, 3, 1, None)), "another part of the same record");
        assert!(applied.take(&origin(&two, 3, 0, None)));
        let elsewhere = Origin { source: "t", ..origin(&one, 3, 0, None) };
        assert!(!applied.contains(&elsewhere) && applied.take(&elsewhere));
        let text = serde_json::to_string(&applied).unwrap();
        let ranges = r#"[["s",{"1":{"through":0,"beyond":{"1":4,"7":7},"parts":[[3,1]]},"#;
        assert!(text.contains(ranges), "{text}");
        assert_eq!(serde_json::from_str::<Applied>(&text).unwrap(), applied);
        assert!(applied.take(&origin(&one, 9, 0, Some(7))));
        let text = serde_json::to_string(&applied).unwrap();
        assert!(text.contains(r#""1":{"through":7,"beyond":{"9":9}}"#), "{text}");
    }

    #[test]
    fn old_sources_make_room() {
        let partition = Partition::only();
        let mut applied = Applied::default();
        for n in 0..=SOURCES {
            applied.take(&Origin { source: &n.to_string(), ..origin(&partition, 1, 0, None) });
        }
        assert_eq!(applied.sources.len(), SOURCES);
        assert!(!applied.contains(&Origin { source: "0", ..origin(&partition, 1, 0, None) }));
    }

    proptest! {
        /// In whatever order records come, each is new once; settling forgets nothing that was taken.
        #[test]
        fn every_record_is_new_once(
            order in prop::collection::vec((1u64..60, 0u32..3), 1..200),
            settle in prop::collection::vec(any::<bool>(), 200),
        ) {
            let partition = Partition::only();
            let (mut applied, mut seen) = (Applied::default(), HashSet::new());
            let mut settled = 0;
            for ((at, part), settle) in order.into_iter().zip(settle) {
                // as the runtime does, over what has been taken in all its parts
                while settle && (0..3).all(|part| seen.contains(&(settled + 1, part))) {
                    settled += 1;
                }
                let origin = origin(&partition, at, part, Some(settled));
                prop_assert_eq!(applied.contains(&origin), seen.contains(&(at, part)));
                prop_assert_eq!(applied.take(&origin), seen.insert((at, part)));
            }
        }
    }
}
