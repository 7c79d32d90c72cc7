//! From two samples to rates and latencies. Pure, so that it can be tested without a process or a terminal.

use std::collections::{BTreeMap, VecDeque};

use courant_pipeline::health::PipelineHealth;
use courant_pipeline::metrics as names;
use tokio::time::Instant;

use super::prometheus;

/// Samples in a sparkline: the width of a wide terminal.
pub(super) const HISTORY: usize = 240;

/// Names of each pipeline's stages, in the order of the file.
pub(super) type StageOrder = BTreeMap<String, Vec<String>>;

/// What the process said at one moment.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) health: Vec<PipelineHealth>,
    pub(super) metrics: Metrics,
}

/// Whose number it is: the stage is empty for a pipeline's own.
type Owner = (String, String);

/// A histogram: bounds, and what was counted up to each.
type Buckets = Vec<(f64, f64)>;

/// The metrics of one sample, added up over labels nobody looks at, such as an error's class.
#[derive(Default)]
pub(super) struct Metrics {
    values: BTreeMap<&'static str, BTreeMap<Owner, f64>>,
    buckets: BTreeMap<&'static str, BTreeMap<Owner, Buckets>>,
}

const VALUES: [&str; 7] = [
    names::READ,
    names::STAGE_IN,
    names::STAGE_OUT,
    names::STAGE_ERRORS,
    names::QUEUE_DEPTH,
    names::PARKED,
    names::CIRCUIT_OPEN,
];
const HISTOGRAMS: [&str; 2] = [names::RECORD_SECONDS, names::STAGE_SECONDS];

impl Metrics {
    pub(super) fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        for line in prometheus::parse(text) {
            let owner = || {
                let label = |name| line.label(name).unwrap_or_default().to_owned();
                (label("pipeline"), label("stage"))
            };
            if let Some(name) = VALUES.into_iter().find(|name| *name == line.name) {
                *metrics.values.entry(name).or_default().entry(owner()).or_default() += line.value;
            } else if let Some(name) = line.name.strip_suffix("_bucket")
                && let Some(name) = HISTOGRAMS.into_iter().find(|known| *known == name)
                && let Some(Ok(bound)) = line.label("le").map(str::parse)
            {
                let all = metrics.buckets.entry(name).or_default();
                all.entry(owner()).or_default().push((bound, line.value));
            }
        }
        for buckets in metrics.buckets.values_mut().flat_map(BTreeMap::values_mut) {
            buckets.sort_by(|(one, _), (two, _)| one.total_cmp(two));
        }
        metrics
    }

    fn value(&self, name: &str, owner: &Owner) -> f64 {
        self.values.get(name).and_then(|all| all.get(owner)).copied().unwrap_or_default()
    }

    fn buckets(&self, name: &str, owner: &Owner) -> &[(f64, f64)] {
        self.buckets.get(name).and_then(|all| all.get(owner)).map_or(&[], Vec::as_slice)
    }

    fn stages_of(&self, pipeline: &str) -> Vec<String> {
        let owners = self.values.get(names::STAGE_IN).into_iter().flat_map(BTreeMap::keys);
        owners.filter(|(name, _)| name == pipeline).map(|(_, stage)| stage.clone()).collect()
    }
}

/// A point of a latency distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Latency {
    pub(super) seconds: f64,
    /// It lies somewhere above the last bound, which is all that is known.
    pub(super) beyond: bool,
}

/// What flowed through a pipeline or a stage since the sample before.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Flow {
    pub(super) in_per_second: f64,
    pub(super) out_per_second: f64,
    pub(super) errors_per_second: f64,
    pub(super) p50: Option<Latency>,
    pub(super) p99: Option<Latency>,
}

pub(super) struct PipelineView {
    pub(super) health: PipelineHealth,
    pub(super) flow: Flow,
    pub(super) stages: Vec<StageView>,
    /// Records read a second, oldest first.
    pub(super) history: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct StageView {
    pub(super) name: String,
    pub(super) flow: Flow,
    pub(super) queue: u64,
    pub(super) parked: u64,
    pub(super) circuit_open: bool,
}

/// The latest sample, and what can be said of it.
#[derive(Default)]
pub(super) struct Model {
    last: Option<Sample>,
    history: BTreeMap<String, VecDeque<u64>>,
    pipelines: Vec<PipelineView>,
}

impl Model {
    pub(super) fn pipelines(&self) -> &[PipelineView] {
        &self.pipelines
    }

    /// Forgets the last sample: what happened since is not known, so it counts for no rate.
    pub(super) fn interrupt(&mut self) {
        self.last = None;
    }

    pub(super) fn observe(&mut self, sample: Sample, order: &StageOrder) {
        let change = Change { before: self.last.as_ref(), now: &sample };
        let mut flows: Vec<(Flow, Vec<StageView>)> = Vec::with_capacity(sample.health.len());
        for health in &sample.health {
            flows.push((change.pipeline(health), change.stages(&health.name, order)));
        }
        self.history.retain(|name, _| sample.health.iter().any(|health| health.name == *name));
        let known = self.last.is_some();
        self.pipelines = sample
            .health
            .iter()
            .zip(flows)
            .map(|(health, (flow, stages))| {
                let history = self.history.entry(health.name.clone()).or_default();
                if known {
                    history.push_back(whole(flow.in_per_second));
                }
                let surplus = history.len().saturating_sub(HISTORY);
                history.drain(..surplus);
                let history = history.iter().copied().collect();
                PipelineView { health: health.clone(), flow, stages, history }
            })
            .collect();
        self.last = Some(sample);
    }
}

/// Two samples; only one at the beginning.
struct Change<'a> {
    before: Option<&'a Sample>,
    now: &'a Sample,
}

impl Change<'_> {
    fn pipeline(&self, health: &PipelineHealth) -> Flow {
        let owner = (health.name.clone(), String::new());
        let before = |count: fn(&PipelineHealth) -> u64| {
            let health = self.before?.health.iter().find(|known| known.name == health.name)?;
            Some(count(health) as f64)
        };
        let read = |health: &PipelineHealth| health.read;
        let delivered = |health: &PipelineHealth| health.dispositions.delivered;
        let bad = |health: &PipelineHealth| health.dispositions.failed + health.dispositions.dead_lettered;
        Flow {
            in_per_second: self.per_second(before(read), read(health) as f64),
            out_per_second: self.per_second(before(delivered), delivered(health) as f64),
            errors_per_second: self.per_second(before(bad), bad(health) as f64),
            p50: self.quantile(names::RECORD_SECONDS, &owner, 0.5),
            p99: self.quantile(names::RECORD_SECONDS, &owner, 0.99),
        }
    }

    /// In the order of the file. The process keeps the metrics of stages that a reload removed; they are not
    /// in the file any more and are left out.
    fn stages(&self, pipeline: &str, order: &StageOrder) -> Vec<StageView> {
        let mut names = self.now.metrics.stages_of(pipeline);
        if let Some(order) = order.get(pipeline) {
            names = order.iter().filter(|stage| names.contains(stage)).cloned().collect();
        }
        names.into_iter().map(|stage| self.stage(pipeline, stage)).collect()
    }

    fn stage(&self, pipeline: &str, stage: String) -> StageView {
        let owner = (pipeline.to_owned(), stage);
        let rate = |name| {
            let before = self.before.map(|sample| sample.metrics.value(name, &owner));
            self.per_second(before, self.now.metrics.value(name, &owner))
        };
        let flow = Flow {
            in_per_second: rate(names::STAGE_IN),
            out_per_second: rate(names::STAGE_OUT),
            errors_per_second: rate(names::STAGE_ERRORS),
            p50: self.quantile(names::STAGE_SECONDS, &owner, 0.5),
            p99: self.quantile(names::STAGE_SECONDS, &owner, 0.99),
        };
        let gauge = |name| self.now.metrics.value(name, &owner);
        StageView {
            flow,
            queue: whole(gauge(names::QUEUE_DEPTH)),
            parked: whole(gauge(names::PARKED)),
            circuit_open: gauge(names::CIRCUIT_OPEN) > 0.0,
            name: owner.1,
        }
    }

    fn per_second(&self, before: Option<f64>, now: f64) -> f64 {
        let (Some(before), Some(sample)) = (before, self.before) else { return 0.0 };
        let seconds = self.now.at.saturating_duration_since(sample.at).as_secs_f64();
        if seconds > 0.0 { grown(before, now) / seconds } else { 0.0 }
    }

    /// Of what was measured between the samples, found within its bucket by proportion.
    fn quantile(&self, name: &str, owner: &Owner, quantile: f64) -> Option<Latency> {
        let before = self.before?.metrics.buckets(name, owner);
        let now = self.now.metrics.buckets(name, owner);
        let grown: Vec<(f64, f64)> = now
            .iter()
            .map(|(bound, count)| {
                let earlier = before
                    .iter()
                    .find(|(known, _)| known.total_cmp(bound).is_eq())
                    .map_or(0.0, |(_, count)| *count);
                (*bound, grown(earlier, *count))
            })
            .collect();
        quantile_of(&grown, quantile)
    }
}

/// A counter that fell was started again with its process.
fn grown(before: f64, now: f64) -> f64 {
    if now >= before { now - before } else { now }
}

fn quantile_of(buckets: &[(f64, f64)], quantile: f64) -> Option<Latency> {
    let total = buckets.last()?.1;
    if total <= 0.0 {
        return None;
    }
    let rank = quantile * total;
    let at = buckets.iter().position(|(_, count)| *count >= rank)?;
    let (lower, below) = at.checked_sub(1).map_or((0.0, 0.0), |previous| buckets[previous]);
    let (upper, count) = buckets[at];
    if upper.is_infinite() {
        return Some(Latency { seconds: lower, beyond: true });
    }
    let part = if count > below { (rank - below) / (count - below) } else { 1.0 };
    Some(Latency { seconds: lower + (upper - lower) * part, beyond: false })
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates; gauges are small"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
