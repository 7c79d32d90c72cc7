//! A model behind a server that speaks OpenAI's chat completions, as many do.
//!
//! The answer is read while it is written, as server-sent events; a server that answers in one piece is understood too.
//! The server is not trusted: what it sends is bounded in bytes, in time and in silence, redirects are not followed, and
//! of what it says that is no answer an error quotes the beginning.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use courant_connectors::http::{Address, AddressError, Coming, Receiver};
use courant_pipeline::StageError;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::ASK;
use super::conversation::{By, Conversation};
use super::draft::{Draft, Room};
use super::events::Events;
use crate::web::{Pause, Secret, quoted, refused, unanswered};

/// As errors call it.
const SERVER: &str = "model server";
/// The fields of a request that `options` cannot have.
pub(super) const OWN_FIELDS: [&str; 4] = ["model", "messages", "stream", "max_tokens"];
/// Bytes of an answer on the wire: a thousand times what a message holds, since each word comes in a wrapping of its
/// own, and models think aloud.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// The event after the last.
const DONE: &[u8] = b"[DONE]";

/// Where the address comes from.
pub(super) enum Source {
    Known(Address),
    Variable(String),
}

/// The address of completions below that of the server.
pub(super) fn address(base_url: &str) -> Result<Address, AddressError> {
    Address::parse(&format!("{}/chat/completions", base_url.trim().trim_end_matches('/')))
}

/// How to ask, before the environment is looked at.
pub(super) struct Plan {
    pub(super) address: Source,
    pub(super) key: Secret,
    pub(super) model: String,
    pub(super) instructions: Option<String>,
    pub(super) options: Map<String, Value>,
    pub(super) token_limit: NonZeroU32,
    pub(super) timeout: Duration,
    pub(super) silence: Duration,
    pub(super) connections: usize,
}

pub(super) struct Completions {
    receiver: Receiver,
    /// The fields that every request has.
    fields: Map<String, Value>,
    instructions: Option<String>,
    /// To keep it out of errors, where a server repeats what it was sent.
    key: Option<String>,
    timeout: Duration,
    silence: Duration,
    pause: Pause,
}

impl Plan {
    pub(super) fn open(&self) -> Result<Completions, StageError> {
        let failed = |reason: String| StageError::fatal("prepare to ask the model", reason);
        let address = match &self.address {
            Source::Known(address) => address.clone(),
            Source::Variable(name) => {
                let url = std::env::var(name)
                    .map_err(|_| failed(format!("the environment variable `{name}` is not set; set it")))?;
                address(&url).map_err(|error| failed(format!("the address in `{name}` is wrong: {error}")))?
            }
        };
        let key = self.key.read().map_err(failed)?.map(|(key, _)| key);
        let bearer = |key: &String| ("authorization".to_owned(), format!("Bearer {key}"));
        let headers: Vec<_> = key.iter().map(bearer).collect();
        let receiver = Receiver::new(address, &headers, self.silence.min(self.timeout), self.connections)
            .map_err(|error| StageError::fatal("prepare to ask the model", error))?;
        let mut fields = self.options.clone();
        fields.insert("model".to_owned(), json!(self.model));
        fields.insert("stream".to_owned(), json!(true));
        fields.insert("max_tokens".to_owned(), json!(self.token_limit));
        Ok(Completions {
            receiver,
            fields,
            instructions: self.instructions.clone(),
            key: key.filter(|key| !key.is_empty()),
            timeout: self.timeout,
            silence: self.silence,
            pause: Pause::default(),
        })
    }
}

/// What of a part of an answer, or of a whole one, is read.
#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    choices: Vec<Choice>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    /// What was added.
    delta: Option<Text>,
    /// All of it, from a server that answers in one piece.
    message: Option<Text>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Text {
    content: Option<String>,
}

/// What a part adds, and whether the answer ends with it.
struct Added {
    text: String,
    is_last: bool,
}

impl Completions {
    pub(super) async fn answer(
        &self,
        conversation: &Conversation,
        draft: &mut Draft,
    ) -> Result<(), StageError> {
        self.pause.check(ASK, SERVER)?;
        let late = || {
            let reason = format!("the {SERVER} did not finish an answer within {:?}", self.timeout);
            StageError::retry(ASK, reason)
        };
        timeout(self.timeout, self.exchange(conversation, draft)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn exchange(&self, conversation: &Conversation, draft: &mut Draft) -> Result<(), StageError> {
        let headers = [
            ("content-type", "application/json".to_owned()),
            ("accept", "text/event-stream".to_owned()),
            ("user-agent", concat!("courant/", env!("CARGO_PKG_VERSION")).to_owned()),
        ];
        let begun = self.receiver.begin(self.request(conversation), &headers).await;
        let coming = begun.map_err(|error| unanswered(ASK, error))?;
        self.pause.heed(coming.status.as_u16(), coming.retry_after);
        if !coming.status.is_success() {
            let mut answer = coming.into_answer().await;
            answer.text = self.without_key(&answer.text);
            return Err(refused(ASK, SERVER, &answer));
        }
        if coming.content_type == "text/event-stream" {
            self.listen(coming, draft).await
        } else {
            self.read_whole(coming, draft).await
        }
    }

    fn request(&self, conversation: &Conversation) -> Bytes {
        let said = conversation.turns.iter().map(|turn| {
            let role = if turn.by == By::Itself { "assistant" } else { "user" };
            json!({ "role": role, "content": turn.content })
        });
        let instructions = self.instructions.iter().map(|text| json!({ "role": "system", "content": text }));
        let mut request = self.fields.clone();
        request.insert("messages".to_owned(), instructions.chain(said).collect());
        Value::Object(request).to_string().into()
    }

    /// Takes an answer as it comes.
    async fn listen(&self, mut coming: Coming, draft: &mut Draft) -> Result<(), StageError> {
        let (mut events, mut has_ended) = (Events::default(), false);
        while let Some(bytes) = self.next(&mut coming).await? {
            for data in events.push(&bytes)? {
                if data == DONE {
                    return Ok(());
                }
                let added = self.added(&data)?;
                has_ended |= added.is_last;
                if draft.push(&added.text).await == Room::Full {
                    return Ok(());
                }
            }
        }
        match events.finish() {
            Some(data) if data == DONE => Ok(()),
            _ if has_ended => Ok(()),
            _ => Err(StageError::retry(ASK, "the answer broke off before its end")),
        }
    }

    async fn read_whole(&self, mut coming: Coming, draft: &mut Draft) -> Result<(), StageError> {
        let mut whole = Vec::new();
        while let Some(bytes) = self.next(&mut coming).await? {
            whole.extend_from_slice(&bytes);
        }
        draft.push(&self.added(&whole)?.text).await;
        Ok(())
    }

    async fn next(&self, coming: &mut Coming) -> Result<Option<Bytes>, StageError> {
        let Ok(next) = timeout(self.silence, coming.next(MOST_BYTES)).await else {
            let reason = format!("the {SERVER} has been silent for {:?}", self.silence);
            return Err(StageError::retry(ASK, reason));
        };
        next.map_err(|error| unanswered(ASK, error))
    }

    fn added(&self, data: &[u8]) -> Result<Added, StageError> {
        let failed = |what: &str| {
            let said = quoted(&self.without_key(&String::from_utf8_lossy(data)));
            StageError::retry(ASK, format!("the {SERVER} {what}: {said}"))
        };
        let part: Part = serde_json::from_slice(data).map_err(|_| failed("sends no completion"))?;
        if part.error.is_some_and(|error| !error.is_null()) {
            return Err(failed("failed while it answered"));
        }
        // A part without choices tells of what it costs.
        let Some(choice) = part.choices.into_iter().next() else {
            return Ok(Added { text: String::new(), is_last: false });
        };
        let is_last = choice.finish_reason.is_some();
        let text = choice.delta.or(choice.message).and_then(|text| text.content).unwrap_or_default();
        Ok(Added { text, is_last })
    }

    fn without_key(&self, said: &str) -> String {
        self.key.as_ref().map_or_else(|| said.to_owned(), |key| said.replace(key.as_str(), "[key]"))
    }
}
