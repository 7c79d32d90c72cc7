//! Rebuilds what a pipeline makes from history, proves it equal, and puts it in place of the live one.
//!
//! A rebuild is a generation of its own beside the live one ([`generations`](courant_connectors::files::generations)):
//! the pipeline's own stages run from another start into it ([`plan`]), from the log, or from the store and then the log.
//! It keeps its positions, its dead letters and its receipt in its own folder, so it can be stopped, or killed, and go
//! on; the live store is not touched by it. It goes live only when it holds what the authority says it should
//! ([`compare`]), or somebody approves: then the live pipeline is stopped, the rebuilt store is brought to exactly where
//! that stopped, the link to the live generation is replaced, and the pipeline starts again behind it ([`swap`]). The
//! generation before is kept, and can be brought up to date and put back.
//!
//! Rejected: a second pipeline with a group of its own that is renamed in the file. The two would have to agree on every
//! parameter for ever, and nobody would know at which record one ended and the other began.

mod build;
mod code;
mod compare;
mod ends;
mod estimate;
mod list;
mod plan;
mod progress;
mod receipt;
mod request;
mod swap;
#[cfg(test)]
mod tests;
mod yielding;

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::capability::RestrictedLog;
use courant_connectors::connections::Connected;
use courant_connectors::files::FileError;
use courant_connectors::files::generations::{Generation, Generations};
use courant_connectors::log::LogError;
use courant_pipeline::StageError;
use courant_pipeline::config::Topology;
use courant_pipeline::runtime::{Ending, Failure, Host, Job, RunReport, Runtime};
use courant_pipeline::spec::{Level, Mode};
use courant_stages::backends::{access, grant};
use courant_stages::derived::DerivedHome;
use courant_stages::history::History as InHistory;
use courant_stages::host::{DeadLetterStore, PositionFiles};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

pub use compare::{Authority, Comparison, Found, StageComparison};
pub use estimate::Estimate;
pub use list::Listed;
pub use progress::{Phase, Progress};
pub use receipt::{Named, Receipt, State};
pub use request::{At, From, Pace, Request, To};

use plan::{History, Plan};
use receipt::Noting;
use yielding::LiveLatency;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no pipeline `{pipeline}`; {help}")]
    UnknownPipeline { pipeline: String, help: String },
    #[error("pipeline `{pipeline}` has no stage `{stage}`; {help}")]
    UnknownStage { pipeline: String, stage: String, help: String },
    #[error("pipeline `{pipeline}` cannot be rebuilt: {reason}")]
    NotRebuilt { pipeline: String, reason: String },
    #[error(
        "stage `{stage}` of pipeline `{pipeline}` has effects that somebody would see again; \
         --suppress {stage} ends its records there, --allow {stage} runs it all the same"
    )]
    Effect { pipeline: String, stage: String },
    #[error(
        "stage `{stage}` of pipeline `{pipeline}` is a `{kind}`: it writes where live pipelines write, so history \
         would overwrite what is there; --suppress {stage} ends its records there"
    )]
    NotDerived { pipeline: String, stage: String, kind: String },
    #[error(
        "stage `{stage}` of pipeline `{pipeline}` is a `parquet-write` without a `key`: its rows cannot be told apart, so \
         rebuilt files cannot be compared; name in `key` the columns of which there is one row each, or end its records \
         there with --suppress {stage}"
    )]
    NoKey { pipeline: String, stage: String },
    #[error("the end lies before the start in {partition}: it would end at {end} and begin at {start}")]
    FenceInThePast { partition: String, start: u64, end: u64 },
    #[error(
        "what was published before {end} cannot be told from what came later: for that the log has to reach back to {needed}, \
         and it begins at {begins}; choose an end that is twenty minutes later than its beginning, or `--to now`{other}"
    )]
    EndTooEarly { end: String, needed: String, begins: String, other: &'static str },
    #[error("{partition} ends at {high} and {offset} is not written yet")]
    NotYet { partition: String, offset: u64, high: u64 },
    #[error(
        "a rebuild of `{pipeline}` that began at {began_at} is not finished; \
         go on with `courant replay {pipeline} --resume`, or remove it with `--discard {generation}`"
    )]
    Unfinished { pipeline: String, generation: String, began_at: String },
    #[error(
        "pipeline `{pipeline}` has no rebuild that could be {what}; `courant replay --list` shows what there is"
    )]
    Nothing { pipeline: String, what: &'static str },
    #[error(
        "pipeline `{pipeline}` has changed since its rebuild began; remove it with `--discard {generation}` and begin anew"
    )]
    Changed { pipeline: String, generation: String },
    #[error(
        "pipeline `{pipeline}` has no generation `{generation}`; `courant replay --list` shows what there is"
    )]
    UnknownGeneration { pipeline: String, generation: String },
    #[error(
        "the generation before cannot be brought up to date: {partition} begins at {low} by now, and it was left at \
         {left}; rebuild it instead"
    )]
    LeftBehind { partition: String, left: u64, low: u64 },
    #[error(
        "group `{group}` has read {partition} up to {committed}, and {partition} ends at {high}: the topic was made anew, \
         or has lost its last records; `courant positions reset {pipeline} --to oldest` lets the pipeline go on with what \
         is there, then ask again"
    )]
    GroupBeyondEnd { pipeline: String, group: String, partition: String, committed: u64, high: u64 },
    #[error(
        "generation `{generation}` was made of {partition} up to {made_to}, and {partition} ends at {high}: the topic was \
         made anew, or has lost its last records; remove it with `courant replay {pipeline} --discard {generation}` and \
         begin anew"
    )]
    MadeBeyondEnd { pipeline: String, generation: String, partition: String, made_to: u64, high: u64 },
    #[error("the pipeline failed while it was run, what was built so far is kept: {0}")]
    Run(Failure),
    #[error("stopped; `courant replay {pipeline} --resume` goes on where it was")]
    Stopped { pipeline: String },
    #[error(
        "nothing runs in this process that a rebuild could stand back for; start `courant run` with the pipelines that \
         clients wait for, or give a --rate"
    )]
    NothingLive,
    #[error("this process has neither store nor log open")]
    NoConnections,
    #[error("this process keeps no derived stores")]
    NoHome,
    #[error("the receipt `{path}` cannot be read: {reason}")]
    Receipt { path: String, reason: String },
    #[error("cannot keep what is compared")]
    Scratch { source: std::io::Error },
    #[error(transparent)]
    Stage(#[from] StageError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// How often somebody who watches is told.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// How often it is noted how far it is. A write to disk, for which nothing is read: seldom enough not to slow it down.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Rebuilds pipelines of one process. One at a time for each of them: whoever has the process sees to that.
pub struct Engine<'a> {
    pub topologies: &'a [Topology],
    pub host: &'a Host,
    /// What runs the live pipelines; none in a process that runs none.
    pub runtime: Option<&'a Runtime>,
    pub stop: &'a CancellationToken,
    /// Who watches.
    pub progress: &'a (dyn Fn(Progress) + Send + Sync),
}

impl Engine<'_> {
    fn plan(&self, request: &Request) -> Result<Plan> {
        Plan::of(self.topologies, &self.host.services, request)
    }

    fn generations(&self, pipeline: &str) -> Result<Generations> {
        let home = self.host.services.get::<DerivedHome>().ok_or(Error::NoHome)?;
        Ok(home.generations(pipeline)?)
    }

    fn connected(&self) -> Result<Arc<Connected>> {
        self.host.services.get::<Connected>().ok_or(Error::NoConnections)
    }

    /// The log, for reading the pipeline's topics.
    fn log(&self, plan: &Plan) -> Result<RestrictedLog> {
        let declared: Vec<_> =
            plan.topics.iter().map(|topic| access(Level::Log, Mode::Read, topic.as_str())).collect();
        let log = Arc::clone(&self.connected()?.log);
        Ok(RestrictedLog::new(log, Arc::new(grant(declared.iter()))))
    }

    /// What stages get that write a generation which is not live.
    async fn host_for(&self, generation: &Generation) -> Result<Host> {
        let home = self.host.services.get::<DerivedHome>().ok_or(Error::NoHome)?;
        let folder = receipt::folder(generation);
        let positions = Arc::new(PositionFiles::open(folder.join("positions")).await?);
        let dead_letters = Arc::new(DeadLetterStore::open(folder.join("dead-letters")).await?);
        let services = self.host.services.clone();
        Ok(Host {
            services: services
                .with(Arc::new(InHistory))
                .with(Arc::new(LiveLatency::default()))
                .with(Arc::new(home.writing(generation.clone())))
                .with(Arc::clone(&positions))
                .with(Arc::clone(&dead_letters)),
            dead_letters,
            positions,
            drain_deadline: self.host.drain_deadline,
        })
    }

    /// Runs to the end of its source, telling how far it is.
    async fn run(
        &self,
        topology: &Topology,
        host: &Host,
        phase: Phase,
        of: Option<u64>,
    ) -> Result<RunReport> {
        let report = self.run_watched(topology, host, phase, of, None).await;
        match report.ending {
            Ending::Finished => Ok(report),
            Ending::Stopped => Err(Error::Stopped { pipeline: topology.name.to_string() }),
            Ending::Failed(failure) => Err(Error::Run(failure)),
        }
    }

    async fn run_watched(
        &self,
        topology: &Topology,
        host: &Host,
        phase: Phase,
        of: Option<u64>,
        mut noting: Option<&mut Noting<'_>>,
    ) -> RunReport {
        let job = Job::of(topology);
        let mut run = Box::pin(job.run(host, self.stop));
        let mut every = interval(TELL_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut before, mut noted_at) = (None, Instant::now());
        let live = self.runtime.zip(host.services.get::<LiveLatency>());
        loop {
            tokio::select! {
                report = &mut run => {
                    self.tell(phase, report.dispositions.sum(), of, None);
                    return report;
                }
                _ = every.tick() => {
                    if let Some((runtime, live)) = &live {
                        live.look(runtime);
                    }
                    let health = job.health();
                    let done = health.dispositions.sum();
                    let stuck = before.replace(done) == Some(done);
                    self.tell(phase, done, of, health.last_error.filter(|_| stuck));
                    if let Some(noting) = noting.as_mut().filter(|_| noted_at.elapsed() >= NOTE_EVERY) {
                        // Waited for, so that an older note never takes the place of a newer one.
                        if let Err(error) = noting.note(health.dispositions).await {
                            tracing::warn!(%error, "cannot note how far a rebuild is");
                        }
                        noted_at = Instant::now();
                    }
                }
            }
        }
    }

    fn tell(&self, phase: Phase, done: u64, of: Option<u64>, trouble: Option<String>) {
        (self.progress)(Progress { phase, done, of, trouble });
    }

    /// How many records a history has, as far as that can be told without reading it.
    async fn expected_records(&self, plan: &Plan, history: &History<'_>) -> Option<u64> {
        let between = |start: &receipt::Named, end: &receipt::Named| {
            let of = |(name, end): (&String, &u64)| end.saturating_sub(start.get(name).copied().unwrap_or(0));
            end.iter().map(of).sum()
        };
        match history {
            History::Log { start, end } => Some(between(start, end)),
            History::Scan { .. } | History::Store { .. } => {
                let store = Arc::clone(&self.connected().ok()?.store);
                let table = &courant_connectors::model::tables::messages::SCHEMA.name;
                debug_assert!(plan.can_scan());
                store.describe_table(table).await.ok().flatten()?.items
            }
        }
    }
}
