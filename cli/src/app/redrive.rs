//! Running dead letters again: in the running process, or in a command of its own if there is none.

use std::pin::pin;

use anyhow::bail;
use courant_edge::{Redrive, RedriveReport};
use courant_pipeline::config::{Loaded, Topology};
use courant_pipeline::runtime::Host;
use courant_replay::redrive as replay;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::host::close_connections;
use super::{StopSignals, open_host};

/// The redrives of a running process: one at a time, since two of one queue would run its letters twice.
#[derive(Default)]
pub(super) struct Redrives(Mutex<()>);

impl Redrives {
    pub(super) async fn run(
        &self,
        topologies: &[Topology],
        host: &Host,
        request: &Redrive,
        stop: &CancellationToken,
    ) -> Result<RedriveReport, String> {
        let Ok(_turn) = self.0.try_lock() else {
            return Err("another redrive is under way; try again once it has ended".to_owned());
        };
        redrive(topologies, host, request, stop).await
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.0.try_lock().is_ok()
    }

    /// Waits for the one under way, if any.
    pub(super) async fn ended(&self) {
        drop(self.0.lock().await);
    }
}

/// Runs letters again without a running process. Told to stop, it finishes what is under way and leaves the rest.
pub async fn redrive_here(loaded: &Loaded, request: &Redrive) -> anyhow::Result<RedriveReport> {
    let host = open_host(loaded).await?;
    let mut signals = StopSignals::listen()?;
    let stop = CancellationToken::new();
    let run = redrive(&loaded.topologies, &host, request, &stop);
    let report = stoppable(run, &stop, async || signals.next().await).await;
    close_connections(&host.services).await;
    report?.map_err(anyhow::Error::msg)
}

/// Waits for the work. It is asked to stop at the first `signal`, and given up at the second.
async fn stoppable<T>(
    work: impl Future<Output = T>,
    stop: &CancellationToken,
    mut signal: impl AsyncFnMut(),
) -> anyhow::Result<T> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            () = signal() => {}
        }
        if stop.is_cancelled() {
            bail!("stopped before everything under way was finished; what was not stays in its queue");
        }
        stop.cancel();
    }
}

/// Runs letters again and reports in the words of the admin protocol.
async fn redrive(
    topologies: &[Topology],
    host: &Host,
    request: &Redrive,
    stop: &CancellationToken,
) -> Result<RedriveReport, String> {
    let request = replay::Request { queue: request.queue.clone(), ids: request.ids.clone() };
    let redriven =
        replay::redrive(topologies, host, &request, stop).await.map_err(|error| error.to_string())?;
    Ok(RedriveReport { redriven: redriven.letters, dispositions: redriven.dispositions })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn the_first_signal_asks_and_the_second_gives_up() {
        let (stop, signal) = (CancellationToken::new(), Notify::new());
        let asked = async {
            signal.notify_one();
            stop.cancelled().await;
            7
        };
        assert_eq!(stoppable(asked, &stop, async || signal.notified().await).await.unwrap(), 7);

        let (stop, signal) = (CancellationToken::new(), Notify::new());
        let deaf = async {
            signal.notify_one();
            stop.cancelled().await;
            signal.notify_one();
            std::future::pending::<()>().await;
        };
        let error = stoppable(deaf, &stop, async || signal.notified().await).await.unwrap_err();
        assert!(error.to_string().contains("stays in its queue"), "{error}");
    }
}
