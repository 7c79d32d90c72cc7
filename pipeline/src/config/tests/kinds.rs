//! Stage kinds that do nothing but declare.

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::config::{BatchLimits, Loader, Section};
use crate::error::StageError;
use crate::services::Services;
use crate::spec::{
    BuildContext, Built, Effect, Gives, JSON, Level, Mode, Preferences, Problem, Registry, StageConfig,
    StageSpec, Takes,
};
use crate::stage::{Positions, Read, Source, Stage};
use crate::units::{Size, Span};

struct Nothing;

#[async_trait]
impl Source for Nothing {
    fn identity(&self) -> String {
        "nothing".to_owned()
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        Ok(())
    }

    async fn read(&mut self, _: usize) -> Result<Read, StageError> {
        Ok(Read::End)
    }
}

#[async_trait]
impl Stage for Nothing {
    async fn process(&self, _: &mut Batch) -> Result<(), StageError> {
        Ok(())
    }
}

/// One of those who share what changes in a table.
struct Following(String);

#[async_trait]
impl Source for Following {
    fn identity(&self) -> String {
        self.0.clone()
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        Ok(())
    }

    async fn read(&mut self, _: usize) -> Result<Read, StageError> {
        Ok(Read::End)
    }
}

/// Declares a config struct and what it builds.
macro_rules! kind {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident : $type:ty),* $(,)? } => |$config:ident| $build:expr) => {
        $(#[$meta])*
        #[derive(Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        struct $name { $($(#[$doc])* $field: $type),* }

        impl StageConfig for $name {
            fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
                let $config = self;
                $build
            }
        }
    };
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum StartAt {
    Oldest,
    Newest,
}

kind!(Generate {
    /// How long to wait between two records.
    #[serde(default)]
    every: Option<Span>,
    #[serde(default)]
    start_at: Option<StartAt>,
    #[serde(default)]
    max_size: Option<Size>,
} => |config| {
    let _ = (config.every, config.start_at, config.max_size);
    Ok(Built::source(Nothing))
});
kind!(Letters { queue: String } => |config| Ok(Built::source(Nothing).drains(config.queue)));
kind!(Take { commands: Vec<String> } => |config| Ok(Built::source(Nothing).serves("rest", &config.commands)));
kind!(Follow { table: String, group: String } => |config| {
    let following = Following(format!("{}:{}", config.group, config.table));
    Ok(Built::source(following).touches(Level::Store, Mode::Stream, config.table))
});
kind!(Filter {
    /// Keeps the records for which this is true.
    expr: String,
} => |config| match config.expr.find('!') {
    Some(at) => Err(vec![Problem::new("expr", "unexpected `!`").at(at)]),
    None => Ok(Built::stage(Nothing)),
});
kind!(Route { routes: BTreeMap<String, String> } => |config| {
    let outputs = config.routes.into_keys().collect();
    Ok(Built::stage(Nothing).outputs(outputs))
});
kind!(Persist {} => |_config| Ok(Built::stage(Nothing).touches(Level::Store, Mode::Write, "messages")));
kind!(Publish {
    /// The topic it writes. Created if it does not exist.
    topic: String,
    #[serde(default)]
    acks: Option<u8>,
} => |config| {
    let _ = config.acks;
    Ok(Built::stage(Nothing).touches(Level::Log, Mode::Write, config.topic))
});
kind!(Gather {} => |_config| {
    let batch = BatchLimits { records: NonZeroU32::new(9).unwrap(), bytes: Size(99), wait: Span::millis(999) };
    Ok(Built::stage(Nothing).prefers(Preferences {
        lanes: NonZeroU16::new(1),
        batch,
        buffer: NonZeroU32::new(90),
    }))
});
kind!(Plain {} => |_config| Ok(Built::stage(Nothing)));
kind!(CacheFill { #[serde(default)] read_store: bool } => |config| {
    let built = Built::stage(Nothing).touches(Level::Live, Mode::Fill, "chat_members");
    Ok(if config.read_store { built.touches(Level::Store, Mode::Read, "memberships") } else { built })
});
kind!(Webhook {
    url: String,
    #[serde(default)]
    secret: Option<String>,
} => |config| match config.secret {
    Some(secret) if secret.len() < 8 => {
        Err(vec![Problem::new("secret", format!("`{secret}` is too short for {}", config.url))])
    }
    _ => Ok(Built::stage(Nothing)),
});

const EVENT: &str = "message-event";
const DELIVERY: &str = "delivery";

static GENERATE: StageSpec = StageSpec::source::<Generate>("generate", EVENT).summary("Makes records.");
static LETTERS: StageSpec = StageSpec::source::<Letters>("letters", JSON).summary("Reads dead letters.");
static FOLLOW: StageSpec = StageSpec::source::<Follow>("follow", JSON);
static TAKE: StageSpec = StageSpec::source::<Take>("take", JSON);
static FILE_SOURCE: StageSpec = StageSpec::source::<Generate>("file", JSON).summary("Reads lines.");
static FILE_SINK: StageSpec = StageSpec::sink::<Plain>("file", Takes::Any).summary("Writes lines.");
static GATHER: StageSpec = StageSpec::sink::<Gather>("gather", Takes::Any);
static FILTER: StageSpec = StageSpec::transform::<Filter>("filter", Takes::Any, Gives::Same);
static ROUTE: StageSpec = StageSpec::transform::<Route>("route", Takes::Any, Gives::Same);
static PERSIST: StageSpec =
    StageSpec::transform::<Persist>("persist", Takes::Any, Gives::Same).effect(Effect::IdempotentWrite);
static PUBLISH: StageSpec = StageSpec::sink::<Publish>("publish", Takes::Any)
    .effect(Effect::IdempotentWrite)
    .summary("Writes a topic.");
static RESOLVE: StageSpec =
    StageSpec::transform::<Plain>("resolve", Takes::Only(&[EVENT]), Gives::Kind(DELIVERY));
static DELIVER: StageSpec =
    StageSpec::sink::<Plain>("deliver", Takes::Only(&[DELIVERY])).effect(Effect::ExternalEffect);
static CACHE_FILL: StageSpec = StageSpec::sink::<CacheFill>("cache-fill", Takes::Any);
static WEBHOOK: StageSpec = StageSpec::sink::<Webhook>("webhook", Takes::Any).effect(Effect::ExternalEffect);

static KINDS: &[&StageSpec] = &[
    &GENERATE,
    &FILE_SOURCE,
    &FILE_SINK,
    &GATHER,
    &FILTER,
    &ROUTE,
    &PERSIST,
    &PUBLISH,
    &RESOLVE,
    &DELIVER,
    &CACHE_FILL,
    &WEBHOOK,
    &LETTERS,
    &TAKE,
    &FOLLOW,
];

#[derive(Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Edge {
    /// Where clients connect.
    pub(super) listen: String,
    pub(super) workers: u16,
    pub(super) idle: Span,
    pub(super) compress: bool,
    pub(super) origins: Vec<String>,
    pub(super) session_secret: Option<String>,
}

impl Default for Edge {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            workers: 2,
            idle: Span::secs(60),
            compress: false,
            origins: vec!["localhost".to_owned()],
            session_secret: None,
        }
    }
}

/// A server or its embedded twin.
#[derive(Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Connection {
    Embedded { path: Option<String> },
    Redis { url: String },
}

#[derive(Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Connections {
    pub(super) store: Connection,
}

impl Default for Connections {
    fn default() -> Self {
        Self { store: Connection::Embedded { path: Some("data".to_owned()) } }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only its schema is used")]
struct TestEntry {
    pipeline: String,
    input: Vec<serde_json::Value>,
}

pub(super) fn loader() -> Loader {
    Loader::new(Registry(KINDS), Services::default())
        .sections(&[Section::of::<Edge>("edge"), Section::of::<Connections>("connections")])
        .tests(|| schemars::schema_for!(TestEntry))
}
