//! `/channels/{channel_id}/events`: the same messages as events of a channel, for clients that are written for that shape.
//!
//! A channel is a chat, an event is a message. Who wrote it is a role, `user`, `ai` or `system`, which the sender's id
//! tells; nothing of it is stored twice. Pages go by sequence and not by time, which two messages may share.

use std::num::NonZeroU32;

use courant_connectors::model::commands::{Answer, Code, Command, Refusal, SendMessage};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::topics::MessagePersisted;
use courant_connectors::model::{ChatId, ClientMessageId, EventId, MessageId, Timestamp, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chats::membership;
use super::fields::{LONGEST_CONTENT, check_client_message_id, check_content};
use super::page::{at_most, page};
use super::query::{command_about, unexpected};
use super::reply::{Found, Once};
use super::route::{Ask, Route};
use crate::auth::Caller;
use crate::limits::Limit;

const LARGEST_PAGE: u32 = 100;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/channels/{channel_id}/events", "Send a message as an event", send)
            .limited_by(Limit::Messages)
            .refuses(&[Code::NotAMember, Code::IdempotencyMismatch, Code::CounterMissing]),
        Route::get("/channels/{channel_id}/events", "Messages of a chat as events, oldest first", read)
            .refuses(&[Code::NotAMember]),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewEvent {
    /// Chosen by the client: the same one in the same channel means the same event, for seven days.
    #[schemars(length(min = 1, max = 128))]
    client_message_id: ClientMessageId,
    /// At most 4096 bytes.
    #[schemars(length(min = 1, max = LONGEST_CONTENT))]
    content: String,
    /// `text` if left out.
    #[serde(default)]
    content_type: Format,
}

/// How content is to be shown.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// As it is. Also for what is of any other media type.
    #[default]
    Text,
    Markdown,
}

impl Format {
    const MARKDOWN: &'static str = "text/markdown";

    fn of(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case(Self::MARKDOWN) { Self::Markdown } else { Self::Text }
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain",
            Self::Markdown => Self::MARKDOWN,
        }
    }
}

/// Who writes.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Author {
    /// A person.
    User,
    /// An agent.
    Ai,
    /// The service itself.
    System,
}

impl Author {
    fn of(sender: &UserId) -> Self {
        if sender.is_agent() {
            Self::Ai
        } else if sender.is_system() {
            Self::System
        } else {
            Self::User
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct EventView {
    channel_id: ChatId,
    /// Milliseconds since 1970.
    ts: u64,
    /// The same for each copy of the event, wherever it is read.
    event_id: EventId,
    message_id: MessageId,
    sender_id: UserId,
    role: Author,
    content: String,
    content_type: Format,
    created_at_iso: Timestamp,
    metadata: Metadata,
}

#[derive(Serialize, JsonSchema)]
struct Metadata {
    /// Orders the events of a channel.
    sequence: u64,
}

impl From<Message> for EventView {
    fn from(message: Message) -> Self {
        let event = MessagePersisted::of(message);
        let message = event.payload;
        Self {
            channel_id: message.chat_id,
            ts: message.created_at.unix_millis(),
            event_id: event.event_id,
            message_id: message.message_id,
            role: Author::of(&message.sender_id),
            sender_id: message.sender_id,
            content: message.content.into(),
            content_type: Format::of(&message.content_type),
            created_at_iso: message.created_at,
            metadata: Metadata { sequence: message.sequence },
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// `next` of the page before.
    cursor: Option<u64>,
    /// At most so many; a page may hold fewer although it is not the last.
    limit: Option<NonZeroU32>,
}

#[derive(Serialize, JsonSchema)]
struct EventList {
    /// Oldest first.
    events: Vec<EventView>,
    /// The cursor of the next page; null at the end.
    next: Option<u64>,
}

async fn send(ask: Ask<Caller, ChatId, NewEvent>) -> Result<Once<EventView>, Refusal> {
    let NewEvent { client_message_id, content, content_type } = ask.input;
    check_client_message_id(&client_message_id)?;
    check_content(&content)?;
    let message = SendMessage {
        chat_id: ask.path,
        sender_id: ask.who.user_id,
        client_message_id,
        content: content.into(),
        content_type: content_type.media_type().into(),
    };
    match command_about(&ask.api, &message.chat_id, Command::SendMessage(message.clone())).await? {
        Answer::Sent(sent) => {
            let stored = Message {
                chat_id: sent.chat_id,
                sequence: sent.sequence,
                message_id: sent.message_id,
                sender_id: message.sender_id,
                client_message_id: message.client_message_id,
                content: message.content,
                content_type: message.content_type,
                created_at: sent.created_at,
            };
            Ok(Once { made: stored.into(), before: sent.deduplicated })
        }
        other => Err(unexpected(&other)),
    }
}

async fn read(ask: Ask<Caller, ChatId, Wanted>) -> Result<Found<EventList>, Refusal> {
    let limit = at_most(ask.input.limit, LARGEST_PAGE)?;
    membership(&ask.api, &ask.path, &ask.who).await?;
    let after = ask.input.cursor.unwrap_or(0);
    let later = |limit| messages::after(&*ask.api.store, &ask.path, after, limit);
    let page = page(limit, later, |message| message.sequence).await?;
    Ok(Found(EventList { events: page.items.into_iter().map(Into::into).collect(), next: page.next }))
}
