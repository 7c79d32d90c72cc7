//! Asking the process, over and over.

use std::time::Duration;

use courant_edge::admin::{AdminClient, ClientError};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use super::model::{Metrics, Sample, StageOrder};

/// A reload may change the stages; asking for them costs a look at kept positions, so it is done less often.
const ORDER_EVERY: u32 = 10;

/// An answer, or why there is none.
pub(super) type Polled = Result<(Sample, StageOrder), ClientError>;

pub(super) async fn sample(client: &AdminClient) -> Result<Sample, ClientError> {
    let (health, metrics) = tokio::try_join!(client.health(), client.metrics())?;
    Ok(Sample { at: Instant::now(), health, metrics: Metrics::parse(&metrics) })
}

pub(super) async fn order(client: &AdminClient) -> Result<StageOrder, ClientError> {
    let running = client.running().await?;
    let stages = |entry: courant_pipeline::config::PipelineEntry| {
        let names = entry.stage.into_iter().map(|stage| stage.name.unwrap_or(stage.kind)).collect();
        (entry.name, names)
    };
    Ok(running.pipelines.into_iter().map(|pipeline| stages(pipeline.entry)).collect())
}

/// Polls until the receiver is dropped.
pub(super) fn start(client: AdminClient, every: Duration) -> mpsc::Receiver<Polled> {
    let (to, from) = mpsc::channel(1); // full: the poll waits until the last one is shown
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut poller = Poller { client, order: StageOrder::new(), until_order: 0 };
        loop {
            ticks.tick().await;
            if to.send(poller.poll().await).await.is_err() {
                return;
            }
        }
    });
    from
}

struct Poller {
    client: AdminClient,
    order: StageOrder,
    until_order: u32,
}

impl Poller {
    async fn poll(&mut self) -> Polled {
        let polled = self.try_poll().await;
        // After an interruption it may be another process with other pipelines.
        self.until_order = if polled.is_ok() { self.until_order.saturating_sub(1) } else { 0 };
        polled
    }

    async fn try_poll(&mut self) -> Polled {
        if self.until_order == 0 {
            self.order = order(&self.client).await?;
            self.until_order = ORDER_EVERY;
        }
        Ok((sample(&self.client).await?, self.order.clone()))
    }
}
