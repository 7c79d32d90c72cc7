//! Rebuilding derived stores: in the running process, or in a command of its own if there is none.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::bail;
use courant_edge::WorkLine;
use courant_pipeline::config::Loaded;
use courant_pipeline::runtime::Runtime;
use courant_replay::rebuild::{self, Engine, Estimate, Listed, Pace, Progress, Receipt, Request};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::host::close_connections;
use super::{StopSignals, open_host};

/// What can be asked about rebuilds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayAsk {
    Start(Request),
    Estimate(Request),
    Resume {
        pipeline: String,
        #[serde(default)]
        pace: Pace,
    },
    Pause {
        pipeline: String,
    },
    Approve {
        pipeline: String,
    },
    Rollback {
        pipeline: String,
    },
    Discard {
        pipeline: String,
        generation: String,
    },
    List {
        pipeline: Option<String>,
    },
    Show {
        pipeline: String,
        generation: Option<String>,
    },
}

/// What is told of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayUpdate {
    Progress(Progress),
    Receipt(Box<Receipt>),
    Estimate(Estimate),
    List(Vec<Listed>),
    Discarded,
    Paused,
}

impl ReplayAsk {
    /// What to say to somebody who stopped it.
    pub fn stopped(&self) -> String {
        match self {
            Self::Start(Request { pipeline, .. }) | Self::Resume { pipeline, .. } => {
                format!("stopped; `courant replay {pipeline} --resume` goes on where it was last kept")
            }
            _ => "stopped before it was done; the same command can be given again".to_owned(),
        }
    }

    /// The pipeline whose generations it changes.
    fn changes(&self) -> Option<&str> {
        match self {
            Self::Start(request) => Some(&request.pipeline),
            Self::Resume { pipeline, .. }
            | Self::Approve { pipeline }
            | Self::Rollback { pipeline }
            | Self::Discard { pipeline, .. } => Some(pipeline),
            Self::Estimate(_) | Self::List { .. } | Self::Show { .. } | Self::Pause { .. } => None,
        }
    }
}

/// Lines that wait for a slow reader.
const LINES: usize = 16;

/// The rebuilds of a running process: one at a time for each pipeline.
#[derive(Default)]
pub(super) struct Replays {
    under_way: Arc<UnderWay>,
    tasks: TaskTracker,
}

/// What stops each of them.
#[derive(Default)]
struct UnderWay(Mutex<BTreeMap<String, CancellationToken>>);

impl UnderWay {
    fn pipelines(&self) -> MutexGuard<'_, BTreeMap<String, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn for one pipeline; none if somebody else has it.
    fn enter(self: &Arc<Self>, pipeline: &str, stop: &CancellationToken) -> Option<Turn> {
        match self.pipelines().entry(pipeline.to_owned()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(stop.clone());
                Some(Turn { of: Arc::clone(self), pipeline: pipeline.to_owned() })
            }
        }
    }

    /// Stops it in good order; whoever watches is told how to go on.
    fn pause(&self, pipeline: &str) -> Result<(), String> {
        match self.pipelines().get(pipeline) {
            Some(stop) => {
                stop.cancel();
                Ok(())
            }
            None => Err(nothing_to_pause(pipeline)),
        }
    }
}

fn nothing_to_pause(pipeline: &str) -> String {
    format!(
        "no replay of `{pipeline}` is under way in a running process; one that runs by itself is stopped with Ctrl-C"
    )
}

struct Turn {
    of: Arc<UnderWay>,
    pipeline: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.of.pipelines().remove(&self.pipeline);
    }
}

impl Replays {
    /// Begins; it stops in good order when nobody listens any more, or the process is to stop.
    pub(super) fn start(
        &self,
        runtime: &Arc<Runtime>,
        ask: serde_json::Value,
        stop: &CancellationToken,
    ) -> Result<mpsc::Receiver<WorkLine>, String> {
        let ask: ReplayAsk = serde_json::from_value(ask)
            .map_err(|error| format!("{error}; is the command as old as the process?"))?;
        let (runtime, stop) = (Arc::clone(runtime), stop.child_token());
        let turn = match ask.changes() {
            Some(pipeline) => Some(self.under_way.enter(pipeline, &stop).ok_or_else(|| {
                format!("another replay of `{pipeline}` is under way; wait for it, or stop it with --pause")
            })?),
            None => None,
        };
        let (to, from) = mpsc::channel(LINES); // full: progress is left out, the last line waits
        if let ReplayAsk::Pause { pipeline } = &ask {
            self.under_way.pause(pipeline)?;
            let _ = to.try_send(line(&ReplayUpdate::Paused)); // there is room
            return Ok(from);
        }
        self.tasks.spawn(async move {
            let _turn = turn;
            let listener = to.clone();
            let tell = move |progress| drop(listener.try_send(line(&ReplayUpdate::Progress(progress))));
            let topologies = runtime.topologies();
            let engine = Engine {
                topologies: &topologies,
                host: runtime.host(),
                runtime: Some(&runtime),
                stop: &stop,
                progress: &tell,
            };
            let mut work = pin!(carry_out(&engine, ask));
            let done = tokio::select! {
                done = &mut work => done,
                () = to.closed() => {
                    stop.cancel();
                    work.await
                }
            };
            let last = match done {
                Ok(update) => line(&update),
                Err(error) => Err(format!("{:#}", anyhow::Error::from(error))),
            };
            // Whoever asked may have left.
            let _ = to.send(last).await;
        });
        Ok(from)
    }

    /// Waits for those under way.
    pub(super) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn line(line: &ReplayUpdate) -> WorkLine {
    serde_json::to_value(line).map_err(|error| error.to_string())
}

async fn carry_out(engine: &Engine<'_>, ask: ReplayAsk) -> rebuild::Result<ReplayUpdate> {
    let receipt = match ask {
        ReplayAsk::Start(request) => engine.start(request).await?,
        ReplayAsk::Resume { pipeline, pace } => engine.resume_at(&pipeline, pace).await?,
        ReplayAsk::Approve { pipeline } => engine.approve(&pipeline).await?,
        ReplayAsk::Rollback { pipeline } => engine.rollback(&pipeline).await?,
        ReplayAsk::Show { pipeline, generation } => engine.show(&pipeline, generation.as_deref()).await?,
        ReplayAsk::Estimate(request) => return engine.estimate(&request).await.map(ReplayUpdate::Estimate),
        ReplayAsk::List { pipeline } => {
            return engine.list(pipeline.as_deref()).await.map(ReplayUpdate::List);
        }
        ReplayAsk::Pause { .. } => return Ok(ReplayUpdate::Paused),
        ReplayAsk::Discard { pipeline, generation } => {
            engine.discard(&pipeline, &generation).await?;
            return Ok(ReplayUpdate::Discarded);
        }
    };
    Ok(ReplayUpdate::Receipt(Box::new(receipt)))
}

/// Does it without a running process. Told to stop, it leaves a rebuild in good order; told again, it gives up.
pub async fn replay_here(
    loaded: &Loaded,
    ask: ReplayAsk,
    progress: impl Fn(Progress) + Send + Sync,
) -> anyhow::Result<ReplayUpdate> {
    if let ReplayAsk::Pause { pipeline } = &ask {
        bail!(nothing_to_pause(pipeline));
    }
    let host = open_host(loaded).await?;
    let mut signals = StopSignals::listen()?;
    let stop = CancellationToken::new();
    let stopped = ask.stopped();
    let engine = Engine {
        topologies: &loaded.topologies,
        host: &host,
        runtime: None,
        stop: &stop,
        progress: &progress,
    };
    let done = {
        let mut work = pin!(carry_out(&engine, ask));
        loop {
            tokio::select! {
                done = &mut work => break done,
                () = signals.next() => {}
            }
            if stop.is_cancelled() {
                bail!(stopped);
            }
            stop.cancel();
        }
    };
    close_connections(&host.services).await;
    Ok(done?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_rebuilt_by_one_at_a_time() {
        let under_way = Arc::new(UnderWay::default());
        let (stop, other) = (CancellationToken::new(), CancellationToken::new());
        let first = under_way.enter("search", &stop).expect("nobody else");
        assert!(under_way.enter("search", &other).is_none());
        assert!(under_way.enter("analytics", &other).is_some(), "another pipeline is another matter");
        under_way.pause("search").expect("it is under way");
        assert!(stop.is_cancelled() && !other.is_cancelled());
        drop(first);
        assert!(under_way.pause("search").is_err());
        assert!(under_way.enter("search", &other).is_some());
    }
}
