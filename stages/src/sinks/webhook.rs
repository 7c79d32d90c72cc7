//! `webhook`: posts records to an address on the web, in order of their keys.
//!
//! Records of one key are posted one after the other, other keys at the same time, up to `concurrency`. An answer of
//! 2xx ends a record; 408, 425, 429 and 5xx, no answer and no connection are tried again, with the later records of the
//! key behind it; any other answer refuses the record. A receiver that says `Retry-After` is left alone for so long.
//!
//! Requests carry what <https://www.standardwebhooks.com> says, so that receivers can use a library: `webhook-id`, the
//! same for every try of a record (also as `Idempotency-Key`), `webhook-timestamp` in seconds, and with a secret
//! `webhook-signature`, which is `v1,` and the base64 of HMAC-SHA256 over `<id>.<timestamp>.<body>`. A receiver compares
//! it in constant time, refuses timestamps that are minutes old, and leaves out ids that it knows: after a crash, records
//! that were not committed are posted again. Where a request carries several records its id is that of the request:
//! what is tried again may come with others, so records need an id of their own.

mod request;
mod sign;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use courant_connectors::http::{Address, Receiver};
use courant_pipeline::spec::{BuildContext, Built, Effect, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::units::Span;
use courant_pipeline::{Batch, StageError};
use futures::StreamExt as _;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Semaphore;

use self::request::{Fate, Item, fate_of};
use self::sign::Signer;
use crate::jq::Expr;
use crate::web::{Pause, Secret};

pub static SPEC: StageSpec = StageSpec::sink::<Config>("webhook", Takes::Any)
    .effect(Effect::ExternalEffect)
    .summary("posts records to an address on the web, signed, in order of their keys")
    .example(
        "[[pipeline.stage]]\nkind = \"webhook\"\nretry = { deadline = \"1h\" }\nparams = { url_env = \"HOOK_URL\", \
         secret_env = \"HOOK_SECRET\", id = \".message_id\" }\n",
    );

/// What it does, and to whom, as errors say it.
const DOING: &str = "post to the webhook";
const RECEIVER: &str = "receiver";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where to post to. Redirects are not followed. It is not shown beyond its host; one that holds a secret still
    /// belongs into `url_env`.
    #[serde(default)]
    pub url: Option<String>,
    /// The environment variable that holds the address. Instead of `url`.
    #[serde(default)]
    pub url_env: Option<String>,
    /// The environment variable that holds the secret that requests are signed with: any text, or `whsec_` and base64.
    #[serde(default)]
    pub secret_env: Option<String>,
    /// The file that holds it; a line break at its end does not count. Instead of `secret_env`.
    #[serde(default)]
    pub secret_file: Option<PathBuf>,
    /// The environment variable that holds the value of the `Authorization` header, such as `Bearer …`.
    #[serde(default)]
    pub authorization_env: Option<String>,
    /// Further headers, which are no secrets.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// What a request carries.
    #[serde(default)]
    pub body: Body,
    /// What makes a record the same, in jq, for `webhook-id`: set it if records can come by another way than this
    /// pipeline's source, such as from dead letters. Where the record was read if left out, or else its content.
    #[serde(default)]
    pub id: Option<String>,
    /// How long a request may take, connecting and the answer included.
    #[serde(default = "default_timeout")]
    pub timeout: Span,
    /// Requests that may be under way at a time, over all lanes.
    #[serde(default = "default_concurrency")]
    pub concurrency: NonZeroU16,
}

/// What a request carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Body {
    /// One record, as JSON.
    #[default]
    Record,
    /// The records of a batch, as a JSON array. One that is refused is cut in halves until the records at fault are
    /// alone; `batch` says how large it may be. `webhook-id` is the request's: a record that is tried again may come with
    /// others, so a receiver knows it by what is in it.
    Array,
    /// The same, one JSON document a line.
    Lines,
}

fn default_timeout() -> Span {
    Span::secs(10)
}

fn default_concurrency() -> NonZeroU16 {
    const { NonZeroU16::new(8).expect("not zero") }
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let mut problems = Vec::new();
        let address = match (self.url, self.url_env) {
            (Some(url), None) => Address::parse(&url)
                .map(Source::Known)
                .map_err(|error| problems.push(Problem::new("url", error.to_string())))
                .ok(),
            (None, Some(variable)) => Some(Source::Variable(variable)),
            _ => {
                problems.push(Problem::new("url", "give one of `url` and `url_env`"));
                None
            }
        };
        if self.secret_env.is_some() && self.secret_file.is_some() {
            problems.push(Problem::new("secret_file", "give one of `secret_env` and `secret_file`"));
        }
        if self.timeout.0.is_zero() {
            problems.push(Problem::new("timeout", "no request is answered in no time"));
        }
        let id = self.id.map(|code| Expr::on_record("id", &code)).transpose();
        let id = id.map_err(|more| problems.extend(more)).unwrap_or_default();
        let Some(address) = address.filter(|_| problems.is_empty()) else { return Err(problems) };
        let concurrency = usize::from(self.concurrency.get());
        Ok(Built::stage(Webhook {
            address,
            secret: Secret { variable: self.secret_env, file: self.secret_file },
            authorization: self.authorization_env,
            headers: self.headers.into_iter().collect(),
            body: self.body,
            id,
            origin: format!("{}/{}", context.pipeline, context.stage),
            timeout: self.timeout.0,
            concurrency,
            turns: Semaphore::new(concurrency),
            pause: Pause::default(),
            open: OnceLock::new(),
        }))
    }
}

/// Where the address comes from.
enum Source {
    Known(Address),
    Variable(String),
}

struct Webhook {
    address: Source,
    secret: Secret,
    authorization: Option<String>,
    headers: Vec<(String, String)>,
    body: Body,
    id: Option<Expr>,
    /// What makes the ids of one stage others than those of the next.
    origin: String,
    timeout: Duration,
    concurrency: usize,
    /// One for each request under way.
    turns: Semaphore,
    pause: Pause,
    /// There once opened.
    open: OnceLock<Open>,
}

struct Open {
    receiver: Receiver,
    signer: Option<Signer>,
}

#[async_trait]
impl courant_pipeline::Stage for Webhook {
    async fn open(&self) -> Result<(), StageError> {
        let failed = |reason: String| StageError::fatal("open the webhook", reason);
        let variable = |name: &str| {
            std::env::var(name)
                .map_err(|_| failed(format!("the environment variable `{name}` is not set; set it")))
        };
        let address = match &self.address {
            Source::Known(address) => address.clone(),
            Source::Variable(name) => Address::parse(&variable(name)?)
                .map_err(|error| failed(format!("the address in `{name}` is wrong: {error}")))?,
        };
        let mut headers = self.headers.clone();
        if let Some(name) = &self.authorization {
            headers.push(("authorization".to_owned(), variable(name)?));
        }
        let receiver = Receiver::new(address, &headers, self.timeout, self.concurrency)
            .map_err(|error| StageError::fatal("open the webhook", error))?;
        let signer = Signer::of(&self.secret).map_err(failed)?;
        // Opened once, so nothing is there yet.
        let _ = self.open.set(Open { receiver, signer });
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        self.pause.check(DOING, RECEIVER)?;
        let items = self.items(batch);
        let mut fates: Vec<Option<Fate>> = items.iter().map(|item| item.as_ref().err().cloned()).collect();
        let queues = self.queues(batch, items);
        let posted = futures::stream::iter(queues).map(|queue| self.post_in_order(queue));
        let posted: Vec<Vec<(usize, Fate)>> = posted.buffer_unordered(self.concurrency).collect().await;
        for (index, fate) in posted.into_iter().flatten() {
            fates[index] = Some(fate);
        }
        for (slot, fate) in batch.iter_mut().zip(fates) {
            match fate {
                Some(Fate::Delivered) => {}
                Some(Fate::Failed(error)) => slot.fail(error),
                None => slot.hold(),
            }
        }
        Ok(())
    }
}

impl Webhook {
    /// What is to be posted of each record; refused if its id cannot be told.
    fn items(&self, batch: &mut Batch) -> Vec<Result<Item, Fate>> {
        let origins: Vec<Option<String>> =
            batch.origins().map(|origin| origin.map(|origin| request::place(&origin))).collect();
        let item = |(slot, origin): (&mut courant_pipeline::Slot, Option<String>)| {
            let id = self.id_of(slot.record_mut(), origin).map_err(Fate::failed)?;
            Ok(Item { id, body: slot.record().payload.to_json() })
        };
        batch.iter_mut().zip(origins).map(item).collect()
    }

    /// Indexes and items that have to be posted one after the other.
    fn queues(&self, batch: &Batch, items: Vec<Result<Item, Fate>>) -> Vec<Vec<(usize, Item)>> {
        let mut queues: Vec<Vec<(usize, Item)>> = Vec::new();
        let mut by_key = FxHashMap::default();
        for (index, (item, record)) in items.into_iter().zip(batch.records()).enumerate() {
            let Ok(item) = item else { continue };
            // a request with many records has all of them, in order
            let key =
                record.key.as_ref().filter(|_| self.body == Body::Record).map(courant_pipeline::Key::as_str);
            let queue = *by_key.entry(key).or_insert_with(|| {
                queues.push(Vec::new());
                queues.len() - 1
            });
            queues[queue].push((index, item));
        }
        queues
    }

    /// Posts until the first that has to be tried again; what is left has no fate.
    async fn post_in_order(&self, queue: Vec<(usize, Item)>) -> Vec<(usize, Fate)> {
        if self.body == Body::Record {
            let mut fates = Vec::with_capacity(queue.len());
            for (index, item) in queue {
                let fate = self.post(&[&item]).await;
                let wait = fate.is_retried();
                fates.push((index, fate));
                if wait {
                    break;
                }
            }
            return fates;
        }
        let mut fates = Vec::with_capacity(queue.len());
        let mut waiting = vec![&queue[..]];
        while let Some(part) = waiting.pop() {
            let items: Vec<&Item> = part.iter().map(|(_, item)| item).collect();
            match self.post(&items).await {
                Fate::Failed(error) if part.len() > 1 && error.class != courant_pipeline::Class::Retry => {
                    let (first, second) = part.split_at(part.len() / 2);
                    waiting.extend([second, first]);
                }
                fate => {
                    let wait = fate.is_retried();
                    fates.extend(part.iter().map(|(index, _)| (*index, fate.clone())));
                    if wait {
                        break;
                    }
                }
            }
        }
        fates
    }

    async fn post(&self, items: &[&Item]) -> Fate {
        let Some(open) = self.open.get() else {
            return Fate::failed(StageError::fatal(DOING, "the stage is not open"));
        };
        let Ok(_turn) = self.turns.acquire().await else {
            return Fate::failed(StageError::retry(DOING, "the stage is closed"));
        };
        if let Err(error) = self.pause.check(DOING, RECEIVER) {
            return Fate::failed(error);
        }
        let (body, kind) = request::body(self.body, items);
        let id = (&*request::id_of_all(items), items.len() == 1);
        let headers = request::headers(id, kind, &body, open.signer.as_ref());
        let answered = open.receiver.post(body, &headers).await;
        if let Ok(answer) = &answered {
            self.pause.heed(answer.status.as_u16(), answer.retry_after);
        }
        fate_of(answered)
    }
}
