//! From a request to a generation that is complete up to its fence, and compared.

use courant_connectors::files::generations::Generation;
use courant_connectors::log::Offsets;
use courant_connectors::model::Timestamp;
use courant_pipeline::config::Topology;
use courant_pipeline::{Tally, clock};
use courant_stages::log_range::{Held, RangeStart, start_of, times_at};
use courant_stages::sources::dynamo_scan::{joined_at, latest_before};

use super::code::code;
use super::compare::{Comparison, Look, MOST_KEYS, StageComparison};
use super::ends::check_made_of;
use super::plan::{History, Plan};
use super::progress::Phase;
use super::receipt::{Named, Noting, Receipt, State, config_version, named, unnamed};
use super::request::{At, From, Pace, Request, To};
use super::{Engine, Error, Result};

/// How often to look at what differs: after the first look everything has had time to come.
const LOOKS: u32 = 3;

/// Where history begins and ends.
pub(super) struct Range {
    /// Of the log.
    pub(super) start: Named,
    /// When the log was there, if the store has to give what was before.
    pub(super) join: Option<Timestamp>,
    pub(super) fence: Named,
    /// When the log was at the fence.
    pub(super) fence_at: Timestamp,
}

impl Engine<'_> {
    /// Rebuilds a pipeline's store. What comes of it is on the receipt: it may have gone live, or wait for an approval.
    pub async fn start(&self, request: Request) -> Result<Receipt> {
        let plan = self.plan(&request)?;
        plan.check(&request.from)?;
        self.check_pace(request.pace())?;
        let generations = self.generations(&request.pipeline)?;
        self.refuse_unfinished(&request.pipeline).await?;
        let Range { start, join, fence, fence_at } = self.range(&plan, &request).await?;
        let generation = generations.begin().await?;
        let now = now();
        let receipt = Receipt {
            pipeline: request.pipeline.clone(),
            generation: generation.name().to_owned(),
            state: State::Building,
            code: code().await.to_owned(),
            config: config_version(&plan.topology),
            began_at: now,
            changed_at: now,
            start,
            scanned: join.is_some(),
            join,
            fence,
            fence_at,
            records: Tally::default(),
            comparison: None,
            replaced: None,
            left: None,
            live_since: None,
            request,
        };
        receipt.save(&generation).await?;
        tracing::info!(pipeline = receipt.pipeline, generation = receipt.generation, from = %receipt.request.from, "rebuilding");
        self.go_on(&plan, receipt, &generation).await
    }

    /// Goes on with one that was stopped or killed, as fast as it was told to.
    pub async fn resume(&self, pipeline: &str) -> Result<Receipt> {
        self.resume_at(pipeline, Pace::default()).await
    }

    /// The same, at another pace from now on. Without live pipelines it does not stand back any more.
    pub async fn resume_at(&self, pipeline: &str, pace: Pace) -> Result<Receipt> {
        let (mut receipt, generation) =
            self.newest(pipeline, "resumed", |state| !matches!(state, State::Live | State::Done)).await?;
        self.check_pace(pace)?;
        let request = &mut receipt.request;
        request.rate = pace.rate.or(request.rate);
        request.yield_over = pace.yield_over.or(request.yield_over);
        if self.runtime.is_none() && request.yield_over.take().is_some() {
            tracing::warn!(
                pipeline,
                "nothing is live in this process, so the rebuild stands back for nobody"
            );
        }
        let plan = self.plan_again(&receipt)?;
        self.go_on(&plan, receipt, &generation).await
    }

    pub(super) fn check_pace(&self, pace: Pace) -> Result<()> {
        match (pace.yield_over, self.runtime) {
            (Some(_), None) => Err(Error::NothingLive),
            _ => Ok(()),
        }
    }

    /// The plan of a rebuild that was begun before, if the pipeline is still the same.
    pub(super) fn plan_again(&self, receipt: &Receipt) -> Result<Plan> {
        self.plan_of(self.topologies, receipt)
    }

    /// The same, of the pipelines that run by now: a rebuild takes long, and the file may have been edited meanwhile.
    pub(super) fn check_unchanged(&self, receipt: &Receipt) -> Result<()> {
        let Some(runtime) = self.runtime else { return Ok(()) };
        let running = runtime.topologies();
        if running.iter().any(|topology| *topology.name == *receipt.pipeline) {
            self.plan_of(&running, receipt)?;
        }
        Ok(())
    }

    fn plan_of(&self, topologies: &[Topology], receipt: &Receipt) -> Result<Plan> {
        let plan = Plan::of(topologies, &self.host.services, &receipt.request)?;
        if config_version(&plan.topology) != receipt.config {
            let (pipeline, generation) = (receipt.pipeline.clone(), receipt.generation.clone());
            return Err(Error::Changed { pipeline, generation });
        }
        Ok(plan)
    }

    async fn refuse_unfinished(&self, pipeline: &str) -> Result<()> {
        match self.newest(pipeline, "", |state| state == State::Building).await {
            Ok((receipt, _)) => Err(Error::Unfinished {
                pipeline: pipeline.to_owned(),
                generation: receipt.generation,
                began_at: receipt.began_at.to_string(),
            }),
            Err(Error::Nothing { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The newest rebuild in such a state, of those that are not older than the live one.
    pub(super) async fn newest(
        &self,
        pipeline: &str,
        what: &'static str,
        wanted: impl Fn(State) -> bool,
    ) -> Result<(Receipt, Generation)> {
        let generations = self.generations(pipeline)?;
        let current = generations.current().await?;
        for generation in generations.list().await?.into_iter().rev() {
            let receipt = Receipt::load(&generation).await?;
            // What is older was passed over when this one went live, unless its pipeline made it by itself.
            let is_last = receipt.is_some() && current.as_ref() == Some(&generation);
            if let Some(receipt) = receipt.filter(|receipt| wanted(receipt.state)) {
                return Ok((receipt, generation));
            }
            if is_last {
                break;
            }
        }
        Err(Error::Nothing { pipeline: pipeline.to_owned(), what })
    }

    async fn go_on(&self, plan: &Plan, mut receipt: Receipt, generation: &Generation) -> Result<Receipt> {
        if self.is_current(&receipt.pipeline, generation).await? {
            // The live pipeline writes it: there is nothing left to do but to say so.
            self.swap(plan, &mut receipt, generation).await?;
            return Ok(receipt);
        }
        self.check_fence(plan, &receipt).await?;
        if receipt.state == State::Building {
            let (fence, at) = (receipt.fence.clone(), receipt.fence_at);
            self.build(plan, &mut receipt, generation, (fence, at), Phase::Building).await?;
            let built = if plan.makes_a_store() { State::Built } else { State::Done };
            self.enter(&mut receipt, generation, built).await?;
        }
        if receipt.state == State::Done {
            return Ok(receipt);
        }
        self.prove(plan, &mut receipt, generation, MOST_KEYS).await?;
        if receipt.request.to == To::Live && receipt.state == State::Equal {
            self.swap(plan, &mut receipt, generation).await?;
        }
        Ok(receipt)
    }

    pub(super) async fn enter(
        &self,
        receipt: &mut Receipt,
        generation: &Generation,
        state: State,
    ) -> Result<()> {
        (receipt.state, receipt.changed_at) = (state, now());
        receipt.save(generation).await
    }

    /// Runs history up to a fence. What was run before is not run again.
    pub(super) async fn build(
        &self,
        plan: &Plan,
        receipt: &mut Receipt,
        generation: &Generation,
        (fence, at): (Named, Timestamp),
        phase: Phase,
    ) -> Result<()> {
        let history = match &receipt.left {
            Some(left) => History::Log { start: left, end: &fence },
            None if receipt.scanned => join_of(receipt, &fence),
            None => History::Log { start: &receipt.start, end: &fence },
        };
        let of = if phase == Phase::Building {
            let all = self.expected_records(plan, &history).await;
            // What failed is run again.
            all.map(|all| all.saturating_sub(receipt.records.sum() - receipt.records.failed))
        } else {
            let ahead = History::Log { start: &receipt.fence, end: &fence };
            self.expected_records(plan, &ahead).await
        };
        // While the live pipeline stands still everybody waits for this.
        let pace = if phase == Phase::Swapping { Pace::default() } else { receipt.request.pace() };
        let topology = plan.reading(&history, receipt.request.segments, pace);
        let host = self.host_for(generation).await?;
        let mut noting = Noting::on(receipt, generation);
        let report = self.run_watched(&topology, &host, phase, of, Some(&mut noting)).await;
        noting.note(report.dispositions).await?;
        match report.ending {
            courant_pipeline::runtime::Ending::Finished => {}
            courant_pipeline::runtime::Ending::Stopped => {
                return Err(Error::Stopped { pipeline: receipt.pipeline.clone() });
            }
            courant_pipeline::runtime::Ending::Failed(failure) => return Err(Error::Run(failure)),
        }
        (receipt.fence, receipt.fence_at, receipt.changed_at) = (fence, at, now());
        receipt.save(generation).await
    }

    /// Compares, and looks again at what differs once it has caught up.
    pub(super) async fn prove(
        &self,
        plan: &Plan,
        receipt: &mut Receipt,
        generation: &Generation,
        most_keys: usize,
    ) -> Result<()> {
        let first = Look { engine: self, plan, receipt, generation, only: None, most_keys, number: 1 };
        let (mut comparison, mut differing) = first.take().await?;
        while !differing.keys.is_empty() && comparison.looks < LOOKS && may_catch_up(&receipt.request.to) {
            if !self.catch_up(plan, receipt, generation).await? {
                break; // nothing has come that could make a difference
            }
            let number = comparison.looks + 1;
            let only = differing.is_complete.then_some(&differing.keys);
            let next = Look { engine: self, plan, receipt, generation, only, most_keys, number };
            let (found, still) = next.take().await?;
            match only {
                Some(_) => merge(&mut comparison, &found),
                None => comparison = found,
            }
            differing = still;
        }
        let state = if comparison.is_clean() { State::Equal } else { State::Differs };
        tracing::info!(
            pipeline = receipt.pipeline,
            generation = receipt.generation,
            differences = comparison.differences(),
            looks = comparison.looks,
            "compared"
        );
        receipt.comparison = Some(comparison);
        self.enter(receipt, generation, state).await
    }

    /// Runs what has come since; false if nothing has.
    pub(super) async fn catch_up(
        &self,
        plan: &Plan,
        receipt: &mut Receipt,
        generation: &Generation,
    ) -> Result<bool> {
        let at = now();
        let held = Held::by(&self.log(plan)?, &plan.topics).await?;
        check_made_of(&receipt.fence, &held, &receipt.pipeline, &receipt.generation)?;
        let fence = named(&held.high);
        if fence == receipt.fence {
            return Ok(false);
        }
        self.build(plan, receipt, generation, (fence, at), Phase::CatchingUp).await?;
        Ok(true)
    }

    /// What a rebuild reads, before anything is made.
    pub(super) async fn range(&self, plan: &Plan, request: &Request) -> Result<Range> {
        let log = self.log(plan)?;
        if request.to == To::Live && plan.makes_a_store() {
            self.stopped_at(plan).await?; // rather than after hours
        }
        let held = Held::by(&log, &plan.topics).await?;
        let at = now();
        let start = match &request.from {
            From::Scan | From::Oldest => held.low.clone(),
            From::Time(time) => start_of(&log, &plan.topics, &RangeStart::Time(*time), &held).await?,
            From::Offset(At::Named(offsets)) => {
                start_of(&log, &plan.topics, &RangeStart::Offsets(offsets.clone()), &held).await?
            }
            From::Offset(At::Each(offset)) => each(*offset, &held)?,
        };
        held.check(&start)?;
        let (end, at) = match &request.to {
            To::Now | To::Live => (held.high.clone(), at),
            To::Time(time) => {
                let end = start_of(&log, &plan.topics, &RangeStart::Time(*time), &held).await?;
                (end, at.min(*time))
            }
            To::Offset(offsets) => {
                let end = match offsets {
                    At::Each(offset) => each(*offset, &held)?,
                    At::Named(offsets) => {
                        let mut end = held.low.clone(); // nothing of those that are not named
                        end.extend(unnamed(offsets, &held.low)?);
                        end
                    }
                };
                not_beyond(&end, &held)?;
                let (first, _) = times_at(&log, &end, &held).await?;
                (end, at.min(Timestamp::from_unix_millis(first)))
            }
        };
        for (partition, end) in &end {
            let start = start.get(partition).copied().unwrap_or(0);
            if *end < start {
                return Err(Error::FenceInThePast { partition: partition.to_string(), start, end: *end });
            }
        }
        let range = Range { start: named(&start), join: None, fence: named(&end), fence_at: at };
        // A store is to have everything, and effects are had from where somebody said.
        let is_to_be_whole = plan.makes_a_store() && plan.can_scan();
        if request.from == From::Scan || is_to_be_whole && start.values().any(|start| *start > 0) {
            return self.joined(plan, request, (&start, &held), range).await;
        }
        Ok(range)
    }

    /// The same behind a scan of the store. The log takes over where it was asked for, or earlier: so long before the end
    /// that the scan gives nothing from behind it, which whoever reads on from the end would read again.
    async fn joined(
        &self,
        plan: &Plan,
        request: &Request,
        (start, held): (&Offsets, &Held),
        range: Range,
    ) -> Result<Range> {
        let log = self.log(plan)?;
        let needed = latest_before(range.fence_at);
        let join = match &request.from {
            // Not at its beginning, which may be removed before the scan is done.
            From::Scan | From::Oldest => needed,
            From::Time(time) => needed.min(*time),
            From::Offset(_) => {
                let (first, _) = times_at(&log, start, held).await?;
                needed.min(Timestamp::from_unix_millis(first))
            }
        };
        let (offsets, reached) = joined_at(&log, &plan.topics, join, held).await?;
        // An end that nobody chose is the log's, and what is given from behind it is in the log soon.
        if !may_catch_up(&request.to) && reached > needed {
            let whole = held.low.values().all(|low| *low == 0);
            return Err(Error::EndTooEarly {
                end: range.fence_at.to_string(),
                needed: needed.to_string(),
                begins: reached.to_string(),
                other: if whole { ", or `--from oldest` if nothing was removed from it" } else { "" },
            });
        }
        Ok(Range { start: named(&offsets), join: Some(join), ..range })
    }
}

/// The same offset everywhere; partitions that are shorter begin at their end.
fn each(offset: u64, held: &Held) -> Result<Offsets> {
    let longest = held.high.iter().max_by_key(|(_, high)| **high);
    if let Some((partition, high)) = longest
        && offset > *high
    {
        return Err(Error::NotYet { partition: partition.to_string(), offset, high: *high });
    }
    Ok(held.high.iter().map(|(partition, high)| (partition.clone(), offset.min(*high))).collect())
}

fn not_beyond(end: &Offsets, held: &Held) -> Result<()> {
    for (partition, offset) in end {
        let high = held.high.get(partition).copied().unwrap_or(0);
        if *offset > high {
            return Err(Error::NotYet { partition: partition.to_string(), offset: *offset, high });
        }
    }
    Ok(())
}

/// The store, and then the log up to a fence. With a chosen end the scan keeps to that.
fn join_of<'a>(receipt: &Receipt, fence: &'a Named) -> History<'a> {
    let chosen = receipt.join.filter(|_| !may_catch_up(&receipt.request.to));
    let published_before = chosen.map(|_| receipt.fence_at);
    History::Scan { join: receipt.join, published_before, end: fence }
}

/// An end that somebody chose stays where it is.
fn may_catch_up(to: &To) -> bool {
    matches!(to, To::Live | To::Now)
}

/// What a second look found of the keys that differed, in place of what the first did.
fn merge(comparison: &mut Comparison, again: &Comparison) {
    (comparison.looks, comparison.until) = (again.looks, again.until);
    for stage in &mut comparison.stages {
        match again.stages.iter().find(|found| found.stage == stage.stage) {
            Some(found) => {
                let left_out = stage.left_out + found.left_out;
                *stage = StageComparison { left_out, ..found.clone() };
            }
            None => debug_assert_eq!(stage.differences(), 0),
        }
    }
}

pub(super) fn now() -> Timestamp {
    Timestamp::from_unix_millis(clock::unix_millis())
}
