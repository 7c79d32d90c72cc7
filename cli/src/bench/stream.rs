//! `courant bench stream`: from socket to socket by way of the store's changes, beside two writes.
//!
//! Both topologies are servers of their own with people of their own, loaded in turns by the code of `bench chat`, so
//! that both meet the same weather; the median of the rounds counts. A client cannot see when a message is stored,
//! except where an ack means just that: there it is told apart how long delivery takes from then on.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use courant_connectors::connections::{Connections, LogConnection, StoreConnection};
use tokio::time::Instant;

use super::chat::{
    Bench, FIXED_RATE, Measured, Pace, Server, Shape, Taken, fixed_rate_paces, in_flight_paces, percentile,
};
use super::{Figure, ROUNDS, median};
use crate::args::StreamBenchOptions;

/// Messages in flight of the figure of throughput.
const BUSY: usize = 256;
/// The shortest round, half of which is warming up.
const SHORTEST: Duration = Duration::from_secs(2);

/// Measures and reports each figure: `written_twice` is what the event bus is held against.
pub async fn run(
    written_twice: (&Path, Connections),
    event_bus: (&Path, Connections),
    options: &StreamBenchOptions,
    lasting: Duration,
    mut report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let shape = Shape { chats: options.chats, members: options.members };
    shape.check()?;
    refuse_shared_data(&written_twice.1, &event_bus.1)?;
    let prepare = async |(file, connections): (&Path, Connections)| {
        Bench::prepare(Server::start(file, &connections).await?, shape).await
    };
    let both = Both { twice: prepare(written_twice).await?, bus: prepare(event_bus).await?, shape };
    both.measure_latency(lasting / 2, &mut report).await?;
    both.measure_rate(lasting / 2, &mut report).await?;
    both.twice.server.stop().await?;
    both.bus.server.stop().await
}

/// Each would deliver what the other stores.
fn refuse_shared_data(one: &Connections, other: &Connections) -> anyhow::Result<()> {
    let store_is_shared = !matches!(one.store, StoreConnection::Embedded(_)) && one.store == other.store;
    let log_is_shared = !matches!(one.log, LogConnection::Embedded(_)) && one.log == other.log;
    if store_is_shared || log_is_shared {
        bail!("both files name the same tables or topics; give one another `table_prefix` and other brokers");
    }
    Ok(())
}

/// A server of each topology.
struct Both {
    twice: Bench,
    bus: Bench,
    shape: Shape,
}

/// What one kind of thing took, round by round, in milliseconds.
#[derive(Default)]
struct Rounds {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, mut micros: Vec<u32>) {
        micros.sort_unstable();
        self.p50.extend(percentile(&micros, 50));
        self.p99.extend(percentile(&micros, 99));
    }

    /// The median is the value.
    fn figure(&mut self, name: &str) -> Figure {
        let (p50, p99) = (median(&mut self.p50), median(&mut self.p99));
        let mut figure = Figure::new(name, p50, "ms");
        (figure.p50_ms, figure.p99_ms) = (Some(p50), Some(p99));
        figure
    }
}

impl Both {
    async fn measure_latency(&self, share: Duration, report: &mut impl FnMut(&Figure)) -> anyhow::Result<()> {
        let (mut bus, mut twice) = (Rounds::default(), Rounds::default());
        let (mut acks, mut twice_acks) = (Rounds::default(), Rounds::default());
        let mut after_ack = Rounds::default();
        let paces = || fixed_rate_paces(self.shape.chats);
        self.in_turns(share, paces, |of_bus, of_twice| {
            after_ack.add(after_acks(&of_bus.acked, &of_bus.delivered));
            acks.add(of_bus.acked.micros);
            bus.add(of_bus.delivered.micros);
            twice_acks.add(of_twice.acked.micros);
            twice.add(of_twice.delivered.micros);
        })
        .await?;
        if bus.p50.is_empty() || twice.p50.is_empty() {
            bail!("nothing was delivered at {FIXED_RATE} messages a second");
        }
        let limit = twice.figure("stream_deliver_written_twice");
        report(&bus.figure("stream_deliver").against(limit.value));
        let p99 = Figure::new("stream_deliver_p99", median(&mut bus.p99), "ms");
        report(&p99.against(median(&mut twice.p99)));
        report(&limit);
        report(&acks.figure("stream_acked").against(median(&mut twice_acks.p50)));
        report(&after_ack.figure("stream_after_ack"));
        Ok(())
    }

    async fn measure_rate(&self, share: Duration, report: &mut impl FnMut(&Figure)) -> anyhow::Result<()> {
        let (mut bus, mut twice, mut took) = (Vec::new(), Vec::new(), Rounds::default());
        let rate = |measured: &Measured| measured.delivered.in_window as f64 / measured.seconds;
        let paces = || in_flight_paces(BUSY, self.shape.chats);
        self.in_turns(share, paces, |of_bus, of_twice| {
            bus.push(rate(&of_bus));
            twice.push(rate(&of_twice));
            took.add(of_bus.delivered.micros);
        })
        .await?;
        let name = format!("stream_delivered_{BUSY}");
        let mut figure = Figure::new(name, median(&mut bus), "messages/s").against(median(&mut twice));
        (figure.p50_ms, figure.p99_ms) = (Some(median(&mut took.p50)), Some(median(&mut took.p99)));
        report(&figure);
        Ok(())
    }

    /// One round of each at least, and as many as there is time for.
    async fn in_turns(
        &self,
        share: Duration,
        paces: impl Fn() -> Vec<Option<Pace>>,
        mut note: impl FnMut(Measured, Measured),
    ) -> anyhow::Result<()> {
        let round = (share / u32::try_from(2 * ROUNDS).expect("a few")).max(SHORTEST);
        let started = Instant::now();
        for done in 0..ROUNDS {
            if done > 0 && started.elapsed() >= share {
                break;
            }
            let bus = self.bus.measure(paces(), round).await?;
            note(bus, self.twice.measure(paces(), round).await?);
        }
        Ok(())
    }
}

/// How long deliveries took from the ack of their message on; none where they were there before it.
fn after_acks(acked: &Taken, delivered: &Taken) -> Vec<u32> {
    let acks: HashMap<u64, u32> = acked.sent.iter().copied().zip(acked.micros.iter().copied()).collect();
    let each = delivered.sent.iter().zip(&delivered.micros);
    each.filter_map(|(sent, micros)| Some(micros.saturating_sub(*acks.get(sent)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_held_against_their_own_acks() {
        let taken = |times: &[(u64, u32)]| Taken {
            sent: times.iter().map(|(sent, _)| *sent).collect(),
            micros: times.iter().map(|(_, micros)| *micros).collect(),
            ..Taken::default()
        };
        let acked = taken(&[(10, 500), (20, 900)]);
        let delivered = taken(&[(20, 1000), (10, 700), (20, 800), (30, 5)]);
        assert_eq!(after_acks(&acked, &delivered), [100, 200, 0], "and one without an ack tells nothing");
    }

    #[test]
    fn the_median_of_the_rounds_counts() {
        let mut rounds = Rounds::default();
        for slowness in [1, 50, 2] {
            rounds.add((1..=100).map(|micros| micros * 1000 * slowness).collect());
        }
        let figure = rounds.figure("x");
        assert_eq!((figure.value, figure.p99_ms), (102.0, Some(200.0)));
    }
}
