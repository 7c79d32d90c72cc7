//! `courant bench replay`: what a rebuild from history costs beside the least it could cost.
//!
//! Store and log of a new folder are filled with the same messages. Then `courant replay`'s own code rebuilds the search
//! index from the log and proves it equal to the store, and a pipeline scans the store as a rebuild does. The limits are
//! measured in turns with that, on the same rows and documents: Tantivy fed with ready documents, and a plain iteration of
//! the engine below. The median of the rounds counts; the peak of memory is that of the first, before any limit was there.

mod history;
mod scan;
mod search;

use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use courant_connectors::connections::Connected;
use courant_connectors::embedded::Engine;
use courant_connectors::search::IndexOptions;
use courant_pipeline::config::{Loaded, Style, Topology};
use courant_pipeline::runtime::Host;
use tokio::time::Instant;

use super::process::{OwnMemory, cpu_time, forget_peak, peak_megabytes};
use super::{Figure, ROUNDS, median};
use crate::app::open_host;
use crate::settings;
use history::History;

/// Documents that are committed together: what the stage prefers.
const COMMIT_EVERY: usize = 32_768;
const INDEX_MEMORY: u64 = 128 << 20;

/// Measures and reports each figure, in an empty folder.
pub async fn run(
    folder: &Path,
    messages: u64,
    lasting: Duration,
    mut report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let loaded = load(folder)?;
    let host = open_host(&loaded).await?;
    let connected = host.services.get::<Connected>().context("the pipelines use connections")?;
    let engine = Arc::clone(connected.engines().next().context("the connections are embedded")?);
    let history = History::fill(&connected, messages).await?;
    let bench = Bench { loaded, host, engine, history, folder };
    let measured = bench.measure(lasting / 2, &mut report).await;
    connected.close().await;
    measured
}

/// A filled folder.
struct Bench<'a> {
    loaded: Loaded,
    host: Host,
    engine: Arc<Engine>,
    history: History,
    folder: &'a Path,
}

impl Bench<'_> {
    async fn measure(&self, share: Duration, report: &mut impl FnMut(&Figure)) -> anyhow::Result<()> {
        let (mut rates, mut limits, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
        let (started, mut memory) = (Instant::now(), None);
        while rates.is_empty() || rates.len() < ROUNDS && started.elapsed() < share {
            let watch = Watch::begin()?;
            let rebuilt = search::rebuild(self).await?;
            memory.get_or_insert(watch.end()?);
            rates.push(rebuilt.built);
            proofs.push(rebuilt.proved);
            limits.push(search::feed(self)?);
        }
        let figure = Figure::new("replay_search", median(&mut rates), "records/s");
        report(&figure.against(median(&mut limits)));
        report_memory("replay_search", memory, report);
        report(&Figure::new("replay_prove", median(&mut proofs), "records/s"));

        let (mut rates, mut limits, mut costs) = (Vec::new(), Vec::new(), Vec::new());
        let (started, mut memory) = (Instant::now(), None);
        while rates.is_empty() || rates.len() < ROUNDS && started.elapsed() < share {
            let (watch, cpu_before) = (Watch::begin()?, cpu_time()?);
            rates.push(scan::scan(self).await?);
            let cpu = cpu_time()?.saturating_sub(cpu_before);
            costs.push(cpu.as_secs_f64() * 1e6 / self.history.messages as f64);
            memory.get_or_insert(watch.end()?);
            limits.push(scan::iterate(self)?);
        }
        let figure = Figure::new("replay_scan", median(&mut rates), "records/s");
        report(&figure.against(median(&mut limits)));
        report(&Figure::new("replay_scan_cpu", median(&mut costs), "us/record"));
        report_memory("replay_scan", memory, report);
        Ok(())
    }

    fn pipeline(&self, name: &str) -> &Topology {
        let found = self.loaded.topologies.iter().find(|topology| *topology.name == *name);
        found.expect("the pipelines are those of this file")
    }

    fn rate(&self, taken: Duration) -> f64 {
        self.history.messages as f64 / taken.as_secs_f64()
    }
}

/// The most memory of a round: of its own, and with files that are mapped.
#[derive(Clone, Copy)]
struct Memory {
    own: f64,
    peak: f64,
}

/// A round that is being watched.
struct Watch(OwnMemory);

impl Watch {
    fn begin() -> anyhow::Result<Self> {
        forget_peak()?;
        Ok(Self(OwnMemory::watch()))
    }

    fn end(self) -> anyhow::Result<Memory> {
        Ok(Memory { own: self.0.peak()?, peak: peak_megabytes()? })
    }
}

fn report_memory(of: &str, memory: Option<Memory>, report: &mut impl FnMut(&Figure)) {
    if let Some(Memory { own, peak }) = memory {
        report(&Figure::new(format!("{of}_own"), own, "MB"));
        report(&Figure::new(format!("{of}_peak"), peak, "MB"));
    }
}

fn index_options() -> IndexOptions {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    IndexOptions { threads: u32::try_from(cores).unwrap_or(1).min(4), memory: INDEX_MEMORY }
}

/// What a user's file would say, in a folder of its own.
fn load(folder: &Path) -> anyhow::Result<Loaded> {
    let path = |name: &str| serde_json::to_string(&folder.join(name));
    let IndexOptions { threads, memory } = index_options();
    let text = format!(
        r#"
connections.store = {{ kind = "embedded", path = {engine} }}
connections.log = {{ kind = "embedded", path = {engine} }}
connections.live = {{ kind = "embedded" }}
runtime.data_dir = {data}

[[pipeline]]
name = "search"
stage = [
    {{ kind = "kafka-consume", params = {{ topics = ["messages.persisted"], group = "search" }} }},
    {{ kind = "search-index", params = {{ threads = {threads}, memory = "{memory}" }} }},
]

[[pipeline]]
name = "scan"
stage = [{{ kind = "dynamo-scan" }}, {{ kind = "blackhole" }}]
"#,
        engine = path("engine")?,
        data = path("data")?,
    );
    // Nothing of the user's environment: it is about the user's data.
    let loaded = settings::loader().load_str("bench.toml", &text, std::iter::empty());
    loaded.map_err(|wrong| anyhow::anyhow!("{}", wrong.render(Style::Plain)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_small_history_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let mut figures = Vec::new();
        run(folder.path(), 500, Duration::ZERO, |figure| figures.push(figure.clone())).await.unwrap();
        let names: Vec<_> = figures.iter().map(|figure| &*figure.figure).collect();
        let expected = [
            "replay_search",
            "replay_search_own",
            "replay_search_peak",
            "replay_prove",
            "replay_scan",
            "replay_scan_cpu",
            "replay_scan_own",
            "replay_scan_peak",
        ];
        assert_eq!(names, expected);
        for figure in &figures {
            // so little takes less processor time than the system counts
            assert!(figure.value > 0.0 || &*figure.figure == "replay_scan_cpu", "{figure:?}");
            let is_compared = ["replay_search", "replay_scan"].contains(&&*figure.figure);
            assert_eq!(figure.ratio.is_some_and(|ratio| ratio > 0.0), is_compared, "{figure:?}");
        }
    }
}
