//! What was found, as it is found: counts, and of each kind the first few in order. Bounded, however much is wrong.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::checks::{CHECKS, Check};
use super::report::{CheckReport, Example};

pub(super) struct Findings {
    /// By the position of their check.
    kinds: Vec<Kind>,
    examples: usize,
}

#[derive(Default)]
struct Kind {
    looked_at: AtomicU64,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    count: u64,
    /// The smallest, so that the same deployment gives the same examples whoever came first.
    examples: BTreeSet<Example>,
}

impl Findings {
    pub(super) fn new(examples: usize) -> Self {
        Self { kinds: CHECKS.iter().map(|_| Kind::default()).collect(), examples }
    }

    /// So many things were looked at.
    pub(super) fn looked_at(&self, check: &Check, count: usize) {
        self.kinds[check.position()].looked_at.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(super) fn add(&self, check: &Check, example: Example) {
        self.add_all(check, 1, [example]);
    }

    /// Several of which only some are shown.
    pub(super) fn add_all(&self, check: &Check, count: u64, examples: impl IntoIterator<Item = Example>) {
        let kind = &self.kinds[check.position()];
        let mut found = kind.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.count += count;
        for example in examples {
            found.examples.insert(example);
            if found.examples.len() > self.examples {
                found.examples.pop_last();
            }
        }
    }

    pub(super) fn count(&self, check: &Check) -> u64 {
        self.kinds[check.position()].found.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    pub(super) fn report(&self, skipped: impl Fn(&Check) -> Option<&'static str>) -> Vec<CheckReport> {
        let reports = CHECKS.iter().zip(&self.kinds).map(|(check, kind)| {
            let found = kind.found.lock().unwrap_or_else(PoisonError::into_inner);
            let (looked_at, examples) =
                (kind.looked_at.load(Ordering::Relaxed), found.examples.iter().cloned().collect());
            let skipped = skipped(check).map(str::to_owned);
            CheckReport { skipped, ..CheckReport::of(check, looked_at, found.count, examples) }
        });
        reports.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks;
    use super::*;

    #[test]
    fn everything_is_counted_and_a_few_are_kept() {
        let findings = Findings::new(2);
        for sequence in [5, 3, 9, 1] {
            findings.add(&checks::KEY_AGREES, Example::of(&"chat_1".into()).at(sequence).saying("x"));
        }
        findings.looked_at(&checks::KEY_AGREES, 7);
        let report = findings.report(|_| None);
        let report = report.iter().find(|report| report.id == "key-agrees").unwrap();
        let sequences: Vec<_> = report.examples.iter().filter_map(|example| example.sequence).collect();
        assert_eq!((report.found, report.looked_at, sequences), (4, 7, vec![1, 3]));
    }
}
