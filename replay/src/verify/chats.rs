//! Chats with their counters and members, and counters with their chats. A chat, its counter and its first members are
//! there together or not at all; roles and members change later, so a chat that seems to be without an owner is looked
//! at again.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat, ChatType, SCHEMA};
use courant_connectors::store::{Consistency, Item, Query};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::Result;
use super::checks;
use super::context::{Context, is_older, now};
use super::pages::each_page;
use super::reads::strongly;
use super::report::Example;

/// Questions at the same time, of each worker: enough to hide the way to a server and back.
pub(super) const QUESTIONS: usize = 16;
/// Members of large groups come in several answers, between which an owner can hand over to somebody in one that was
/// read already. That does not happen three times in a row.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

pub(super) async fn run(context: &Arc<Context>) -> Result<()> {
    each_page(context, &SCHEMA, check_page).await
}

async fn check_page(context: Arc<Context>, items: Vec<Item>) -> Result<()> {
    let chats = context.records(&SCHEMA, &items, Chat::from_item);
    drop(items);
    if context.wants(&checks::COUNTER_EXISTS) {
        check_counters(&context, &chats).await?;
    }
    if context.wants_any(&[&checks::CHAT_OWNER, &checks::DIRECT_PAIR]) {
        let settled = |chat: &&Chat| is_older(chat.created_at, context.options.grace, now());
        let each = stream::iter(chats.iter().filter(settled)).map(Ok);
        each.try_for_each_concurrent(QUESTIONS, |chat| check_members(&context, chat)).await?;
    }
    Ok(())
}

async fn check_counters(context: &Context, chats: &[Chat]) -> Result<()> {
    context.looked_at(&checks::COUNTER_EXISTS, chats.len());
    let lookup = |chat: &Chat| chat_counters::lookup(&chat.chat_id, Consistency::Strong);
    let found = context.reads.get_all(chats.iter().map(lookup).collect()).await?;
    for (chat, counter) in chats.iter().zip(found) {
        if counter.is_none() && context.reads.get(strongly(chats::lookup(&chat.chat_id))).await?.is_some() {
            let example = Example::of(&chat.chat_id).saying("the chat has no counter");
            context.found(&checks::COUNTER_EXISTS, example);
        }
    }
    Ok(())
}

async fn check_members(context: &Context, chat: &Chat) -> Result<()> {
    context.looked_at(&checks::CHAT_OWNER, 1);
    let is_direct = chat.chat_type == ChatType::Direct;
    context.looked_at(&checks::DIRECT_PAIR, usize::from(is_direct));
    let (mut owners, mut members) = (0, 0);
    for look in 1..=LOOKS {
        let listed = members_of(context, &chat.chat_id).await?;
        owners = listed.iter().filter(|member| member.role == Role::Owner).count();
        members = listed.len();
        if owners > 0 && (!is_direct || members == 2) {
            return Ok(());
        }
        if look < LOOKS {
            context.pause(BETWEEN_LOOKS).await?;
        }
    }
    let example = |detail: String| Example::of(&chat.chat_id).saying(detail);
    if owners == 0 {
        let detail = format!("none of {members} members is an owner");
        context.found(&checks::CHAT_OWNER, example(detail));
    }
    if is_direct && members != 2 {
        context.found(&checks::DIRECT_PAIR, example(format!("it has {members} members")));
    }
    Ok(())
}

/// Everybody in a chat whose membership can be read.
pub(super) async fn members_of(context: &Context, chat: &ChatId) -> Result<Vec<Membership>> {
    let mut query = Query::new(chat_memberships::SCHEMA.name.clone(), "chat_id", chat);
    query.consistency = Consistency::Strong;
    let items = context.reads.query_all(query).await?;
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
