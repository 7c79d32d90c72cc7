//! `/chats/{chat_id}/messages` and `/ack`: saying something, reading what was said, and saying that it arrived.

use std::num::NonZeroU32;

use courant_connectors::model::commands::{Ack, Answer, Beyond, Code, Command, Refusal, SendMessage, Sent};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::{ChatId, ClientMessageId, MessageId, Timestamp, UserId};
use courant_connectors::store::ReadStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chats::membership;
use super::fields::{LONGEST_CONTENT, check_client_message_id, check_content, check_content_type};
use super::input::bad_request;
use super::page::at_most;
use super::query::{command_about, unavailable, unexpected};
use super::reply::{Done, Found};
use super::route::{Ask, Route};
use crate::auth::Caller;
use crate::limits::Limit;

/// A hundred of the largest messages are less than half of what a store returns at once.
const LARGEST_PAGE: u32 = 100;
const PLAIN_TEXT: &str = "text/plain";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/chats/{chat_id}/messages", "Send a message", send)
            .limited_by(Limit::Messages)
            .refuses(&[Code::NotAMember, Code::IdempotencyMismatch, Code::CounterMissing]),
        Route::get("/chats/{chat_id}/messages", "Messages of a chat, oldest first", read)
            .refuses(&[Code::NotAMember]),
        Route::post("/chats/{chat_id}/ack", "Say up to where messages have arrived", ack)
            .refuses(&[Code::NotAMember, Code::CounterMissing]),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Send {
    /// Chosen by the client: the same one in the same chat means the same message, for seven days.
    #[schemars(length(min = 1, max = 128))]
    client_message_id: ClientMessageId,
    /// At most 4096 bytes.
    #[schemars(length(min = 1, max = LONGEST_CONTENT))]
    content: String,
    /// `text/plain` if left out.
    content_type: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arrived {
    /// Of the last message that arrived.
    #[schemars(range(min = 1))]
    sequence: u64,
}

/// One of `after`, `before` and `latest`; the messages from the first if there is none.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Range {
    /// The messages after this sequence; 0 for those from the first.
    after: Option<u64>,
    /// The messages right before this sequence.
    before: Option<u64>,
    /// As many of the latest messages.
    latest: Option<NonZeroU32>,
    /// How many, but with `latest`, which says so itself.
    limit: Option<NonZeroU32>,
}

#[derive(Serialize, JsonSchema)]
struct MessageView {
    message_id: MessageId,
    chat_id: ChatId,
    sequence: u64,
    sender_id: UserId,
    content: String,
    content_type: String,
    created_at: Timestamp,
}

impl From<Message> for MessageView {
    fn from(message: Message) -> Self {
        Self {
            message_id: message.message_id,
            chat_id: message.chat_id,
            sequence: message.sequence,
            sender_id: message.sender_id,
            content: message.content.into(),
            content_type: message.content_type.into(),
            created_at: message.created_at,
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct MessageList {
    /// By sequence, oldest first, whatever was asked for.
    messages: Vec<MessageView>,
    /// Whether there are more in the direction that was asked for: later ones after `after`, earlier ones otherwise.
    has_more: bool,
}

async fn send(ask: Ask<Caller, ChatId, Send>) -> Result<Sent, Refusal> {
    let Send { client_message_id, content, content_type } = ask.input;
    let content_type = content_type.unwrap_or_else(|| PLAIN_TEXT.to_owned());
    check_client_message_id(&client_message_id)?;
    check_content(&content)?;
    check_content_type(&content_type)?;
    let (chat_id, sender_id) = (ask.path, ask.who.user_id);
    let message = SendMessage {
        chat_id: chat_id.clone(),
        sender_id,
        client_message_id,
        content: content.into(),
        content_type: content_type.into(),
    };
    match command_about(&ask.api, &chat_id, Command::SendMessage(message)).await? {
        Answer::Sent(sent) => Ok(sent),
        other => Err(unexpected(&other)),
    }
}

async fn ack(ask: Ask<Caller, ChatId, Arrived>) -> Result<Done, Refusal> {
    if ask.input.sequence == 0 {
        return Err(bad_request("body: sequences begin with 1"));
    }
    let (chat_id, user_id, sequence) = (ask.path.clone(), ask.who.user_id, ask.input.sequence);
    let ack = Ack { chat_id, user_id, sequence, beyond: Beyond::Refused };
    command_about(&ask.api, &ask.path, Command::Ack(ack)).await.map(|_| Done)
}

async fn read(ask: Ask<Caller, ChatId, Range>) -> Result<Found<MessageList>, Refusal> {
    let window = Window::new(&ask.input)?;
    membership(&ask.api, &ask.path, &ask.who).await?;
    window.read(&*ask.api.store, &ask.path).await.map(Found)
}

/// Which messages are wanted.
struct Window {
    from: Start,
    limit: NonZeroU32,
}

#[derive(Clone, Copy)]
enum Start {
    After(u64),
    Before(u64),
    Latest,
}

impl Window {
    fn new(range: &Range) -> Result<Self, Refusal> {
        let (from, limit) = match (range.after, range.before, range.latest) {
            (None, None, None) => (Start::After(0), range.limit),
            (Some(after), None, None) => (Start::After(after), range.limit),
            (None, Some(before), None) => (Start::Before(before), range.limit),
            (None, None, Some(latest)) if range.limit.is_none() => (Start::Latest, Some(latest)),
            (None, None, Some(_)) => return Err(bad_request("query: latest says how many; leave limit out")),
            _ => return Err(bad_request("query: only one of after, before and latest can be asked for")),
        };
        Ok(Self { from, limit: at_most(limit, LARGEST_PAGE)? })
    }

    /// One more than wanted is asked for, to know whether there are more. The store may give fewer at a time.
    async fn read(&self, store: &dyn ReadStore, chat: &ChatId) -> Result<MessageList, Refusal> {
        let limit = self.limit.get() as usize;
        let (mut found, mut from) = (Vec::new(), self.from);
        while let Some(missing) = NonZeroU32::new(self.limit.get() + 1 - count(&found)) {
            let part = match from {
                Start::After(after) => messages::after(store, chat, after, missing).await,
                Start::Before(before) => messages::before(store, chat, before, missing).await,
                Start::Latest => messages::recent(store, chat, missing).await,
            };
            let part = part.map_err(unavailable)?;
            found.extend(part.items);
            from = match (part.next, from) {
                (None, _) => break,
                (Some(next), Start::After(_)) => Start::After(next),
                (Some(next), _) => Start::Before(next),
            };
        }
        let has_more = found.len() > limit;
        found.truncate(limit);
        if !matches!(self.from, Start::After(_)) {
            found.reverse();
        }
        Ok(MessageList { messages: found.into_iter().map(Into::into).collect(), has_more })
    }
}

fn count(messages: &[Message]) -> u32 {
    u32::try_from(messages.len()).unwrap_or(u32::MAX)
}
