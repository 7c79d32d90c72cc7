//! Runs dead letters again, from the stage that gave up on them.
//!
//! Letters of one queue may come from several pipelines and stages; each such group is one run of that pipeline's
//! stages with `dead-letter-read` in place of its source. A run reads as many letters as there were at the start, in
//! the order they came, so what fails again becomes a new letter behind them and is not read again. A letter leaves its
//! queue only after its record has come to an end: a crash runs it twice and never loses it.
//!
//! Ids do not tell where to end: they follow the clock, and one that was set back would leave letters out.

use std::collections::{BTreeMap, HashSet};

use courant_connectors::files::FileError;
use courant_connectors::files::dead_letters::DeadLetterJournal;
use courant_pipeline::Tally;
use courant_pipeline::config::{StageNode, Topology};
use courant_pipeline::runtime::{Ending, Failure, Host, run_to_end};
use courant_stages::host::DeadLetterStore;
use courant_stages::sources::dead_letter_read;
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Which letters to run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub queue: String,
    /// All of the queue if empty.
    pub ids: Vec<String>,
}

/// What became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Redriven {
    pub letters: u64,
    pub dispositions: Tally,
}

#[derive(Debug, thiserror::Error)]
pub enum RedriveError {
    #[error("this process keeps no dead letters")]
    NoStore,
    #[error(transparent)]
    File(#[from] FileError),
    #[error("queue `{queue}` has no letter {}; `courant dead-letters list {queue}` shows what it has", .ids.join(", "))]
    UnknownLetters { queue: String, ids: Vec<String> },
    #[error("there is no queue `{queue}`; {}", waiting_in(.waiting))]
    UnknownQueue { queue: String, waiting: Vec<String> },
    #[error(
        "letters of queue `{queue}` come from pipeline `{pipeline}`, which is not in the configuration; bring it back or discard them"
    )]
    UnknownPipeline { queue: String, pipeline: String },
    #[error(
        "letters of queue `{queue}` come from stage `{stage}`, which pipeline `{pipeline}` no longer has; bring it back or discard them"
    )]
    UnknownStage { queue: String, pipeline: String, stage: String },
    #[error(
        "pipeline `{pipeline}` failed while it ran the letters, the rest of them stay in their queue: {failure}"
    )]
    Failed { pipeline: String, failure: Failure },
    /// Letters are settled in order, as every source commits.
    #[error(
        "stopped after {done} letters; from the first unfinished one on they stay in their queue, and those done after it would run again"
    )]
    Stopped { done: u64 },
}

/// `letters wait in: p, q`.
fn waiting_in(queues: &[String]) -> String {
    match queues {
        [] => "no letters wait in any".to_owned(),
        queues => format!("letters wait in: {}", queues.join(", ")),
    }
}

/// How many letters come from each stage of each pipeline.
type Groups = BTreeMap<(String, String), u64>;

/// Runs the letters that are there now; returns when each has come to an end, or early and in good order on `stop`.
pub async fn redrive(
    topologies: &[Topology],
    host: &Host,
    request: &Request,
    stop: &CancellationToken,
) -> Result<Redriven, RedriveError> {
    let store = host.services.get::<DeadLetterStore>().ok_or(RedriveError::NoStore)?;
    let groups = survey(store.journal(), request).await?;
    if groups.is_empty() {
        check_known(store.journal(), topologies, &request.queue).await?;
    }
    let runs = groups
        .iter()
        .map(|((pipeline, stage), letters)| plan(topologies, request, pipeline, stage, *letters))
        .collect::<Result<Vec<_>, _>>()?;
    let mut redriven = Redriven::default();
    for topology in runs {
        let report = run_to_end(&topology, host, stop).await;
        redriven.letters += report.read;
        for disposition in courant_pipeline::Disposition::ALL {
            redriven.dispositions.add(disposition, report.dispositions.of(disposition));
        }
        match report.ending {
            Ending::Finished => {}
            Ending::Stopped => {
                let tally = redriven.dispositions;
                return Err(RedriveError::Stopped { done: tally.sum() - tally.failed });
            }
            Ending::Failed(failure) => {
                return Err(RedriveError::Failed { pipeline: topology.name.to_string(), failure });
            }
        }
    }
    Ok(redriven)
}

/// Which pipelines and stages the letters come from.
async fn survey(journal: &DeadLetterJournal, request: &Request) -> Result<Groups, RedriveError> {
    let missing: HashSet<String> = request.ids.iter().cloned().collect();
    let all = missing.is_empty();
    let surveyed =
        journal.fold(&request.queue, (Groups::new(), missing), move |(groups, missing), stored| {
            if all || missing.remove(&stored.id) {
                *groups.entry((stored.letter.pipeline, stored.letter.stage)).or_default() += 1;
            }
        });
    let (groups, missing) = surveyed.await?;
    if missing.is_empty() {
        return Ok(groups);
    }
    let ids = request.ids.iter().filter(|id| missing.contains(*id)).cloned().collect();
    Err(RedriveError::UnknownLetters { queue: request.queue.clone(), ids })
}

/// A queue without letters has had some, or is one that a stage names; any other is a typo.
async fn check_known(
    journal: &DeadLetterJournal,
    topologies: &[Topology],
    queue: &str,
) -> Result<(), RedriveError> {
    let queues = journal.queues().await?;
    let mut stages = topologies.iter().flat_map(|topology| &topology.stages);
    if stages.any(|stage| *stage.policy.dead_letter_queue == *queue)
        || queues.iter().any(|depth| depth.queue == queue)
    {
        return Ok(());
    }
    let waiting = queues.into_iter().filter(|depth| depth.pending > 0).map(|depth| depth.queue).collect();
    Err(RedriveError::UnknownQueue { queue: queue.to_owned(), waiting })
}

/// The pipeline's stages from the one that gave up, reading the letters.
fn plan(
    topologies: &[Topology],
    request: &Request,
    pipeline: &str,
    stage: &str,
    letters: u64,
) -> Result<Topology, RedriveError> {
    let queue = &request.queue;
    let topology = topologies.iter().find(|topology| *topology.name == *pipeline).ok_or_else(|| {
        RedriveError::UnknownPipeline { queue: queue.clone(), pipeline: pipeline.to_owned() }
    })?;
    let index =
        topology.index_of(stage).filter(|index| *index > 0).ok_or_else(|| RedriveError::UnknownStage {
            queue: queue.clone(),
            pipeline: pipeline.to_owned(),
            stage: stage.to_owned(),
        })?;
    let mut params = json!({
        "queue": queue, "from_pipeline": pipeline, "from_stage": stage, "limit": letters
    });
    if !request.ids.is_empty() {
        params["ids"] = json!(request.ids);
    }
    tracing::info!(pipeline, stage, letters, "redriving dead letters");
    let source = StageNode {
        name: "dead-letter-read".into(),
        spec: &dead_letter_read::SPEC,
        params,
        input: None,
        outputs: Vec::new(),
        access: Vec::new(),
        rekeys: false,
        policy: topology.source().policy.clone(),
    };
    Ok(topology.starting_at(index, source))
}

#[cfg(test)]
#[path = "redrive_tests.rs"]
mod tests;
