//! `/sessions`: where somebody is signed in.

use courant_connectors::model::commands::{Code, Command, EndSessions, Refusal};
use courant_connectors::model::tables::sessions::{self, Session};
use courant_connectors::model::{DeviceId, SessionId, Timestamp};
use courant_pipeline::clock;
use schemars::JsonSchema;
use serde::Serialize;

use super::fields::Id;
use super::page::{Paging, page};
use super::query::{command, unavailable};
use super::reply::{Done, Found};
use super::route::{Ask, Route};
use crate::auth::Caller;

const LARGEST_PAGE: u32 = 100;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/sessions", "Where you are signed in", list),
        Route::delete("/sessions/{session_id}", "Sign a device of yours out", end),
    ]
}

#[derive(Serialize, JsonSchema)]
struct SessionView {
    session_id: SessionId,
    device_id: DeviceId,
    device_name: Option<String>,
    created_at: Timestamp,
    /// When it began or its tokens were last refreshed.
    last_used_at: Timestamp,
    /// Unless its tokens are refreshed before.
    expires_at: Timestamp,
    /// Whether it is the one that asks.
    current: bool,
}

impl SessionView {
    fn new(session: Session, caller: &Caller) -> Self {
        Self {
            current: session.session_id == caller.session_id,
            session_id: session.session_id,
            device_id: session.device_id,
            device_name: session.device_name,
            created_at: session.created_at,
            last_used_at: session.last_used_at,
            expires_at: session.expires_at,
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct SessionList {
    sessions: Vec<SessionView>,
    /// The cursor of the next page; null at the end.
    next: Option<SessionId>,
}

async fn list(ask: Ask<Caller, (), Paging<Id<SessionId>>>) -> Result<Found<SessionList>, Refusal> {
    let limit = ask.input.limit(LARGEST_PAGE)?;
    let of_user =
        |limit| sessions::of_user(&*ask.api.store, &ask.who.user_id, ask.input.cursor(), Some(limit));
    let page = page(limit, of_user, |session| session.session_id.clone()).await?;
    let sessions = page.items.into_iter().map(|session| SessionView::new(session, &ask.who)).collect();
    Ok(Found(SessionList { sessions, next: page.next }))
}

async fn end(ask: Ask<Caller, SessionId>) -> Result<Done, Refusal> {
    let now = Timestamp::from(clock::now());
    let session = sessions::current(&*ask.api.store, &ask.path, now).await.map_err(unavailable)?;
    // Somebody else's is as good as none.
    if session.is_none_or(|session| session.user_id != ask.who.user_id) {
        return Err(Refusal::new(Code::NotFound, "you have no such session"));
    }
    let end = EndSessions { user_id: ask.who.user_id, session_id: Some(ask.path) };
    command(&ask.api, Command::EndSessions(end)).await.map(|_| Done)
}
