//! What the test knows of the folder: what was found after the last round, and what was told since.

use std::collections::{BTreeMap, BTreeSet};

use courant_connectors::store::{Item, Name, SequenceNumber, ShardId};

use super::{Told, VERSIONS};

/// Grows over the rounds, so that each round's checks also cover the ones before.
#[derive(Debug, Default)]
pub struct Model {
    pub(super) rounds: u64,
    /// The last version of each row that must be there, or have been.
    pub(super) rows: BTreeMap<u32, u64>,
    /// Rows that were not there after the round before, and not written since.
    pub(super) gone: BTreeSet<u32>,
    pub(super) pairs: BTreeMap<u32, u64>,
    /// Records told in this round: by topic, partition and offset, who sent which.
    pub(super) records: BTreeMap<(String, u32, u64), (u32, u64)>,
    /// Where each partition ended after the round before.
    pub(super) ends: BTreeMap<(String, u32), u64>,
    /// By partition, what was found or told at last and what was asked for.
    pub(super) committed: BTreeMap<u32, (u64, u64)>,
    pub(super) created: BTreeSet<String>,
    pub(super) drop_asked: BTreeSet<String>,
    pub(super) dropped: BTreeSet<String>,
    /// What the change stream has made of each table, and where it was read up to.
    pub(super) replayed: BTreeMap<Name, BTreeMap<String, Item>>,
    pub(super) positions: BTreeMap<(Name, ShardId), SequenceNumber>,
    pub(super) told: u64,
}

impl Model {
    /// The number of the next round.
    pub fn next_round(&self) -> u64 {
        self.rounds
    }

    /// How much was told in all rounds.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Takes up one line of the process.
    pub fn hear(&mut self, told: Told) {
        self.told += 1;
        match told {
            Told::Opening => {}
            Told::Row { id, version } => {
                self.rows.insert(id, version);
                self.gone.remove(&id);
            }
            Told::Pair { id, count } => {
                self.pairs.insert(id, count);
            }
            Told::Record { topic, partition, offset, sender, number } => {
                let twice = self.records.insert((topic, partition, offset), (sender, number));
                assert_eq!(twice, None, "two records were told the same place");
            }
            Told::CommitAsked { partition, offset } => {
                let (committed, asked) = self.committed.entry(partition).or_default();
                assert!(offset > *committed, "a group was given again what it had committed");
                *asked = offset;
            }
            Told::Committed { partition, offset } => {
                self.committed.entry(partition).or_default().0 = offset;
            }
            Told::Created { table } => {
                self.created.insert(table);
            }
            Told::DropAsked { table } => {
                self.drop_asked.insert(table);
            }
            Told::Dropped { table } => {
                self.dropped.insert(table);
            }
        }
    }

    /// The version that was on its way when the process was killed, if one was.
    pub(super) fn version_on_its_way(&self, id: u32) -> u64 {
        let first = self.rounds * VERSIONS;
        match self.rows.get(&id) {
            Some(version) if *version >= first => version + 1,
            _ => first,
        }
    }
}
