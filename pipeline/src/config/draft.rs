//! A pipeline on its way to a topology: each stage looked at on its own.
//!
//! Whatever can be known about a stage is found out although another part of the file is wrong, so that all
//! mistakes show at once. What is not known is `None`, and later checks keep silent about it rather than
//! guess.

use serde_json::Value as Json;

use super::entry::Plane;
use super::problem;
use super::report::Report;
use super::source::{Sources, Spot};
use super::suggest::{self, quote};
use super::tree::Node;
use super::walk::{At, Walker};
use crate::services::Services;
use crate::spec::{BuildContext, Built, Place, Problem, Registry, Role, StageSpec};
use crate::units::Span;

/// Far more than anyone can follow; wiring compares each stage with those before it.
const MOST_STAGES: usize = 1000;

/// What checks of pipelines work with.
pub(super) struct Check<'c> {
    pub(super) registry: Registry,
    pub(super) services: &'c Services,
    pub(super) sources: &'c Sources,
    /// The schema of one `[[pipeline]]`.
    pub(super) schema: &'c Json,
    pub(super) report: &'c mut Report,
}

pub(super) struct Draft<'n> {
    pub(super) node: &'n Node,
    pub(super) at: At,
    /// None if it has none that can be used.
    pub(super) name: Option<&'n str>,
    pub(super) plane: Option<Plane>,
    /// The table without what does not fit the schema.
    pub(super) checked: Json,
    pub(super) stages: Vec<DraftStage<'n>>,
}

pub(super) struct DraftStage<'n> {
    pub(super) node: &'n Node,
    pub(super) at: At,
    /// Its name, or its kind, or its place if it has neither.
    pub(super) name: String,
    /// None if the kind does not exist or does not fit the place.
    pub(super) spec: Option<&'static StageSpec>,
    /// None if the parameters are wrong.
    pub(super) built: Option<Built>,
}

impl DraftStage<'_> {
    /// Where the user said what this stage is.
    pub(super) fn spot(&self) -> &Spot {
        self.node.get("kind").map_or(&self.node.at, |kind| &kind.at)
    }
}

impl<'n> Draft<'n> {
    pub(super) fn read(node: &'n Node, index: usize, check: &mut Check<'_>) -> Self {
        let name = node.get("name").and_then(Node::text).filter(|name| is_name(name));
        // The name is the user's and says nothing about secrets, so it is no key of the path.
        let at =
            name.map_or_else(|| At::new("pipeline").index(index), |name| At::new(format!("pipeline.{name}")));
        let checked = Walker::new(check.schema, check.report).check(node, &at);
        if let (None, Some(written)) = (name, node.get("name")) {
            refuse_name(written, "pipeline", &at, check.report);
        }
        let plane = match checked.get("plane") {
            Some(plane) => serde_json::from_value(plane.clone()).ok(),
            None => node.get("plane").is_none().then(Plane::default),
        };
        let written = node.get("stage").map_or(&[][..], Node::elements);
        let at_stages = at.key("stage");
        if written.len() > MOST_STAGES {
            let message = format!("a pipeline has at most {MOST_STAGES} stages");
            check.report.error(&written[MOST_STAGES].at, &at_stages.path, message, None);
        }
        let stages = written.iter().take(MOST_STAGES).enumerate().map(|(index, node)| {
            let position = if index == 0 { Place::First } else { Place::Later };
            DraftStage::read(node, at_stages.index(index), position, name.unwrap_or_default(), check)
        });
        let stages: Vec<_> = stages.collect();
        if stages.is_empty()
            && let Some(written) = checked.get("stage").and(node.get("stage"))
        {
            let message = "a pipeline needs at least a source".to_owned();
            check.report.error(&written.at, &at_stages.path, message, None);
        }
        Self { node, at, name, plane, checked, stages }
    }
}

pub(super) const NAME_HELP: &str =
    "at most 64 lower-case letters, digits, `.`, `_` and `-`, a letter or digit first";

/// `[a-z0-9][a-z0-9._-]{0,63}`: safe as a file name, a metric label and part of a topic.
pub(super) fn is_name(text: &str) -> bool {
    text.len() <= 64
        && text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
}

fn refuse_name(written: &Node, of: &str, at: &At, report: &mut Report) {
    if let Some(text) = written.text() {
        let message = format!("{} cannot be the name of a {of}", quote(text));
        report.error(&written.at, &at.key("name").path, message, Some(NAME_HELP.to_owned()));
    }
}

/// Without a pause, failed work would be tried again as fast as the machine can.
fn refuse_no_pause(node: &Node, at: &At, report: &mut Report) {
    let Some(retry) = node.get("retry") else { return };
    for key in ["initial", "max"] {
        let written = retry.get(key);
        let pause = written.and_then(Node::text).and_then(|text| text.parse::<Span>().ok());
        if let (Some(written), Some(pause)) = (written, pause)
            && pause < SHORTEST_PAUSE
        {
            let message = format!("`{key}` is too short: there must be a pause between two tries");
            let help = Some(format!("at least {SHORTEST_PAUSE}"));
            report.error(&written.at, &at.key("retry").key(key).path, message, help);
        }
    }
}

/// The clock of timers goes in whole milliseconds.
const SHORTEST_PAUSE: Span = Span::millis(1);

impl<'n> DraftStage<'n> {
    fn read(node: &'n Node, at: At, place: Place, pipeline: &str, check: &mut Check<'_>) -> Self {
        let kind = node.get("kind").and_then(Node::text);
        let name = node.get("name").and_then(Node::text);
        if let (Some(name), Some(written)) = (name, node.get("name")) {
            if !is_name(name) {
                refuse_name(written, "stage", &at, check.report);
            } else if name.contains('.') {
                let message = format!("{} cannot be the name of a stage", quote(name));
                let help = "a dot stands between a stage and its output".to_owned();
                check.report.error(&written.at, &at.key("name").path, message, Some(help));
            }
        }
        refuse_no_pause(node, &at, check.report);
        let mut stage = Self {
            node,
            name: name.or(kind).map_or_else(|| at.path.clone(), str::to_owned),
            at,
            spec: kind.and_then(|kind| check.registry.find(kind, place)),
            built: None,
        };
        if let Some(kind) = kind {
            if stage.spec.is_none() {
                stage.refuse_kind(kind, place, check);
            }
            // Out of place it still has parameters that can be wrong.
            if let Some(spec) = stage.spec.or_else(|| check.registry.of_kind(kind).next()) {
                stage.built = stage.build(spec, pipeline, check);
            }
        }
        stage
    }

    fn refuse_kind(&self, kind: &str, place: Place, check: &mut Check<'_>) {
        let fitting = || check.registry.0.iter().filter(|spec| place.suits(spec.role)).map(|spec| spec.kind);
        let (message, help) = match (check.registry.of_kind(kind).next(), place) {
            (Some(spec), Place::First) => {
                let role = spec.role.name();
                (format!("a pipeline starts with a source, and `{kind}` is a {role}"), None)
            }
            (Some(_), Place::Later) => {
                let help = "start another `[[pipeline]]` with it".to_owned();
                (format!("`{kind}` is a source and can only be the first stage"), Some(help))
            }
            (None, _) => {
                let near = suggest::nearest(kind, fitting());
                let help = near.map_or_else(
                    || format!("`courant stages` lists the {}", sort_of(place)),
                    |near| format!("did you mean `{near}`?"),
                );
                (format!("unknown stage kind {}", quote(kind)), Some(help))
            }
        };
        check.report.error(self.spot(), &self.at.key("kind").path, message, help);
    }

    /// Checks the parameters and builds the stage; none if anything was wrong.
    fn build(&self, spec: &StageSpec, pipeline: &str, check: &mut Check<'_>) -> Option<Built> {
        let absent = Node::empty_table(self.node.at.clone());
        let node = self.node.get("params").unwrap_or(&absent);
        let at = self.at.key("params");
        if node.type_name() != "object" {
            return None; // reported with the stage's own keys
        }
        let before = check.report.errors();
        let schema = (spec.schema)().to_value();
        let params = Walker::new(&schema, check.report).check(node, &at);
        let clean = check.report.errors() == before;
        let context = BuildContext { pipeline, stage: &self.name, services: check.services };
        match (spec.build)(params, &context) {
            Ok(built) => clean.then_some(built),
            Err(mut problems) => {
                if !clean {
                    // Without the wrong keys other complaints may be false; a place inside a text is not.
                    problems.retain(|problem: &Problem| problem.offset.is_some());
                }
                problem::report_all(problems, node, &at, check.sources, check.report);
                None
            }
        }
    }

    pub(super) fn role(&self) -> Option<Role> {
        self.spec.map(|spec| spec.role)
    }
}

fn sort_of(place: Place) -> &'static str {
    match place {
        Place::First => "sources",
        Place::Later => "transforms and sinks",
    }
}
