//! `courant bench chat` and `courant bench idle`: the product as its clients see it, over real sockets.
//!
//! The server is a process of its own, the load is this one; both share the machine, and the server's processor time is
//! measured apart. Every acknowledged message is durable, as everywhere.

mod load;
mod people;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use courant_client::SignedIn;
use courant_connectors::connections::Connections;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::task::JoinSet;

use super::Figure;
use crate::args::ChatBenchOptions;
pub(super) use load::Pace;
pub(super) use load::Taken;
use load::{WARM_UP, Window};
use people::Chat;
pub(super) use people::Shape;
use server::Counted;
pub(super) use server::Server;

/// Messages in flight, for the figures named after them.
const IN_FLIGHT: [usize; 3] = [1, 16, 256];
/// The last of them, whose figures of cost have no number in their names.
const BUSIEST: &str = "256";
/// Messages a second of the last figure.
pub(super) const FIXED_RATE: usize = 500;
/// How `--growth` goes up.
const GROWTH: [usize; 4] = [1, 10, 100, 1000];
/// Sockets connected at a time.
const CONNECTS_AT_ONCE: usize = 32;
/// What a device may have connected at a time, by the server's default.
const CONNECTIONS_PER_USER: usize = 8;

pub async fn run(
    file: &Path,
    connections: &Connections,
    options: &ChatBenchOptions,
    lasting: Duration,
    mut report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let shape = Shape { chats: options.chats, members: options.members };
    shape.check()?;
    if options.growth {
        return growth(file, connections, lasting, report).await;
    }
    let server = match &options.url {
        Some(url) => Server::at(url)?,
        None => Server::start(file, connections).await?,
    };
    let bench = Bench::prepare(server, shape).await?;
    let share = lasting / u32::try_from(IN_FLIGHT.len() + 1).expect("a few");
    for in_flight in IN_FLIGHT {
        let in_flight_all = if options.per_sender { in_flight * shape.chats } else { in_flight };
        let measured = bench.measure(in_flight_paces(in_flight_all, shape.chats), share).await?;
        measured.report(&in_flight.to_string(), &mut report);
    }
    let measured = bench.measure(fixed_rate_paces(shape.chats), share).await?;
    measured.report(&format!("at_{FIXED_RATE}"), &mut report);
    bench.server.stop().await
}

/// Many chats of two, then few chats of many, each on a server of its own.
async fn growth(
    file: &Path,
    connections: &Connections,
    lasting: Duration,
    mut report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let by_chats = GROWTH.map(|chats| (format!("256_{chats}_chats"), Shape { chats, members: 2 }));
    let by_members = GROWTH.map(|members| {
        (format!("256_{}_members", members.max(2)), Shape { chats: 10, members: members.max(2) })
    });
    let share = lasting / u32::try_from(by_chats.len() + by_members.len()).expect("a few");
    for (name, shape) in by_chats.into_iter().chain(by_members) {
        let bench = Bench::prepare(Server::start(file, connections).await?, shape).await?;
        let measured = bench.measure(in_flight_paces(256, shape.chats), share).await?;
        measured.report(&name, &mut report);
        bench.server.stop().await?;
    }
    Ok(())
}

/// So many in flight altogether, over the chats' senders.
pub(super) fn in_flight_paces(in_flight: usize, chats: usize) -> Vec<Option<Pace>> {
    let of_chat = |chat: usize| in_flight / chats + usize::from(chat < in_flight % chats);
    (0..chats).map(|chat| Some(of_chat(chat)).filter(|count| *count > 0).map(Pace::InFlight)).collect()
}

/// Every sender in turn, evenly over time.
pub(super) fn fixed_rate_paces(chats: usize) -> Vec<Option<Pace>> {
    let share = |number: usize| Duration::from_secs_f64(number as f64 / FIXED_RATE as f64);
    (0..chats).map(|chat| Some(Pace::Every(share(chats), share(chat)))).collect()
}

/// A server with people in chats.
pub(super) struct Bench {
    pub(super) server: Server,
    people: Vec<SignedIn>,
    chats: Vec<Chat>,
}

impl Bench {
    pub(super) async fn prepare(server: Server, shape: Shape) -> anyhow::Result<Self> {
        let people = people::sign_up(&server.client, people::people(shape)).await?;
        let chats = people::chats(&people, shape).await?;
        Ok(Self { server, people, chats })
    }

    /// Everybody connects; those with a pace send, all others listen.
    pub(super) async fn measure(
        &self,
        paces: Vec<Option<Pace>>,
        share: Duration,
    ) -> anyhow::Result<Measured> {
        let sending: Vec<Option<(usize, Pace)>> = {
            let mut by_person = vec![None; self.people.len()];
            for (chat, pace) in paces.iter().enumerate() {
                if let Some(pace) = pace {
                    by_person[self.chats[chat].members[0]].get_or_insert((chat, *pace));
                }
            }
            by_person
        };
        let connects = stream::iter(&self.people).map(|person| load::connect(&person.client));
        let sockets: Vec<_> = connects.buffered(CONNECTS_AT_ONCE).try_collect().await?;
        let window = Window::lasting(share.saturating_sub(WARM_UP).max(WARM_UP));
        let stop = Arc::new(AtomicBool::new(false));
        let (mut senders, mut receivers) = (JoinSet::new(), JoinSet::new());
        for (socket, sending) in sockets.into_iter().zip(sending) {
            match sending {
                Some((chat, pace)) => {
                    senders.spawn(load::send(socket, self.chats[chat].id.clone(), pace, window));
                }
                None => {
                    receivers.spawn(load::receive(socket, window, Arc::clone(&stop)));
                }
            }
        }
        let usage = self.usage_within(window).await?;
        let acked = all(senders).await?;
        stop.store(true, Ordering::Relaxed);
        let delivered = all(receivers).await?;
        let seconds = window.until.duration_since(window.from).as_secs_f64();
        Ok(Measured { acked, delivered, usage, seconds })
    }

    /// What the server used while it was measured.
    async fn usage_within(&self, window: Window) -> anyhow::Result<Usage> {
        tokio::time::sleep_until(window.from).await;
        let (cpu, before) = (self.server.cpu(), self.server.counted().await?);
        tokio::time::sleep_until(window.until).await;
        let after = self.server.counted().await?;
        let cpu = cpu.and_then(|before| Some(self.server.cpu()?.saturating_sub(before)));
        Ok(Usage { cpu, counted: after.since(&before) })
    }
}

struct Usage {
    cpu: Option<Duration>,
    counted: Counted,
}

pub(super) struct Measured {
    pub(super) acked: Taken,
    pub(super) delivered: Taken,
    usage: Usage,
    pub(super) seconds: f64,
}

impl Measured {
    fn report(mut self, name: &str, report: &mut impl FnMut(&Figure)) {
        if self.acked.refused > 0 {
            eprintln!("note: {} sends were refused", self.acked.refused);
        }
        let (acked, delivered) = (self.acked.in_window as f64, self.delivered.in_window as f64);
        for (figure, taken) in [("acked", &mut self.acked), ("delivered", &mut self.delivered)] {
            let mut told = Figure::new(
                format!("chat_{figure}_{name}"),
                taken.in_window as f64 / self.seconds,
                "messages/s",
            );
            taken.micros.sort_unstable();
            (told.p50_ms, told.p99_ms) = (percentile(&taken.micros, 50), percentile(&taken.micros, 99));
            report(&told);
        }
        if let Some(cpu) = self.usage.cpu
            && acked > 0.0
        {
            let micros = cpu.as_secs_f64() * 1e6 / (acked + delivered);
            report(&Figure::new(format!("chat_cpu_{name}"), micros, "us/frame"));
            let Counted { calls, read_units, write_units, frames, writes } = self.usage.counted;
            report(&Figure::new(format!("chat_frames_per_write_{name}"), frames / writes.max(1.0), "frames"));
            // The design names the one that counts: under load.
            let name = if name == BUSIEST { String::new() } else { format!("_{name}") };
            report(&Figure::new(format!("calls_per_message{name}"), calls / acked, "calls"));
            report(&Figure::new(format!("read_units_per_message{name}"), read_units / acked, "units"));
            report(&Figure::new(format!("write_units_per_message{name}"), write_units / acked, "units"));
        }
    }
}

pub(super) fn percentile(sorted: &[u32], share: usize) -> Option<f64> {
    sorted.get(sorted.len() * share / 100).map(|micros| f64::from(*micros) / 1e3)
}

async fn all(mut tasks: JoinSet<anyhow::Result<Taken>>) -> anyhow::Result<Taken> {
    let mut sum = Taken::default();
    while let Some(taken) = tasks.join_next().await {
        sum.add(taken??);
    }
    Ok(sum)
}

/// Connects so many and leaves them alone.
pub async fn idle(
    file: &Path,
    connections: &Connections,
    count: usize,
    mut report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let server = Server::start(file, connections).await?;
    let people = people::sign_up(&server.client, count.div_ceil(CONNECTIONS_PER_USER)).await?;
    // Signing up leaves memory behind that sockets would then be counted as having for nothing.
    let server = server.restart(file, connections).await?;
    // Some come and go first, so that what is made once is not counted.
    let warm: Vec<_> = stream::iter(&people)
        .map(|person| load::connect(&person.client))
        .buffered(CONNECTS_AT_ONCE)
        .try_collect()
        .await?;
    drop(warm);
    settle().await;
    let before = server.resident_bytes();
    let sockets: Vec<_> = stream::iter(0..count)
        .map(|at| load::connect(&people[at % people.len()].client))
        .buffered(CONNECTS_AT_ONCE)
        .try_collect()
        .await?;
    settle().await;
    let Some((before, after)) = before.zip(server.resident_bytes()) else { bail!("the server has ended") };
    let kib = after.saturating_sub(before) as f64 / 1024.0 / sockets.len() as f64;
    report(&Figure::new("idle_kb", kib, "KB/connection"));
    drop(sockets);
    server.stop().await
}

/// Lets the server finish what connecting began.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_is_spread_over_the_senders() {
        let counts = |in_flight, chats| -> Vec<usize> {
            let count = |pace: Option<Pace>| match pace {
                Some(Pace::InFlight(count)) => count,
                _ => 0,
            };
            in_flight_paces(in_flight, chats).into_iter().map(count).collect()
        };
        assert_eq!(counts(1, 3), [1, 0, 0]);
        assert_eq!(counts(8, 3), [3, 3, 2]);
        assert_eq!(counts(256, 50).iter().sum::<usize>(), 256);
    }
}
