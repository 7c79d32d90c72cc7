//! Work on store and log that a command asks for: in the running process that has them open, or in a command of its own.
//!
//! Each can be stopped at any moment, and then finishes the step it is at: nothing is left half done.

use std::sync::Arc;

use anyhow::bail;
use courant_connectors::connections::Connected;
use courant_connectors::log::Log;
use courant_connectors::model::topics::messages_persisted;
use courant_connectors::store::Store;
use courant_edge::WorkLine;
use courant_replay::verify::{Deployment, Progress};
use courant_replay::{counters, reconcile, verify};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::StopSignals;

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    Verify(verify::Options),
    Reconcile(reconcile::Options),
    Counters(counters::Options),
}

/// What a process says of a job over its admin socket; the report is the job's own.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobUpdate {
    Progress(Progress),
    Report(Value),
}

impl Job {
    async fn run(
        self,
        store: Arc<dyn Store>,
        log: Arc<dyn Log>,
        tell: impl Fn(Progress) + Send + Sync + 'static,
        stop: CancellationToken,
    ) -> anyhow::Result<Value> {
        let report = match self {
            Self::Verify(mut options) => {
                options.events_kept = kept_by(&*log).await.unwrap_or(options.events_kept);
                let report = verify::verify(Deployment::new(&store, &log), options, tell, stop).await?;
                serde_json::to_value(report)
            }
            Self::Reconcile(mut options) => {
                options.events_kept = kept_by(&*log).await.unwrap_or(options.events_kept);
                let repairable = reconcile::Repairable::new(&store, &log);
                serde_json::to_value(reconcile::reconcile(repairable, options, tell, stop).await?)
            }
            Self::Counters(options) => {
                let recoverable = counters::Recoverable::new(&store, &log);
                serde_json::to_value(counters::counters(recoverable, options, tell, stop).await?)
            }
        };
        Ok(report?)
    }
}

/// How long the log keeps events is the topic's own setting, where it tells.
async fn kept_by(log: &dyn Log) -> Option<std::time::Duration> {
    let described = log.describe_topic(&messages_persisted::NAME.into()).await.ok().flatten();
    let known = described.filter(|described| !described.unknown.contains(&"retention.age"));
    known.and_then(|described| described.spec.retention.age)
}

/// Lines that wait for a slow reader.
const LINES: usize = 16;

/// The jobs of a running process: one at a time, since each reads everything.
pub(super) struct Jobs(Arc<Semaphore>);

impl Default for Jobs {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Jobs {
    /// Begins one; it ends early when nobody listens any more, or the process is to stop.
    pub(super) fn start(
        &self,
        connected: &Connected,
        job: Value,
        stop: &CancellationToken,
    ) -> Result<mpsc::Receiver<WorkLine>, String> {
        let job: Job = serde_json::from_value(job)
            .map_err(|error| format!("{error}; is the command as old as the process?"))?;
        let Ok(turn) = Arc::clone(&self.0).try_acquire_owned() else {
            return Err("another command works on store and log; try again once it has ended".to_owned());
        };
        let (to, from) = mpsc::channel(LINES); // full: progress is left out, the report waits
        let (store, log) = (Arc::clone(&connected.store), Arc::clone(&connected.log));
        let stop = stop.child_token();
        tokio::spawn(async move {
            let _turn = turn;
            let listener = to.clone();
            let tell = move |progress| drop(listener.try_send(line(&JobUpdate::Progress(progress))));
            let mut work = std::pin::pin!(job.run(store, log, tell, stop.clone()));
            let report = tokio::select! {
                report = &mut work => report,
                () = to.closed() => {
                    stop.cancel();
                    work.await
                }
            };
            let last = match report {
                Ok(report) => line(&JobUpdate::Report(report)),
                Err(error) => Err(format!("{error:#}")),
            };
            // Whoever asked may have left.
            let _ = to.send(last).await;
        });
        Ok(from)
    }
}

fn line(line: &JobUpdate) -> WorkLine {
    serde_json::to_value(line).map_err(|error| error.to_string())
}

/// Does a job without a running process. Told to stop, it reports what was done until then; told again, it gives up.
pub async fn job_here(
    job: Job,
    store: Arc<dyn Store>,
    log: Arc<dyn Log>,
    progress: impl Fn(Progress) + Send + Sync + 'static,
) -> anyhow::Result<Value> {
    let mut signals = StopSignals::listen()?;
    let stop = CancellationToken::new();
    let mut work = std::pin::pin!(job.run(store, log, progress, stop.clone()));
    loop {
        tokio::select! {
            report = &mut work => return report,
            () = signals.next() => {}
        }
        if stop.is_cancelled() {
            bail!("stopped before there was anything to report");
        }
        stop.cancel();
    }
}
