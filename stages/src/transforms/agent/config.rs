//! What the stage is told, and what is wrong with it.

use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::sync::OnceLock;

use courant_connectors::model::UserId;
use courant_connectors::model::tables::users::MAX_DISPLAY_NAME;
use courant_connectors::model::tables::{chat_memberships, idempotency_keys, messages, users};
use courant_pipeline::spec::{
    Access, BuildContext, Built, Effect, Gives, Level, Mode, Preferences, Problem, StageConfig, StageSpec,
    Takes,
};
use courant_pipeline::units::{Size, Span};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::completions::{self, Source};
use super::scripted::Script;
use super::{Agent, Plan};
use crate::backends::{Backends, access};
use crate::commands::{COMMAND, EVENT};
use crate::deliveries::send_access;
use crate::web::Secret;

pub static SPEC: StageSpec =
    StageSpec::transform::<Config>("agent", Takes::Only(&[EVENT]), Gives::Kind(COMMAND))
        .effect(Effect::ExternalEffect)
        .summary("answers messages in chats where an agent is a member, by a model or by a script")
        .example(
            "[[pipeline.stage]]\nkind = \"agent\"\nretry = { deadline = \"2m\" }\n[pipeline.stage.params]\n\
             agent = \"agent_helper\"\nbase_url = \"https://models.example.org/v1\"\nmodel = \"small\"\n\
             api_key_env = \"MODEL_API_KEY\"\n",
        );

/// Longest message of the protocol.
const MAX_CONTENT_BYTES: usize = 4096;
/// The longest id that the edge takes for a user's, without its prefix.
const MAX_NAME_CHARS: usize = 64;
/// Chats that one slow answer holds up share its lane.
const LANES: NonZeroU16 = NonZeroU16::new(16).expect("not zero");

/// Records are events of messages; each that is answered becomes a `send_message` command, for a `dynamo-persist`. An
/// answer is one message, under a `client_message_id` of its own: a client that uses that id before the agent does
/// keeps it from answering.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The agent's user id: `agent_` and letters and digits. The user is made when the stage starts; whoever manages a
    /// chat adds it there like anybody else. Each agent of a chat answers for itself, and none answers another.
    pub agent: String,
    /// What people see as its name. The id without `agent_` if left out.
    #[serde(default)]
    pub display_name: Option<String>,
    /// Who makes the answers.
    #[serde(default)]
    pub responder: Responder,
    /// Where the model is served, up to and without `/chat/completions`. Redirects are not followed. It is not shown
    /// beyond its host.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The environment variable that holds it. Instead of `base_url`.
    #[serde(default)]
    pub base_url_env: Option<String>,
    /// The model's name, as its server knows it.
    #[serde(default)]
    pub model: Option<String>,
    /// The environment variable that holds the key of the server, which goes with every request as a bearer token.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// The file that holds it; a line break at its end does not count. Instead of `api_key_env`.
    #[serde(default)]
    pub api_key_file: Option<PathBuf>,
    /// What the model is told before everything else: who it is and how to answer.
    #[serde(default)]
    pub instructions: Option<String>,
    /// Further fields of the request, such as `{ temperature = 0.2 }`.
    #[serde(default)]
    pub options: Map<String, Value>,
    /// Tokens of an answer at the most (`max_tokens`).
    #[serde(default = "default_token_limit")]
    pub token_limit: NonZeroU32,
    /// Bytes of an answer at the most, up to 4096; what is longer is cut there and ends with `…`.
    #[serde(default = "default_max_answer")]
    pub max_answer: Size,
    /// Messages of the chat before the one that is answered that the model is told of, at the most.
    #[serde(default = "default_history")]
    pub history: NonZeroU32,
    /// Their bytes at the most; the oldest are left out first.
    #[serde(default = "default_history_bytes")]
    pub history_bytes: Size,
    /// How long a whole answer may take.
    #[serde(default = "default_timeout")]
    pub timeout: Span,
    /// How long a server may be silent before and within an answer.
    #[serde(default = "default_silence")]
    pub silence: Span,
    /// Answers being written at the same time, at the most.
    #[serde(default = "default_concurrency")]
    pub concurrency: NonZeroU16,
    /// How often those who are connected are shown what is written so far, at the most; `"0s"` for never.
    #[serde(default = "default_show_every")]
    pub show_every: Span,
    /// Messages that are older are not answered. Up to six days: for seven the store knows what was answered.
    #[serde(default = "default_max_age")]
    pub max_age: Span,
    /// What the agent says when it gave up on an answer, after `retry.deadline` or a refusal. Nothing if left out; the
    /// message is a dead letter in any case, and can be answered later with `courant dead-letters redrive`.
    #[serde(default)]
    pub apology: Option<String>,
    /// What is said to what, with `responder = "scripted"`: the first rule that fits. Without rules it says what it was
    /// told.
    #[serde(default)]
    pub script: Vec<Rule>,
    /// How long a script takes for each word, so that answers come as a model's do.
    #[serde(default)]
    pub pace: Span,
}

/// Who makes the answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Responder {
    /// A server that speaks OpenAI's chat completions.
    #[default]
    Completions,
    /// The rules of `script`, for development: no server is asked.
    Scripted,
}

/// One rule of a script.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Fits messages with this in them, in upper or lower case; all if left out.
    #[serde(default)]
    pub contains: Option<String>,
    /// What is said. `{content}` stands for the message.
    pub say: String,
}

fn default_token_limit() -> NonZeroU32 {
    const { NonZeroU32::new(800).expect("not zero") }
}

fn default_max_answer() -> Size {
    Size(MAX_CONTENT_BYTES as u64)
}

fn default_history() -> NonZeroU32 {
    const { NonZeroU32::new(20).expect("not zero") }
}

fn default_history_bytes() -> Size {
    Size(16 * 1024)
}

fn default_timeout() -> Span {
    Span::secs(60)
}

fn default_silence() -> Span {
    Span::secs(20)
}

fn default_concurrency() -> NonZeroU16 {
    const { NonZeroU16::new(8).expect("not zero") }
}

fn default_show_every() -> Span {
    Span::millis(300)
}

fn default_max_age() -> Span {
    Span::secs(24 * 60 * 60)
}

const LONGEST_MAX_AGE: Span = Span::secs(6 * 24 * 60 * 60);
const _: () = assert!(LONGEST_MAX_AGE.0.as_secs() < idempotency_keys::KEPT_FOR.as_secs());

impl StageConfig for Config {
    fn build(mut self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let mut problems = self.problems();
        let plan = match self.responder {
            Responder::Completions => {
                self.model_plan(&mut problems).map(|plan| Plan::Completions(Box::new(plan)))
            }
            Responder::Scripted => Some(Plan::Scripted(self.script(&mut problems))),
        };
        let Some(plan) = plan.filter(|_| problems.is_empty()) else { return Err(problems) };
        let declared = declared();
        let name = self.agent.trim_start_matches(UserId::AGENT_PREFIX).to_owned();
        let mut built = Built::stage(Agent {
            display_name: self.display_name.unwrap_or(name),
            id: self.agent.into(),
            plan,
            history: self.history,
            history_bytes: usize::try_from(self.history_bytes.0).unwrap_or(usize::MAX),
            longest_answer: usize::try_from(self.max_answer.0).unwrap_or(MAX_CONTENT_BYTES),
            show_every: self.show_every.0,
            max_age: self.max_age.0,
            apology: self.apology,
            turns: Semaphore::new(usize::from(self.concurrency.get())),
            backends: Backends::of(context, &declared),
            open: OnceLock::new(),
        })
        .prefers(Preferences { lanes: Some(LANES), ..Preferences::default() });
        built.access.extend(declared);
        Ok(built)
    }
}

fn declared() -> Vec<Access> {
    let reads = [
        &chat_memberships::SCHEMA.name,
        &idempotency_keys::SCHEMA.name,
        &messages::SCHEMA.name,
        &users::SCHEMA.name,
    ];
    let mut declared: Vec<Access> =
        reads.into_iter().map(|table| access(Level::Store, Mode::Read, table)).collect();
    // What the configuration says of the agent, copied; messages are stored by the stage behind this one.
    declared.push(access(Level::Store, Mode::Fill, &users::SCHEMA.name));
    declared.extend(send_access());
    declared
}

impl Config {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, message: String| problems.push(Problem::new(key, message));
        let name = self.agent.strip_prefix(UserId::AGENT_PREFIX).unwrap_or_default();
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if name.is_empty() || name.len() > MAX_NAME_CHARS || !is_name(name) {
            let id =
                format!("`{}` is no agent's id: it is `agent_` and up to 64 letters and digits", self.agent);
            wrong("agent", id);
        }
        let display_name = self.display_name.as_deref().unwrap_or("-");
        if display_name.trim().is_empty() || display_name.len() > MAX_DISPLAY_NAME {
            wrong("display_name", format!("a name has 1 to {MAX_DISPLAY_NAME} bytes"));
        }
        if !(16..=MAX_CONTENT_BYTES as u64).contains(&self.max_answer.0) {
            wrong("max_answer", format!("an answer has 16 to {MAX_CONTENT_BYTES} bytes at the most"));
        }
        for (key, span) in [("timeout", self.timeout), ("silence", self.silence), ("max_age", self.max_age)] {
            if span.0.is_zero() {
                wrong(key, "nothing is answered in no time".to_owned());
            }
        }
        if self.max_age.0 > LONGEST_MAX_AGE.0 {
            wrong("max_age", "after six days the store may have forgotten what was answered".to_owned());
        }
        if self.apology.as_ref().is_some_and(|text| text.is_empty() || text.len() > MAX_CONTENT_BYTES) {
            wrong("apology", format!("a message has 1 to {MAX_CONTENT_BYTES} bytes"));
        }
        problems
    }

    fn model_plan(&mut self, problems: &mut Vec<Problem>) -> Option<completions::Plan> {
        let mut wrong = |key: &str, message: String| problems.push(Problem::new(key, message));
        if !self.script.is_empty() {
            wrong(
                "script",
                "a model has no script; say `responder = \"scripted\"`, or leave it out".to_owned(),
            );
        }
        if self.api_key_env.is_some() && self.api_key_file.is_some() {
            wrong("api_key_file", "give one of `api_key_env` and `api_key_file`".to_owned());
        }
        for field in completions::OWN_FIELDS.iter().filter(|field| self.options.contains_key(**field)) {
            wrong(&format!("options.{field}"), format!("`{field}` is made by the stage"));
        }
        let address = match (self.base_url.take(), self.base_url_env.take()) {
            (Some(url), None) => completions::address(&url)
                .map(Source::Known)
                .map_err(|error| wrong("base_url", error.to_string()))
                .ok(),
            (None, Some(variable)) => Some(Source::Variable(variable)),
            _ => {
                wrong("base_url", "give one of `base_url` and `base_url_env`".to_owned());
                None
            }
        };
        let Some(model) = self.model.take().filter(|model| !model.is_empty()) else {
            wrong("model", "say which model the server is to use".to_owned());
            return None;
        };
        Some(completions::Plan {
            address: address?,
            key: Secret { variable: self.api_key_env.take(), file: self.api_key_file.take() },
            model,
            instructions: self.instructions.take(),
            options: std::mem::take(&mut self.options),
            token_limit: self.token_limit,
            timeout: self.timeout.0,
            silence: self.silence.0,
            connections: usize::from(self.concurrency.get()),
        })
    }

    fn script(&mut self, problems: &mut Vec<Problem>) -> Script {
        let asked = [
            ("base_url", self.base_url.is_some()),
            ("base_url_env", self.base_url_env.is_some()),
            ("model", self.model.is_some()),
            ("api_key_env", self.api_key_env.is_some()),
            ("api_key_file", self.api_key_file.is_some()),
        ];
        for (key, _) in asked.into_iter().filter(|(_, given)| *given) {
            problems.push(Problem::new(key, "a script asks no server; leave it out"));
        }
        for (index, rule) in self.script.iter().enumerate().filter(|(_, rule)| rule.say.trim().is_empty()) {
            let problem =
                format!("the rule for {:?} says nothing", rule.contains.as_deref().unwrap_or("all"));
            problems.push(Problem::new(format!("script.{index}.say"), problem));
        }
        Script::new(std::mem::take(&mut self.script), self.pace.0)
    }
}
