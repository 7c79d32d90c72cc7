//! What a stage kind tells about itself: one [`StageSpec`] is its registration, documentation, schema and factory.
//!
//! A kind's config struct builds the stage; its doc comments are the user's documentation. `pipelines.toml`
//! names kinds, `courant stages` lists them, the JSON Schema and the reference page are made from them.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;

use crate::config::BatchLimits;
use crate::derived::Derived;
use crate::intake::WayIn;
use crate::services::Services;
use crate::stage::{Source, Stage};

/// Where in a pipeline a kind may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Source,
    Transform,
    Sink,
}

impl Role {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Transform => "transform",
            Self::Sink => "sink",
        }
    }
}

/// The kind of record on a wire, by name: `json`, `command`, `message-event`.
pub type RecordKind = &'static str;

/// Any JSON document.
pub const JSON: RecordKind = "json";
/// Records of a kind not known before they are read, such as dead letters; fits every stage.
pub const ANY: RecordKind = "any";

/// What a stage accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Sources take nothing.
    Nothing,
    /// Every payload has a JSON form, so a generic stage takes all.
    Any,
    Only(&'static [RecordKind]),
}

/// What a stage hands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gives {
    /// Sinks give nothing.
    Nothing,
    /// Whatever it took.
    Same,
    Kind(RecordKind),
}

/// What running a stage twice on a record does to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Nothing outside the pipeline changes.
    Pure,
    /// The same state results.
    IdempotentWrite,
    /// Somebody sees it twice.
    ExternalEffect,
}

impl Effect {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::IdempotentWrite => "idempotent-write",
            Self::ExternalEffect => "external-effect",
        }
    }
}

/// The levels of authority; see `docs/ARCHITECTURE.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The truth.
    Store,
    /// What happened.
    Log,
    /// Ephemeral.
    Live,
}

impl Level {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Log => "log",
            Self::Live => "live",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Looks up by key, or reads a topic.
    Read,
    /// Reads a whole table.
    Scan,
    /// Follows a table's changes.
    Stream,
    Write,
    /// Writes a copy of something another level has the authority over.
    Fill,
    /// Keeps its own places there, which are nobody's data.
    Keep,
}

impl Mode {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Scan => "scans",
            Self::Stream => "follows",
            Self::Write => "writes",
            Self::Fill => "fills",
            Self::Keep => "keeps places in",
        }
    }
}

/// One table, topic or key family that a stage touches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Access {
    pub level: Level,
    pub mode: Mode,
    pub name: String,
}

/// What building a stage may look at. Building does no I/O.
pub struct BuildContext<'a> {
    pub pipeline: &'a str,
    pub stage: &'a str,
    pub services: &'a Services,
}

/// Something wrong with a stage's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key below `params`, such as `expr` or `routes.errors`.
    pub key: String,
    /// Byte offset inside the key's string value, for errors in an expression.
    pub offset: Option<usize>,
    pub message: String,
    pub help: Option<String>,
}

impl Problem {
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), offset: None, message: message.into(), help: None }
    }

    #[must_use]
    pub fn at(mut self, offset: usize) -> Self {
        self.offset = Some(offset);
        self
    }

    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// The working part of a built stage.
pub enum Part {
    Source(Box<dyn Source>),
    Stage(Arc<dyn Stage>),
}

/// What stands for keys that a file leaves out, for kinds that the usual values do not suit, such as one that pays for
/// each call and not for each record.
#[derive(Debug, Clone, Copy, Default)]
pub struct Preferences {
    pub lanes: Option<NonZeroU16>,
    pub batch: BatchLimits,
    pub buffer: Option<NonZeroU32>,
}

/// A stage ready to be opened, and what it declares.
pub struct Built {
    pub part: Part,
    pub access: Vec<Access>,
    /// Names of the outputs, for stages with more than one; `input = "<stage>.<output>"` refers to them.
    pub outputs: Vec<String>,
    /// Records may leave with another key than they came with, and so belong in another lane.
    pub rekeys: bool,
    /// Records it is given at a time at the most, whatever its `batch` says.
    pub max_batch: Option<NonZeroU32>,
    /// How it is best run where the file says nothing.
    pub prefers: Preferences,
    /// It works in one lane only.
    pub in_one_lane: bool,
    /// So do the stages before it, back to the source.
    pub in_order: bool,
    /// The store that a sink makes from what it is given, if it can be made again from history.
    pub derives: Option<Arc<dyn Derived>>,
    /// The dead-letter queue that a source reads to its end; letters of the same pipeline must not go there.
    pub drains: Option<String>,
    /// What a source takes from outside.
    pub serves: Vec<WayIn>,
}

impl Built {
    pub fn source(source: impl Source + 'static) -> Self {
        Self::new(Part::Source(Box::new(source)))
    }

    pub fn stage(stage: impl Stage + 'static) -> Self {
        Self::new(Part::Stage(Arc::new(stage)))
    }

    fn new(part: Part) -> Self {
        Self {
            part,
            access: Vec::new(),
            outputs: Vec::new(),
            rekeys: false,
            max_batch: None,
            prefers: Preferences::default(),
            in_one_lane: false,
            in_order: false,
            derives: None,
            drains: None,
            serves: Vec::new(),
        }
    }

    #[must_use]
    pub fn touches(mut self, level: Level, mode: Mode, name: impl Into<String>) -> Self {
        self.access.push(Access { level, mode, name: name.into() });
        self
    }

    /// Limits what the stage is given at a time, for stages that a large batch would hold up.
    #[must_use]
    pub fn max_batch(mut self, records: NonZeroU32) -> Self {
        self.max_batch = Some(records);
        self
    }

    /// Says how the stage is best run where the file says nothing.
    #[must_use]
    pub fn prefers(mut self, preferences: Preferences) -> Self {
        self.prefers = preferences;
        self
    }

    /// Declares that the stage keeps one state for all keys: it has one lane, and a file that says otherwise is wrong.
    #[must_use]
    pub fn in_one_lane(mut self) -> Self {
        self.in_one_lane = true;
        self
    }

    /// Declares that the stage needs the records of a partition in the order they were read: it and every stage before it
    /// have one lane. A record that waits for a retry still comes later.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        (self.in_one_lane, self.in_order) = (true, true);
        self
    }

    /// Declares that the stage may change keys.
    #[must_use]
    pub fn rekeys(mut self, rekeys: bool) -> Self {
        self.rekeys = rekeys;
        self
    }

    #[must_use]
    pub fn outputs(mut self, outputs: Vec<String>) -> Self {
        self.outputs = outputs;
        self
    }

    /// Declares that what the stage writes is a store that can be rebuilt and compared.
    #[must_use]
    pub fn derives(mut self, store: Arc<dyn Derived>) -> Self {
        self.derives = Some(store);
        self
    }

    #[must_use]
    pub fn drains(mut self, queue: impl Into<String>) -> Self {
        self.drains = Some(queue.into());
        self
    }

    /// Declares the commands that a source takes at a door.
    #[must_use]
    pub fn serves(mut self, door: &'static str, commands: &[String]) -> Self {
        self.serves = commands.iter().map(|command| WayIn { door, command: command.clone() }).collect();
        self
    }
}

/// A kind's parameters: read from TOML, documented by their doc comments, and the stage's factory.
pub trait StageConfig: DeserializeOwned + JsonSchema {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>>;
}

/// One stage kind. See the module's docs.
pub struct StageSpec {
    pub kind: &'static str,
    pub role: Role,
    pub takes: Takes,
    pub gives: Gives,
    pub effect: Effect,
    /// One sentence for lists.
    pub summary: &'static str,
    /// A `[[pipeline.stage]]` table; a test builds it.
    pub example: &'static str,
    pub schema: fn() -> Schema,
    pub build: fn(serde_json::Value, &BuildContext<'_>) -> Result<Built, Vec<Problem>>,
}

impl StageSpec {
    pub const fn source<C: StageConfig>(kind: &'static str, gives: RecordKind) -> Self {
        Self::new::<C>(kind, Role::Source, Takes::Nothing, Gives::Kind(gives))
    }

    pub const fn transform<C: StageConfig>(kind: &'static str, takes: Takes, gives: Gives) -> Self {
        Self::new::<C>(kind, Role::Transform, takes, gives)
    }

    pub const fn sink<C: StageConfig>(kind: &'static str, takes: Takes) -> Self {
        Self::new::<C>(kind, Role::Sink, takes, Gives::Nothing)
    }

    const fn new<C: StageConfig>(kind: &'static str, role: Role, takes: Takes, gives: Gives) -> Self {
        Self {
            kind,
            role,
            takes,
            gives,
            effect: Effect::Pure,
            summary: "",
            example: "",
            schema: schema_of::<C>,
            build: build_from_json::<C>,
        }
    }

    #[must_use]
    pub const fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    #[must_use]
    pub const fn summary(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    #[must_use]
    pub const fn example(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }
}

fn schema_of<C: JsonSchema>() -> Schema {
    schemars::schema_for!(C)
}

fn build_from_json<C: StageConfig>(
    params: serde_json::Value,
    context: &BuildContext<'_>,
) -> Result<Built, Vec<Problem>> {
    let config: C =
        serde_json::from_value(params).map_err(|error| vec![Problem::new("", error.to_string())])?;
    config.build(context)
}

/// The kinds a process knows: slices, so that a kind can be found by searching for its name.
#[derive(Clone, Copy)]
pub struct Registry(pub &'static [&'static StageSpec]);

impl Registry {
    /// A kind may stand first and elsewhere with different meanings: `file` reads there and writes here.
    pub fn find(self, kind: &str, place: Place) -> Option<&'static StageSpec> {
        self.of_kind(kind).find(|spec| place.suits(spec.role))
    }

    pub fn of_kind(self, kind: &str) -> impl Iterator<Item = &'static StageSpec> {
        self.0.iter().copied().filter(move |spec| spec.kind == kind)
    }
}

/// Whether a stage starts its pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    First,
    Later,
}

impl Place {
    pub fn suits(self, role: Role) -> bool {
        (role == Role::Source) == (self == Self::First)
    }
}
