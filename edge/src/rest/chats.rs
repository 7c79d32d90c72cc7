//! `/chats`: making chats, listing one's own, looking at one, renaming it.

use courant_connectors::model::commands::{
    Answer, ChatAnswer, Code, Command, CreateChat, Refusal, RenameChat,
};
use courant_connectors::model::tables::chat_counters;
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat, ChatType, MAX_MEMBERS};
use courant_connectors::model::tables::delivery_state::{self, DeliveryState};
use courant_connectors::model::{ChatId, Timestamp, UserId};
use courant_connectors::store::ReadStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fields::{Id, Name};
use super::input::bad_request;
use super::page::{Paging, page};
use super::query::{command, no_such_chat, not_theirs, unavailable, unexpected};
use super::reply::{Created, Found};
use super::route::{Ask, Route};
use crate::api::Api;
use crate::auth::Caller;

/// Each chat of a page is three look-ups.
const LARGEST_PAGE: u32 = 100;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/chats", "Make a chat", create).refuses(&[Code::NotFound, Code::Conflict]),
        Route::get("/chats", "Your chats", list),
        Route::get("/chats/{chat_id}", "A chat", look).refuses(&[Code::NotAMember]),
        Route::patch("/chats/{chat_id}", "Rename a group", rename)
            .refuses(&[Code::NotAMember, Code::Forbidden]),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    chat_type: ChatType,
    /// Of a group, if it has one; a direct chat is called as the other.
    name: Option<Name>,
    /// The others: one for a direct chat, up to 999 for a group. Whoever makes the chat is in it, named or not.
    members: Vec<Id<UserId>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rename {
    name: Name,
}

/// A chat as one of its members sees it.
#[derive(Serialize, JsonSchema)]
struct ChatView {
    chat_id: ChatId,
    chat_type: ChatType,
    name: Option<String>,
    created_by: UserId,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// Your own.
    role: Role,
    joined_at: Timestamp,
    /// Of the latest message; 0 if there is none.
    last_sequence: u64,
    /// Up to where messages have arrived at one of your devices; 0 if none has.
    delivered_sequence: u64,
    /// Up to where you have read, as far as one of your devices has said so; 0 if none has.
    read_sequence: u64,
}

#[derive(Serialize, JsonSchema)]
struct ChatList {
    chats: Vec<ChatView>,
    /// The cursor of the next page; null at the end.
    next: Option<ChatId>,
}

async fn create(ask: Ask<Caller, (), Create>) -> Result<Created<ChatAnswer>, Refusal> {
    let Create { chat_type, name, members } = ask.input;
    let created_by = ask.who.user_id;
    let members: Vec<UserId> = members.into_iter().map(|id| id.0).filter(|id| *id != created_by).collect();
    check_members(chat_type, &members)?;
    let name = name.map(|name| name.0);
    if chat_type == ChatType::Direct && name.is_some() {
        return Err(bad_request("a direct chat has no name"));
    }
    let create = CreateChat { chat_id: ChatId::generate(), chat_type, name, created_by, members };
    match command(&ask.api, Command::CreateChat(create)).await? {
        Answer::Chat(chat) => Ok(Created(chat)),
        other => Err(unexpected(&other)),
    }
}

fn check_members(chat_type: ChatType, members: &[UserId]) -> Result<(), Refusal> {
    match chat_type {
        ChatType::Direct if members.len() != 1 => {
            return Err(bad_request("a direct chat is with exactly one other"));
        }
        ChatType::Group if members.len() >= MAX_MEMBERS as usize => {
            return Err(bad_request(format!("a group has at most {MAX_MEMBERS} members, you included")));
        }
        _ => {}
    }
    let mut sorted: Vec<&UserId> = members.iter().collect();
    sorted.sort_unstable();
    if let Some([twice, ..]) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(bad_request(format!("members: {twice} is there twice")));
    }
    Ok(())
}

async fn list(ask: Ask<Caller, (), Paging<Id<ChatId>>>) -> Result<Found<ChatList>, Refusal> {
    let (store, limit) = (&*ask.api.store, ask.input.limit(LARGEST_PAGE)?);
    let of_user = |limit| chat_memberships::of_user(store, &ask.who.user_id, ask.input.cursor(), Some(limit));
    let page = page(limit, of_user, |membership| membership.chat_id.clone()).await?;
    let chats = views(store, &ask.who.user_id, page.items).await?;
    Ok(Found(ChatList { chats, next: page.next }))
}

async fn look(ask: Ask<Caller, ChatId>) -> Result<Found<ChatView>, Refusal> {
    let membership = membership(&ask.api, &ask.path, &ask.who).await?;
    let views = views(&*ask.api.store, &ask.who.user_id, vec![membership]).await?;
    views.into_iter().next().map(Found).ok_or_else(no_such_chat)
}

async fn rename(ask: Ask<Caller, ChatId, Rename>) -> Result<Found<ChatAnswer>, Refusal> {
    let rename = RenameChat { chat_id: ask.path, by: ask.who.user_id, name: ask.input.name.0 };
    match command(&ask.api, Command::RenameChat(rename)).await? {
        Answer::Chat(chat) => Ok(Found(chat)),
        other => Err(unexpected(&other)),
    }
}

/// The caller's membership of a chat, which everything about the chat needs.
pub(super) async fn membership(api: &Api, chat: &ChatId, caller: &Caller) -> Result<Membership, Refusal> {
    let found = chat_memberships::check(&*api.store, chat, &caller.user_id).await.map_err(unavailable)?;
    match found {
        Some(membership) => Ok(membership),
        None => Err(not_theirs(&*api.store, chat).await),
    }
}

/// Chats with what is the user's own about them. A membership whose chat does not exist is left out: a group that is
/// being made has its members first.
async fn views(
    store: &dyn ReadStore,
    user: &UserId,
    memberships: Vec<Membership>,
) -> Result<Vec<ChatView>, Refusal> {
    let ids: Vec<ChatId> = memberships.iter().map(|membership| membership.chat_id.clone()).collect();
    let (chats, counters, states) = tokio::try_join!(
        chats::get_many(store, &ids),
        chat_counters::get_many(store, &ids),
        delivery_state::get_many(store, user, &ids),
    )
    .map_err(unavailable)?;
    let parts = memberships.into_iter().zip(chats).zip(counters.into_iter().zip(states));
    let views = parts.filter_map(|((membership, chat), (counter, state))| {
        let last_sequence = counter.map_or(0, |counter| counter.sequence_counter);
        Some(view(chat?, &membership, last_sequence, state))
    });
    Ok(views.collect())
}

fn view(chat: Chat, membership: &Membership, last_sequence: u64, state: Option<DeliveryState>) -> ChatView {
    let (delivered_sequence, read_sequence) =
        state.map_or((0, 0), |state| (state.last_acked_sequence, state.read_sequence));
    ChatView {
        chat_id: chat.chat_id,
        chat_type: chat.chat_type,
        name: chat.name,
        created_by: chat.created_by,
        created_at: chat.created_at,
        updated_at: chat.updated_at,
        role: membership.role,
        joined_at: membership.joined_at,
        last_sequence,
        delivered_sequence,
        read_sequence,
    }
}
