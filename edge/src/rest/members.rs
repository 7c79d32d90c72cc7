//! `/chats/{chat_id}/members`: who is in a chat, and changing that. What one may change is decided by the pipeline.

use courant_connectors::model::commands::{
    AddMember, Answer, Code, Command, Member, Refusal, RemoveMember, SetRole,
};
use courant_connectors::model::tables::chat_memberships::{self, Role};
use courant_connectors::model::tables::chats::MAX_MEMBERS;
use courant_connectors::model::{ChatId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chats::membership;
use super::fields::Id;
use super::input::bad_request;
use super::page::{Paging, page};
use super::query::{command, unexpected};
use super::reply::{Found, Left};
use super::route::{Ask, Route};
use crate::auth::Caller;

/// A whole group.
const LARGEST_PAGE: u32 = MAX_MEMBERS;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/chats/{chat_id}/members", "Who is in a chat", list).refuses(&[Code::NotAMember]),
        Route::post("/chats/{chat_id}/members", "Add, remove or promote somebody, or leave", change)
            .refuses(&[Code::NotAMember, Code::Forbidden, Code::Conflict]),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Action {
    Add,
    Remove,
    SetRole,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Change {
    user_id: Id<UserId>,
    action: Action,
    /// As what they are added, a member if left out; or what they become.
    role: Option<Role>,
}

#[derive(Serialize, JsonSchema)]
struct MemberList {
    members: Vec<Member>,
    /// The cursor of the next page; null at the end.
    next: Option<UserId>,
}

async fn list(ask: Ask<Caller, ChatId, Paging<Id<UserId>>>) -> Result<Found<MemberList>, Refusal> {
    let limit = ask.input.limit(LARGEST_PAGE)?;
    membership(&ask.api, &ask.path, &ask.who).await?;
    let of_chat = |limit| chat_memberships::list(&*ask.api.store, &ask.path, ask.input.cursor(), Some(limit));
    let page = page(limit, of_chat, |membership| membership.user_id.clone()).await?;
    let members = page.items.into_iter().map(Member::from).collect();
    Ok(Found(MemberList { members, next: page.next }))
}

async fn change(ask: Ask<Caller, ChatId, Change>) -> Result<Left<Member>, Refusal> {
    let (chat_id, by, user_id) = (ask.path, ask.who.user_id, ask.input.user_id.0);
    let change = match (ask.input.action, ask.input.role) {
        (Action::Add, role) => {
            Command::AddMember(AddMember { chat_id, by, user_id, role: role.unwrap_or(Role::Member) })
        }
        (Action::SetRole, Some(role)) => Command::SetRole(SetRole { chat_id, by, user_id, role }),
        (Action::SetRole, None) => return Err(bad_request("body: set_role needs a role")),
        (Action::Remove, None) => Command::RemoveMember(RemoveMember { chat_id, by, user_id }),
        (Action::Remove, Some(_)) => return Err(bad_request("body: remove takes no role")),
    };
    match command(&ask.api, change).await? {
        Answer::Member(member) => Ok(Left(Some(member))),
        Answer::Done => Ok(Left(None)),
        other => Err(unexpected(&other)),
    }
}
