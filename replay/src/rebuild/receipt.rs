//! What was rebuilt, from what, and what came of it: a file beside the generation.
//!
//! It is written when a rebuild begins and replaced at every turn, so it is also what a rebuild is resumed by: where it
//! read from is fixed there, how far it came is kept by its positions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use courant_connectors::files::FileError;
use courant_connectors::files::generations::Generation;
use courant_connectors::log::Offsets;
use courant_connectors::model::Timestamp;
use courant_pipeline::config::Topology;
use courant_pipeline::{Disposition, Tally};
use courant_stages::log_range::offsets_of;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::compare::Comparison;
use super::request::Request;
use super::{Error, Result};

/// Beside the folders of stages, whose names never begin with a dot.
const FOLDER: &str = ".rebuild";
const FILE: &str = "receipt.json";

/// Offsets by the names of partitions.
pub type Named = BTreeMap<String, u64>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    pub pipeline: String,
    pub generation: String,
    pub state: State,
    pub request: Request,
    /// The command that made it: its version, and a hash of its executable.
    pub code: String,
    /// Of the pipeline as it was written then.
    pub config: String,
    pub began_at: Timestamp,
    pub changed_at: Timestamp,
    /// Where the log was read from; after a scan of the store, if `scanned`.
    pub start: Named,
    pub scanned: bool,
    /// When the log was where it takes over from the scan.
    #[serde(default)]
    pub join: Option<Timestamp>,
    /// How far the log is in it.
    pub fence: Named,
    pub fence_at: Timestamp,
    /// How the records ended that were run, those of interrupted runs included. It is noted every second and when a run
    /// ends: what a killed run did after that is not counted, and what it did before and has to be done again, since how
    /// far it came is kept a moment later, is counted twice.
    pub records: Tally,
    pub comparison: Option<Comparison>,
    /// The generation that was live before.
    pub replaced: Option<String>,
    /// Where the log was when it was live last and another took its place.
    #[serde(default)]
    pub left: Option<Named>,
    pub live_since: Option<Timestamp>,
}

/// How far a rebuild is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Begun; `--resume` goes on with it.
    Building,
    /// Complete up to its fence, and not compared yet.
    Built,
    /// Proved equal.
    Equal,
    /// Compared, and not equal; goes live only if somebody approves.
    Differs,
    /// It is live, or was.
    Live,
    /// Its effects were had, and there is no store that could go live.
    Done,
}

impl State {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Built => "built",
            Self::Equal => "equal",
            Self::Differs => "differs",
            Self::Live => "live",
            Self::Done => "done",
        }
    }
}

impl Receipt {
    /// None if the generation was not made by a rebuild.
    pub async fn load(generation: &Generation) -> Result<Option<Self>> {
        let path = folder(generation).join(FILE);
        match tokio::fs::read(&path).await {
            Ok(content) => serde_json::from_slice(&content).map(Some).map_err(|error| Error::Receipt {
                path: path.display().to_string(),
                reason: error.to_string(),
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FileError::Io { doing: "read", path, source }.into()),
        }
    }

    /// Returns once it is on disk.
    pub async fn save(&self, generation: &Generation) -> Result<()> {
        let content = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::Receipt { path: self.generation.clone(), reason: error.to_string() })?;
        generation.keep(FOLDER, FILE, content).await?;
        Ok(())
    }
}

/// Notes how the records of a run end beside those of the runs before.
pub(super) struct Noting<'a> {
    receipt: &'a mut Receipt,
    generation: &'a Generation,
    before: Tally,
}

impl<'a> Noting<'a> {
    pub(super) fn on(receipt: &'a mut Receipt, generation: &'a Generation) -> Self {
        Self { before: receipt.records, receipt, generation }
    }

    pub(super) async fn note(&mut self, run: Tally) -> Result<()> {
        let mut records = self.before;
        for disposition in Disposition::ALL {
            records.add(disposition, run.of(disposition));
        }
        if records != self.receipt.records {
            self.receipt.records = records;
            self.receipt.save(self.generation).await?;
        }
        Ok(())
    }
}

/// Where a rebuild keeps what belongs to it and not to a stage.
pub(super) fn folder(generation: &Generation) -> PathBuf {
    generation.folder().join(FOLDER)
}

/// Changes with whatever is written about a pipeline.
pub(super) fn config_version(topology: &Topology) -> String {
    let entry = serde_json::to_vec(&*topology.entry).unwrap_or_default();
    format!("{:016x}", xxh3_64(&entry))
}

pub(super) fn named(offsets: &Offsets) -> Named {
    offsets.iter().map(|(partition, offset)| (partition.to_string(), *offset)).collect()
}

pub(super) fn unnamed(named: &Named, partitions: &Offsets) -> Result<Offsets> {
    Ok(offsets_of(named, partitions)?)
}
