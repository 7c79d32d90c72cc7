//! One generation in place of another, at one record.
//!
//! While the live pipeline stands still, its group says where it stopped. The other generation is brought there, or the
//! group to where that is already, so that no record is missing and none is counted twice; then the link is replaced.
//! The link goes first and the group follows: a crash in between makes the pipeline read some records again, which a
//! keyed store takes and a counting one knows by their places, and never leaves any out. A group that never committed
//! anything goes first: its pipeline might begin with what comes next. Whoever asks again after a crash finishes it.

use std::collections::BTreeMap;

use courant_connectors::files::generations::Generation;
use courant_connectors::log::{Offsets, ReadLog as _};
use courant_pipeline::positions::{PositionStore as _, SavedPositions};
use courant_pipeline::stage::Partition;
use courant_stages::host::PositionFiles;
use courant_stages::log_range::Held;
use courant_stages::sources::kafka_read::identity_of;

use super::build::now;
use super::ends::check_made_of;
use super::plan::{History, Plan, without_effects};
use super::progress::Phase;
use super::receipt::{Named, Receipt, State, config_version, folder, named, unnamed};
use super::request::{From, Pace, Request, To};
use super::{Engine, Error, Result};

/// Before the live pipeline is stopped, so that it stands still for a moment only.
const APPROACHES: u32 = 5;
/// What is run in that moment at the most, unless more keeps coming than can be run.
const NEAR: u64 = 1000;

impl Engine<'_> {
    /// Puts the newest rebuild in place, whatever its comparison said.
    pub async fn approve(&self, pipeline: &str) -> Result<Receipt> {
        let waits = |state| matches!(state, State::Built | State::Equal | State::Differs);
        let (mut receipt, generation) = self.newest(pipeline, "approved", waits).await?;
        let plan = self.plan_again(&receipt)?;
        self.swap(&plan, &mut receipt, &generation).await?;
        Ok(receipt)
    }

    pub(super) async fn swap(
        &self,
        plan: &Plan,
        receipt: &mut Receipt,
        generation: &Generation,
    ) -> Result<()> {
        self.check_fence(plan, receipt).await?;
        for _ in 0..APPROACHES {
            if self.is_current(&receipt.pipeline, generation).await? {
                break; // it was put in place, and the process died before it said so
            }
            let held = Held::by(&self.log(plan)?, &plan.topics).await?;
            if distance(&receipt.fence, &named(&held.high)) <= NEAR {
                break;
            }
            self.catch_up(plan, receipt, generation).await?;
        }
        let pipeline = receipt.pipeline.clone();
        let swap = async {
            self.check_unchanged(receipt)?;
            self.swap_now(plan, receipt, generation).await
        };
        match self.runtime {
            Some(runtime) => runtime.while_stopped(&pipeline, swap).await,
            None => swap.await,
        }
    }

    pub(super) async fn is_current(&self, pipeline: &str, generation: &Generation) -> Result<bool> {
        Ok(self.generations(pipeline)?.current().await?.as_ref() == Some(generation))
    }

    /// While the live pipeline stands still.
    async fn swap_now(&self, plan: &Plan, receipt: &mut Receipt, generation: &Generation) -> Result<()> {
        let stopped_at = self.stopped_at(plan).await?;
        let target = later(&named(&stopped_at), &receipt.fence);
        if self.is_current(&receipt.pipeline, generation).await? {
            // What the pipeline has read since is in it, and so is everything up to the fence.
            self.move_group(plan, &stopped_at, &target).await?;
        } else {
            self.put_in_place(plan, receipt, generation, &stopped_at, target).await?;
        }
        receipt.live_since = Some(now());
        receipt.left = None;
        self.enter(receipt, generation, State::Live).await?;
        tracing::info!(pipeline = receipt.pipeline, generation = receipt.generation, "swapped");
        Ok(())
    }

    async fn put_in_place(
        &self,
        plan: &Plan,
        receipt: &mut Receipt,
        generation: &Generation,
        stopped_at: &Offsets,
        target: Named,
    ) -> Result<()> {
        if target != receipt.fence {
            self.build(plan, receipt, generation, (target.clone(), now()), Phase::Swapping).await?;
        }
        let generations = self.generations(&receipt.pipeline)?;
        let before = generations.current().await?;
        if let Some(before) = &before {
            leave(plan, before, &named(stopped_at)).await?;
        }
        receipt.replaced = before.as_ref().map(|before| before.name().to_owned());
        receipt.save(generation).await?;
        if stopped_at.is_empty() {
            self.move_group(plan, stopped_at, &target).await?;
        }
        generations.make_current(generation).await?;
        if let Err(error) = self.move_group(plan, stopped_at, &target).await {
            if let Some(before) = &before {
                generations.make_current(before).await?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Puts the generation before back, with what has come since.
    pub async fn rollback(&self, pipeline: &str) -> Result<Receipt> {
        let generations = self.generations(pipeline)?;
        let nothing = || Error::Nothing { pipeline: pipeline.to_owned(), what: "rolled back" };
        let current = generations.current().await?.ok_or_else(nothing)?;
        let mut receipt = Receipt::load(&current).await?.ok_or_else(nothing)?;
        let before = receipt.replaced.clone().ok_or_else(nothing)?;
        let unknown =
            || Error::UnknownGeneration { pipeline: pipeline.to_owned(), generation: before.clone() };
        let before = generations.find(&before).await?.ok_or_else(unknown)?;
        let plan = self.plan(&Request { from: From::Oldest, to: To::Now, ..receipt.request.clone() })?;
        if config_version(&plan.topology) != receipt.config {
            // no reason to refuse: somebody wants what was there before, maybe because of that change
            tracing::warn!(
                pipeline,
                "the pipeline was changed since what is live was made; what is put back is brought up to date with its \
                 stages as they are now"
            );
        }
        self.follow(&plan, &receipt, &before, Phase::CatchingUp).await?;
        let work = async {
            let stopped_at = self.follow(&plan, &receipt, &before, Phase::Swapping).await?;
            leave(&plan, &current, &stopped_at).await?;
            let state = match receipt.comparison.as_ref().map(super::compare::Comparison::is_clean) {
                Some(true) => State::Equal,
                Some(false) => State::Differs,
                None => State::Built,
            };
            (receipt.left, receipt.fence) = (Some(stopped_at.clone()), stopped_at);
            (receipt.fence_at, receipt.live_since) = (now(), None);
            // Said before it is done: after a crash in between it is taken back, or approved, as if nothing had happened.
            self.enter(&mut receipt, &current, state).await?;
            generations.make_current(&before).await?;
            receipt.replaced = None;
            receipt.save(&current).await?;
            tracing::info!(pipeline, generation = before.name(), "rolled back");
            Ok(())
        };
        let done: Result<()> = match self.runtime {
            Some(runtime) => runtime.while_stopped(pipeline, work).await,
            None => work.await,
        };
        done.map(|()| receipt)
    }

    /// Brings a generation that was live to where the live one is now; where that is.
    async fn follow(
        &self,
        plan: &Plan,
        receipt: &Receipt,
        generation: &Generation,
        phase: Phase,
    ) -> Result<Named> {
        let stopped_at = named(&self.stopped_at(plan).await?);
        let left = left_at(generation, &receipt.pipeline).await?;
        let held = Held::by(&self.log(plan)?, &plan.topics).await?;
        check_made_of(&left, &held, &receipt.pipeline, generation.name())?;
        for (partition, low) in named(&held.low) {
            let left = left.get(&partition).copied().unwrap_or(0);
            if left < low && stopped_at.get(&partition).is_some_and(|stopped| left < *stopped) {
                return Err(Error::LeftBehind { partition, left, low });
            }
        }
        let history = History::Log { start: &left, end: &stopped_at };
        let of = self.expected_records(plan, &history).await;
        let pace = if phase == Phase::Swapping { Pace::default() } else { receipt.request.pace() };
        let mut topology = plan.reading(&history, receipt.request.segments, pace);
        if plan.compared().count() == plan.sinks.len() {
            // The live one has had its effects for all of this.
            topology = without_effects(topology);
        }
        let host = self.host_for(generation).await?;
        self.run(&topology, &host, phase, of).await?;
        Ok(stopped_at)
    }

    /// Lets the live pipeline go on where the generation is.
    async fn move_group(&self, plan: &Plan, from: &Offsets, to: &Named) -> Result<()> {
        let held = Held::by(&self.log(plan)?, &plan.topics).await?;
        let mut offsets = unnamed(to, &held.low)?;
        offsets.retain(|partition, offset| from.get(partition) != Some(offset));
        if offsets.is_empty() {
            return Ok(());
        }
        Ok(self.log(plan)?.reset_group(&plan.group, &offsets).await?)
    }
}

/// Notes how far a generation came while it was live, so that it can be brought up to date.
async fn leave(plan: &Plan, generation: &Generation, at: &Named) -> Result<()> {
    let files = PositionFiles::open(folder(generation).join("positions")).await?;
    let positions = at.iter().map(|(name, at)| (Partition::from(name.as_str()), *at)).collect();
    let saved = SavedPositions { source: identity_of(&plan.topics), positions };
    Ok(files.save(&plan.topology.name, &saved).await?)
}

async fn left_at(generation: &Generation, pipeline: &str) -> Result<Named> {
    let files = PositionFiles::open(folder(generation).join("positions")).await?;
    let saved = files.load(pipeline).await?;
    let positions = saved.map(|saved| saved.positions).unwrap_or_default();
    Ok(positions.iter().map(|(partition, at)| (partition.to_string(), *at)).collect())
}

fn later(one: &Named, other: &Named) -> Named {
    let mut later: BTreeMap<_, _> = other.clone();
    for (partition, offset) in one {
        let at = later.entry(partition.clone()).or_default();
        *at = (*at).max(*offset);
    }
    later
}

fn distance(from: &Named, to: &Named) -> u64 {
    let of = |(name, to): (&String, &u64)| to.saturating_sub(from.get(name).copied().unwrap_or(0));
    to.iter().map(of).sum()
}
