//! Which stages run, and what they read.
//!
//! A rebuild is the pipeline itself with another source: nothing of a stage's work is done anywhere else. What a stage
//! would do to others is decided here, before anything is made: effects that somebody would see again are refused unless
//! a person names the stage, and a sink that neither derives a store nor is without effects is refused with the reason.
//! What is allowed happens once: a comparison and a trial run the same stages without any effects. A pipeline that keeps no
//! store is run for its effects alone, if they are allowed.

use std::num::NonZeroU32;
use std::sync::Arc;

use courant_connectors::log::Topic;
use courant_connectors::model::Timestamp;
use courant_connectors::model::topics::messages_persisted;
use courant_pipeline::config::{StageNode, Topology, did_you_mean};
use courant_pipeline::derived::Derived;
use courant_pipeline::spec::{Effect, Level, Mode, Role};
use courant_pipeline::units::Span;
use courant_pipeline::{Services, StageSpec};
use courant_stages::sinks::{blackhole, parquet_write};
use courant_stages::sources::{dynamo_scan, kafka_consume, kafka_read};
use serde_json::{Value, json};

use super::receipt::Named;
use super::request::{From, Pace, Request};
use super::{Error, Result, yielding};

/// A pipeline that can be rebuilt.
pub(super) struct Plan {
    pub(super) topology: Topology,
    pub(super) topics: Vec<Topic>,
    /// The consumer group of the live one.
    pub(super) group: String,
    pub(super) sinks: Vec<DerivedSink>,
}

/// A sink and its store.
#[derive(Clone)]
pub(super) struct DerivedSink {
    pub(super) stage: Arc<str>,
    pub(super) store: Arc<dyn Derived>,
    /// The stage before it that has effects. What it should hold cannot be told without having them again.
    pub(super) behind: Option<Arc<str>>,
}

/// What is read in place of the pipeline's own source.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum History<'a> {
    /// The log, from these offsets up to those.
    Log { start: &'a Named, end: &'a Named },
    /// The store, and then the log from some time on up to these offsets. What was published behind a chosen end is not
    /// wanted of the store.
    Scan { join: Option<Timestamp>, published_before: Option<Timestamp>, end: &'a Named },
    /// The store, as it was when the log was at these offsets, which was then.
    Store { end: &'a Named, at: Timestamp },
}

impl Plan {
    pub(super) fn of(topologies: &[Topology], services: &Services, request: &Request) -> Result<Self> {
        let topology = find(topologies, &request.pipeline)?;
        let (topics, group) = source(topology)?;
        let built = topology.build(services).map_err(|problems| {
            let said: Vec<_> = problems.into_iter().map(|problem| problem.message).collect();
            Error::NotRebuilt { pipeline: request.pipeline.clone(), reason: said.join("; ") }
        })?;
        for name in request.suppress.iter().chain(&request.allow) {
            known_stage(topology, name)?;
        }
        let mut planned = topology.clone();
        let mut sinks = Vec::new();
        for (index, built) in built.into_iter().enumerate().skip(1) {
            let node = &mut planned.stages[index];
            match built.derives {
                Some(store) if !request.suppress.iter().any(|name| **name == *node.name) => {
                    sinks.push(DerivedSink { stage: Arc::clone(&node.name), store, behind: None });
                }
                Some(_) => return Err(emptied(request, &node.name)),
                None => settle_effect(node, request)?,
            }
        }
        cut_off(&mut planned);
        for sink in &mut sinks {
            let index = planned.index_of(&sink.stage).ok_or_else(|| emptied(request, &sink.stage))?;
            sink.behind = effect_before(&planned, index);
        }
        if sinks.is_empty() && !has_effects(&planned) {
            let reason = "none of its sinks keeps a store that can be made again; see `courant stages table`";
            return Err(Error::NotRebuilt { pipeline: request.pipeline.clone(), reason: reason.to_owned() });
        }
        Ok(Self { topology: planned, topics, group, sinks })
    }

    /// Whether the store has everything that the topics tell of.
    pub(super) fn can_scan(&self) -> bool {
        matches!(&self.topics[..], [only] if only.as_str() == messages_persisted::NAME)
    }

    pub(super) fn check(&self, from: &From) -> Result<()> {
        if *from == From::Scan && !self.can_scan() {
            let topics: Vec<_> = self.topics.iter().map(Topic::as_str).collect();
            let reason = format!(
                "it reads {}, and the store can be scanned for `{}` only; use --from oldest",
                topics.join(", "),
                messages_persisted::NAME
            );
            return Err(Error::NotRebuilt { pipeline: self.topology.name.to_string(), reason });
        }
        Ok(())
    }

    /// Whether it makes a store, and does not only have the effects that were allowed.
    pub(super) fn makes_a_store(&self) -> bool {
        !self.sinks.is_empty()
    }

    /// The pipeline's stages behind another source.
    pub(super) fn reading(&self, history: &History<'_>, segments: NonZeroU32, pace: Pace) -> Topology {
        let (spec, mut params): (&'static StageSpec, Value) = match history {
            History::Log { start, end } => {
                let topics: Vec<_> = self.topics.iter().map(Topic::as_str).collect();
                let params = json!({"topics": topics, "from": {"offsets": start}, "to": {"offsets": end}});
                (&kafka_read::SPEC, params)
            }
            History::Scan { join, published_before: before, end } => {
                let join = join.map(|time| json!({"time": time}));
                let then = json!({"offsets": end});
                let params =
                    json!({"segments": segments, "then": then, "join": join, "published_before": before});
                (&dynamo_scan::SPEC, params)
            }
            History::Store { end, at } => {
                let until = json!({"offsets": end, "at": at});
                (&dynamo_scan::SPEC, json!({"segments": segments, "until": until}))
            }
        };
        if let Some(rate) = pace.rate {
            params["rate"] = json!(rate);
        }
        let (spec, params) = match pace.yield_over {
            Some(over) => {
                let over = Span(over).to_string();
                (&yielding::SPEC, json!({"kind": spec.kind, "params": params, "over": over}))
            }
            None => (spec, params),
        };
        let source = self.topology.source();
        let node = StageNode { spec, params, outputs: Vec::new(), access: Vec::new(), ..source.clone() };
        let mut topology = self.topology.clone();
        topology.stages[0] = node;
        topology
    }

    /// The same, with each derived sink replaced by another kind of sink, and no effects at all.
    pub(super) fn with_sinks(&self, mut topology: Topology, spec: &'static StageSpec) -> Topology {
        for node in topology.stages.iter_mut().skip(1) {
            if self.sinks.iter().any(|sink| sink.stage == node.name) {
                (node.spec, node.params) = (spec, json!({}));
            } else if node.spec.role == Role::Sink {
                end_at(node);
            }
        }
        without_effects(topology)
    }

    /// The sinks that can be compared.
    pub(super) fn compared(&self) -> impl Iterator<Item = &DerivedSink> {
        self.sinks.iter().filter(|sink| sink.behind.is_none())
    }
}

/// The same stages up to those that somebody would see something of.
pub(super) fn without_effects(mut topology: Topology) -> Topology {
    let stages = topology.stages.iter_mut().skip(1);
    stages.filter(|node| node.spec.effect == Effect::ExternalEffect).for_each(end_at);
    cut_off(&mut topology);
    topology
}

/// Whether somebody would see something of it; what nobody allowed was refused.
fn has_effects(topology: &Topology) -> bool {
    topology.stages.iter().skip(1).any(|node| node.spec.effect == Effect::ExternalEffect)
}

/// The nearest stage with effects on the way to another.
fn effect_before(topology: &Topology, index: usize) -> Option<Arc<str>> {
    let before = topology.stages[index].input?.stage;
    let node = &topology.stages[before];
    if node.spec.effect == Effect::ExternalEffect {
        return Some(Arc::clone(&node.name));
    }
    effect_before(topology, before)
}

fn emptied(request: &Request, stage: &str) -> Error {
    let reason = format!(
        "its stage `{stage}` keeps a store that would go live without any records; leave out the --suppress that ends \
         them"
    );
    Error::NotRebuilt { pipeline: request.pipeline.clone(), reason }
}

fn find<'t>(topologies: &'t [Topology], pipeline: &str) -> Result<&'t Topology> {
    topologies.iter().find(|topology| *topology.name == *pipeline).ok_or_else(|| {
        let names: Vec<&str> = topologies.iter().map(|topology| &*topology.name).collect();
        let help = did_you_mean(pipeline, &names).unwrap_or_else(|| "see `courant graph`".to_owned());
        Error::UnknownPipeline { pipeline: pipeline.to_owned(), help }
    })
}

fn known_stage(topology: &Topology, stage: &str) -> Result<()> {
    if topology.index_of(stage).is_some_and(|index| index > 0) {
        return Ok(());
    }
    let names: Vec<&str> = topology.stages.iter().skip(1).map(|node| &*node.name).collect();
    let help = did_you_mean(stage, &names).unwrap_or_default();
    let (pipeline, stage) = (topology.name.to_string(), stage.to_owned());
    Err(Error::UnknownStage { pipeline, stage, help })
}

/// The topics that the live one reads, and its group.
fn source(topology: &Topology) -> Result<(Vec<Topic>, String)> {
    let node = topology.source();
    if node.spec.kind != kafka_consume::SPEC.kind {
        let pipeline = topology.name.to_string();
        let reason = format!(
            "its source is `{}`, and history is what the log and the store hold: it has to read with `{}`",
            node.spec.kind,
            kafka_consume::SPEC.kind
        );
        return Err(Error::NotRebuilt { pipeline, reason });
    }
    let topics = node.params["topics"].as_array().into_iter().flatten();
    let topics = topics.filter_map(Value::as_str).map(Topic::from).collect();
    let group = node.params["group"].as_str().unwrap_or(&topology.name);
    Ok((topics, group.to_owned()))
}

/// Lets a stage be, puts an end to its records, or refuses.
fn settle_effect(node: &mut StageNode, request: &Request) -> Result<()> {
    let named = |names: &[String]| names.iter().any(|name| **name == *node.name);
    if named(&request.suppress) {
        end_at(node);
        return Ok(());
    }
    let writes_truth = node.access.iter().any(|access| {
        matches!((access.level, access.mode), (Level::Store | Level::Log, Mode::Write | Mode::Fill))
    });
    let (pipeline, stage) = (request.pipeline.clone(), node.name.to_string());
    match node.spec.effect {
        Effect::ExternalEffect if !named(&request.allow) => Err(Error::Effect { pipeline, stage }),
        Effect::IdempotentWrite if node.spec.kind == parquet_write::SPEC.kind => {
            Err(Error::NoKey { pipeline, stage })
        }
        Effect::IdempotentWrite if node.spec.role == Role::Sink || writes_truth => {
            let kind = node.spec.kind.to_owned();
            Err(Error::NotDerived { pipeline, stage, kind })
        }
        _ => Ok(()),
    }
}

/// Puts an end to records where a stage was.
fn end_at(node: &mut StageNode) {
    (node.spec, node.params, node.outputs) = (&blackhole::SPEC, json!({}), Vec::new());
}

/// Leaves out what comes behind a stage that was made an end.
fn cut_off(topology: &mut Topology) {
    let mut moved_to: Vec<Option<usize>> = vec![None; topology.stages.len()];
    let mut kept: Vec<StageNode> = Vec::new();
    for (index, node) in topology.stages.iter().enumerate() {
        let input = match node.input {
            None => None,
            Some(input) => match moved_to[input.stage] {
                Some(stage) if kept[stage].spec.role != Role::Sink => {
                    Some(courant_pipeline::config::Input { stage, ..input })
                }
                _ => continue,
            },
        };
        moved_to[index] = Some(kept.len());
        kept.push(StageNode { input, ..node.clone() });
    }
    topology.reply_after = None;
    topology.stages = kept;
}
