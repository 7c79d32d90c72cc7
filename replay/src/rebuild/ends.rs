//! Whether the log still is what was read.
//!
//! A topic that was deleted and made anew, or a broker that has lost its last records, begins to count where it counted
//! before: a place beyond the end of a partition is of records that are not there any more. Nothing can be run up to it,
//! and what is written there one day is something else. So a rebuild says so and ends, rather than wait.

use courant_connectors::log::{Offsets, ReadLog as _};
use courant_stages::log_range::Held;

use super::plan::Plan;
use super::receipt::{Named, Receipt, named};
use super::{Engine, Error, Result};

impl Engine<'_> {
    /// How far the live pipeline has come.
    pub(super) async fn stopped_at(&self, plan: &Plan) -> Result<Offsets> {
        let log = self.log(plan)?;
        let mut offsets = Offsets::new();
        for topic in &plan.topics {
            offsets.extend(log.committed(&plan.group, topic).await?);
        }
        // The ends are asked for last, so that what is written meanwhile is no fault.
        let held = Held::by(&log, &plan.topics).await?;
        match beyond_end(&named(&offsets), &held) {
            Some(Beyond { partition, at, high }) => Err(Error::GroupBeyondEnd {
                pipeline: plan.topology.name.to_string(),
                group: plan.group.clone(),
                partition,
                committed: at,
                high,
            }),
            None => Ok(offsets),
        }
    }

    /// Refuses a rebuild of records that the log had once.
    pub(super) async fn check_fence(&self, plan: &Plan, receipt: &Receipt) -> Result<()> {
        let held = Held::by(&self.log(plan)?, &plan.topics).await?;
        check_made_of(&receipt.fence, &held, &receipt.pipeline, &receipt.generation)
    }
}

/// Refuses a generation that was made of more than there is.
pub(super) fn check_made_of(at: &Named, held: &Held, pipeline: &str, generation: &str) -> Result<()> {
    match beyond_end(at, held) {
        Some(Beyond { partition, at, high }) => Err(Error::MadeBeyondEnd {
            pipeline: pipeline.to_owned(),
            generation: generation.to_owned(),
            partition,
            made_to: at,
            high,
        }),
        None => Ok(()),
    }
}

struct Beyond {
    partition: String,
    at: u64,
    high: u64,
}

fn beyond_end(places: &Named, held: &Held) -> Option<Beyond> {
    let ends = named(&held.high);
    let end_of = |partition: &String| ends.get(partition).copied().unwrap_or(0);
    let (partition, at) = places.iter().find(|(partition, at)| **at > end_of(partition))?;
    Some(Beyond { partition: partition.clone(), at: *at, high: end_of(partition) })
}
