//! Verifying what store and log hold: in the running process, or in a command of its own.

use std::sync::Arc;

use anyhow::bail;
use courant_connectors::connections::Connected;
use courant_connectors::log::Log;
use courant_connectors::model::topics::messages_persisted;
use courant_edge::WorkLine;
use courant_replay::verify::{Deployment, Options, Progress, Report, verify};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::StopSignals;

/// What a process says of a verification over its admin socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerifyUpdate {
    Progress(Progress),
    Report(Box<Report>),
}

/// Lines that wait for a slow reader.
const LINES: usize = 16;

/// The verifications of a running process: one at a time, since each reads everything.
pub(super) struct Verifications(Arc<Semaphore>);

impl Default for Verifications {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Verifications {
    /// Begins one; it ends early when nobody listens any more, or the process is to stop.
    pub(super) fn start(
        &self,
        connected: &Connected,
        options: serde_json::Value,
        stop: &CancellationToken,
    ) -> Result<mpsc::Receiver<WorkLine>, String> {
        let options: Options = serde_json::from_value(options)
            .map_err(|error| format!("{error}; is the command as old as the process?"))?;
        let Ok(turn) = Arc::clone(&self.0).try_acquire_owned() else {
            return Err("another verification is under way; try again once it has ended".to_owned());
        };
        let (to, from) = mpsc::channel(LINES); // full: progress is left out, the report waits
        let (store, log) = (Arc::clone(&connected.store), Arc::clone(&connected.log));
        let stop = stop.child_token();
        tokio::spawn(async move {
            let _turn = turn;
            let listener = to.clone();
            let tell = move |progress| drop(listener.try_send(line(&VerifyUpdate::Progress(progress))));
            let work = async {
                let options = with_retention(&*log, options).await;
                verify(Deployment::new(&store, &log), options, tell, stop).await
            };
            let report = tokio::select! {
                report = work => report,
                () = to.closed() => return,
            };
            let last = match report {
                Ok(report) => line(&VerifyUpdate::Report(Box::new(report))),
                Err(error) => Err(format!("{:#}", anyhow::Error::from(error))),
            };
            // Whoever asked may have left.
            let _ = to.send(last).await;
        });
        Ok(from)
    }
}

fn line(line: &VerifyUpdate) -> WorkLine {
    serde_json::to_value(line).map_err(|error| error.to_string())
}

/// How long the log keeps events is the topic's own setting, where it tells.
async fn with_retention(log: &dyn Log, mut options: Options) -> Options {
    let described = log.describe_topic(&messages_persisted::NAME.into()).await.ok().flatten();
    let known = described.filter(|described| !described.unknown.contains(&"retention.age"));
    if let Some(age) = known.and_then(|described| described.spec.retention.age) {
        options.events_kept = age;
    }
    options
}

/// Verifies without a running process. Told to stop, it reports what it has seen; told again, it gives up.
pub async fn verify_here(
    deployment: Deployment,
    log: &dyn Log,
    options: Options,
    progress: impl Fn(Progress) + Send + Sync + 'static,
) -> anyhow::Result<Report> {
    let mut signals = StopSignals::listen()?;
    let stop = CancellationToken::new();
    let options = with_retention(log, options).await;
    let mut work = std::pin::pin!(verify(deployment, options, progress, stop.clone()));
    loop {
        tokio::select! {
            report = &mut work => return Ok(report?),
            () = signals.next() => {}
        }
        if stop.is_cancelled() {
            bail!("stopped before there was anything to report");
        }
        stop.cancel();
    }
}
