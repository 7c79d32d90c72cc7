//! Chats with their counters and members, and counters with their chats. A chat, its counter and its first members are
//! there together or not at all, unless it is a large group that is forming; members change later, so a chat whose
//! members seem to be wrong is looked at again.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat, ChatState, ChatType, Roster, SCHEMA};
use courant_connectors::store::{Consistency, Item, Query};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::Result;
use super::checks::{self, Check};
use super::context::{Context, is_older, now};
use super::pages::each_page;
use super::reads::strongly;
use super::report::Example;

/// Questions at the same time, of each worker: enough to hide the way to a server and back.
pub(crate) const QUESTIONS: usize = 16;
/// A chat whose members change during every one of these is left alone.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

pub(super) async fn run(context: &Arc<Context>) -> Result<()> {
    each_page(context, &SCHEMA, check_page).await
}

async fn check_page(context: Arc<Context>, items: Vec<Item>) -> Result<()> {
    let states = context.records(&SCHEMA, &items, ChatState::from_item);
    drop(items);
    let (forming, formed): (Vec<_>, Vec<_>) = states.into_iter().partition(|state| state.is_forming);
    context.looked_at(&checks::CHAT_FORMED, forming.len() + formed.len());
    for ChatState { chat, .. } in &forming {
        check_formed(&context, chat).await?;
    }
    if context.wants(&checks::COUNTER_EXISTS) {
        check_counters(&context, &formed).await?;
    }
    if context.wants_any(&[&checks::CHAT_OWNER, &checks::CHAT_COUNTS, &checks::DIRECT_PAIR]) {
        let each = stream::iter(&formed).map(Ok);
        each.try_for_each_concurrent(QUESTIONS, |state| check_members(&context, &state.chat)).await?;
    }
    Ok(())
}

/// The chat as it is now; nothing if it is gone, or cannot be read, which is told elsewhere.
async fn state_of(context: &Context, chat: &ChatId) -> Result<Option<ChatState>> {
    let item = context.reads.get(chats::state_lookup(chat)).await?;
    Ok(item.and_then(|item| ChatState::from_item(&item).ok()))
}

async fn check_formed(context: &Context, chat: &Chat) -> Result<()> {
    if is_older(chat.created_at, context.options.grace, now())
        && state_of(context, &chat.chat_id).await?.is_some_and(|state| state.is_forming)
    {
        let detail = format!("forming since {}", chat.created_at);
        context.found(&checks::CHAT_FORMED, Example::of(&chat.chat_id).saying(detail));
        context.leftovers.add(&chat.chat_id);
    }
    Ok(())
}

async fn check_counters(context: &Context, formed: &[ChatState]) -> Result<()> {
    context.looked_at(&checks::COUNTER_EXISTS, formed.len());
    let lookup = |state: &ChatState| chat_counters::lookup(&state.chat.chat_id, Consistency::Strong);
    let found = context.reads.get_all(formed.iter().map(lookup).collect()).await?;
    for (ChatState { chat, .. }, counter) in formed.iter().zip(found) {
        if counter.is_none() && state_of(context, &chat.chat_id).await?.is_some() {
            let example = Example::of(&chat.chat_id).saying("the chat has no counter");
            context.found(&checks::COUNTER_EXISTS, example);
        }
    }
    Ok(())
}

/// A change of members changes the chat's item too: if that is the same before and after, so were its members all the
/// while.
async fn check_members(context: &Context, chat: &Chat) -> Result<()> {
    for look in 1..=LOOKS {
        let Some(before) = state_of(context, &chat.chat_id).await? else { return Ok(()) };
        let members = memberships(context, &chat.chat_id).await?;
        let members: Result<Vec<_>, _> = members.iter().map(Membership::from_item).collect();
        // What cannot be read is told where memberships are.
        let Ok(members) = members else { return Ok(()) };
        let problems = problems_of(&before, &members);
        let is_settled = state_of(context, &chat.chat_id).await?.as_ref() == Some(&before);
        if problems.is_empty() || (look == LOOKS && is_settled) {
            context.looked_at(&checks::CHAT_OWNER, 1);
            context.looked_at(&checks::CHAT_COUNTS, usize::from(before.roster.is_some()));
            let is_direct = before.chat.chat_type == ChatType::Direct;
            context.looked_at(&checks::DIRECT_PAIR, usize::from(is_direct));
            for (check, detail) in problems {
                context.found(check, Example::of(&chat.chat_id).saying(detail));
            }
            return Ok(());
        }
        if look < LOOKS {
            context.pause(BETWEEN_LOOKS).await?;
        }
    }
    Ok(())
}

fn problems_of(state: &ChatState, members: &[Membership]) -> Vec<(&'static Check, String)> {
    let count = members.len() as u64;
    let owners = members.iter().filter(|member| member.role == Role::Owner).count() as u64;
    let mut problems: Vec<(&'static Check, String)> = Vec::new();
    if owners == 0 {
        problems.push((&checks::CHAT_OWNER, format!("none of {count} members is an owner")));
    }
    if state.chat.chat_type == ChatType::Direct && count != 2 {
        problems.push((&checks::DIRECT_PAIR, format!("it has {count} members")));
    }
    if let Some(counted) = state.roster.filter(|counted| (counted.members, counted.owners) != (count, owners))
    {
        let Roster { members, owners: of_them } = counted;
        let detail =
            format!("it counts {members} members and {of_them} owners, and has {count} and {owners}");
        problems.push((&checks::CHAT_COUNTS, detail));
    }
    problems
}

async fn memberships(context: &Context, chat: &ChatId) -> Result<Vec<Item>> {
    let mut query = Query::new(chat_memberships::SCHEMA.name.clone(), "chat_id", chat);
    query.consistency = Consistency::Strong;
    context.reads.query_all(query).await
}

/// Everybody in a chat whose membership can be read.
pub(crate) async fn members_of(context: &Context, chat: &ChatId) -> Result<Vec<Membership>> {
    let items = memberships(context, chat).await?;
    Ok(items.iter().filter_map(|item| Membership::from_item(item).ok()).collect())
}

pub(super) async fn run_counters(context: &Arc<Context>) -> Result<()> {
    each_page(context, &chat_counters::SCHEMA, check_counter_page).await
}

async fn check_counter_page(context: Arc<Context>, items: Vec<Item>) -> Result<()> {
    let counters = context.records(&chat_counters::SCHEMA, &items, ChatCounter::from_item);
    drop(items);
    if context.wants(&checks::COUNTER_FORWARD) {
        for counter in &counters {
            let lookup = chat_counters::lookup(&counter.chat_id, Consistency::Strong);
            context.samples.counters.add(lookup, counter.sequence_counter);
        }
    }
    if !context.wants(&checks::COUNTER_CHAT) {
        return Ok(());
    }
    context.looked_at(&checks::COUNTER_CHAT, counters.len());
    let gets = counters.iter().map(|counter| strongly(chats::lookup(&counter.chat_id))).collect();
    let found = context.reads.get_all(gets).await?;
    for (counter, chat) in counters.iter().zip(found) {
        let again = || chat_counters::lookup(&counter.chat_id, Consistency::Strong);
        if chat.is_none() && context.reads.get(again()).await?.is_some() {
            let detail = format!("the counter is at {}, and there is no such chat", counter.sequence_counter);
            context.found(&checks::COUNTER_CHAT, Example::of(&counter.chat_id).saying(detail));
        }
    }
    Ok(())
}
