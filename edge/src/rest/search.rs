//! `/search`: finding what was said.
//!
//! The index knows words, the store knows who may read them. A search looks in the chats that the store lists for the
//! caller, or in the one that they name, and before anything is answered the store is asked once more, strongly, about
//! the chats on the page: whoever was removed a moment ago finds nothing, however late lists and indexes are.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::tables::chat_memberships;
use courant_connectors::model::{ChatId, MessageId, Timestamp, UserId};
use courant_connectors::search::{Ask as Search, Hit, Query, SearchError, Unanswered};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::chats::membership;
use super::fields::Id;
use super::input::bad_request;
use super::page::at_most;
use super::query::unavailable;
use super::reply::Found;
use super::route::{Ask, Route};
use crate::api::Api;
use crate::auth::Caller;

/// Each result is a document to read, and its chat one to ask about.
const LARGEST_PAGE: u32 = 100;
/// A search that takes longer holds up others.
const PATIENCE: Duration = Duration::from_secs(2);
/// Chats that are looked into at a time. Far more than people are in; who is in more names one.
const MOST_CHATS: usize = 20_000;
/// When to come back if there are too many searches: about as long as one takes.
const CROWDED: Duration = Duration::from_secs(1);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/search", "Messages of your chats that fit, newest first", search)
            .refuses(&[Code::NotAMember, Code::NotFound]),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// Words that must all be there, in any order; `"words in quotes"` side by side; `begin*` for every word that begins
    /// so; `-word` for one that must not be there. Upper case, accents and width make no difference.
    #[schemars(length(min = 1, max = 256))]
    q: String,
    /// Only in this chat; in all of yours if left out.
    chat_id: Option<Id<ChatId>>,
    /// Only messages that were written before this moment.
    before: Option<Timestamp>,
    /// At most so many; a page may hold fewer although it is not the last.
    limit: Option<NonZeroU32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// A message that was found.
#[derive(Serialize, JsonSchema)]
struct FoundMessage {
    message_id: MessageId,
    chat_id: ChatId,
    sequence: u64,
    sender_id: UserId,
    content_type: String,
    created_at: Timestamp,
    /// The part of the message that fits, as HTML: what people wrote is escaped, and the words that were searched for are
    /// in `<mark>`.
    snippet: String,
}

#[derive(Serialize, JsonSchema)]
struct Results {
    /// Newest first.
    results: Vec<FoundMessage>,
    /// The cursor of the next page; null at the end.
    next: Option<String>,
}

impl From<Hit> for FoundMessage {
    fn from(Hit { message, snippet }: Hit) -> Self {
        Self {
            message_id: MessageId::from(&*message.message_id),
            chat_id: ChatId::from(&*message.chat_id),
            sequence: message.sequence,
            sender_id: UserId::from(&*message.sender_id),
            content_type: message.content_type.into_owned(),
            created_at: message.created_at,
            snippet,
        }
    }
}

async fn search(ask: Ask<Caller, (), Wanted>) -> Result<Found<Results>, Refusal> {
    let Wanted { q, chat_id, before, limit, cursor } = ask.input;
    let query = Query::parse(&q).map_err(|wrong| bad_request(format!("q: {wrong}")))?;
    let limit = at_most(limit, LARGEST_PAGE)?.get() as usize;
    let after = cursor.map(|cursor| cursor.parse()).transpose();
    let after = after.map_err(|wrong| bad_request(format!("cursor: {wrong}")))?;
    let chats = match chat_id {
        Some(Id(chat)) => {
            membership(&ask.api, &chat, &ask.who).await?;
            vec![chat]
        }
        None => chats_of(&ask.api, &ask.who).await?,
    };
    let search = Search { query, chats, before, after, limit, patience: PATIENCE };
    let page = ask.api.searches.ask(search).await.map_err(unanswered)?;
    let mut results: Vec<FoundMessage> = page.hits.into_iter().map(Into::into).collect();
    let chats: BTreeSet<&ChatId> = results.iter().map(|found| &found.chat_id).collect();
    let chats: Vec<ChatId> = chats.into_iter().cloned().collect();
    let own = own_of(&ask.api, &ask.who, &chats).await?;
    results.retain(|found| own.contains(&found.chat_id));
    Ok(Found(Results { results, next: page.next.map(|next| next.to_string()) }))
}

/// Every chat that the caller is in, as far as the list knows.
async fn chats_of(api: &Api, caller: &Caller) -> Result<Vec<ChatId>, Refusal> {
    let (mut chats, mut after) = (Vec::new(), None);
    loop {
        let page = chat_memberships::of_user(&*api.store, &caller.user_id, after.as_ref(), None).await;
        let page = page.map_err(unavailable)?;
        chats.extend(page.items.into_iter().map(|membership| membership.chat_id));
        if chats.len() > MOST_CHATS {
            let many = format!("you are in more than {MOST_CHATS} chats; say which one with chat_id");
            return Err(bad_request(many));
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(chats),
        }
    }
}

/// Which of these chats the caller is in now, whatever lists say.
pub(super) async fn own_of(
    api: &Api,
    caller: &Caller,
    chats: &[ChatId],
) -> Result<BTreeSet<ChatId>, Refusal> {
    if chats.is_empty() {
        return Ok(BTreeSet::new());
    }
    let members = chat_memberships::check_many(&*api.store, chats, &caller.user_id).await;
    let own = chats.iter().zip(members.map_err(unavailable)?);
    Ok(own.filter_map(|(chat, member)| member.map(|_| chat.clone())).collect())
}

/// Why there is no answer. What exactly went wrong is for the operator.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn unanswered(error: Unanswered) -> Refusal {
    match &error {
        Unanswered::NoIndex => {
            let here =
                "search is not to be had here: this process keeps no search index, or is just opening it";
            Refusal::new(Code::Unavailable, here)
        }
        Unanswered::Crowded => Refusal::new(Code::Unavailable, "too many searches are being made; try again")
            .retry_after(CROWDED),
        Unanswered::Failed(SearchError::TooManyWords(_)) => bad_request(format!("q: {error}")),
        Unanswered::Failed(SearchError::TooSlow) => Refusal::new(Code::Timeout, error.to_string()),
        Unanswered::Failed(failed) => {
            tracing::error!(error = %failed, "a search failed");
            Refusal::new(Code::Unavailable, "the search index cannot answer now; try again")
        }
    }
}
