//! Memberships with their chats, their users and the index that lists a user's chats. Memberships come and go, and the
//! index follows its table with a delay: what seems wrong is asked for again, until the grace period is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::tables::chat_memberships::{self, Membership, SCHEMA};
use courant_connectors::model::tables::{chats, users};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{Get, Item, Name, Query, SortRange, Within};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use std::ops::Bound;
use tokio::time::Instant;

use super::Result;
use super::chats::QUESTIONS;
use super::checks;
use super::context::{Context, is_older, now};
use super::pages::each_page;
use super::reads::strongly;
use super::report::Example;

pub(super) const BY_USER: Name = Name::new_static("user_chats-index");
/// How often an index is asked whether it has come after its table.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// So many disagreements and an index is not late but wrong: the rest is not waited for.
const WAIT_FOR: u64 = 100;

pub(super) async fn run(context: &Arc<Context>) -> Result<()> {
    each_page(context, &SCHEMA, check_page).await
}

async fn check_page(context: Arc<Context>, items: Vec<Item>) -> Result<()> {
    let memberships = context.records(&SCHEMA, &items, Membership::from_item);
    drop(items);
    if context.wants(&checks::MEMBERSHIP_CHAT) {
        // A large group's members are written before its chat.
        let settled = |member: &&Membership| is_older(member.joined_at, context.options.grace, now());
        let settled: Vec<_> = memberships.iter().filter(settled).collect();
        context.looked_at(&checks::MEMBERSHIP_CHAT, settled.len());
        let chat_of = |member: &Membership| strongly(chats::lookup(&member.chat_id));
        for member in without(&context, settled, |member| member.chat_id.as_str(), chat_of).await? {
            let example = Example::of(&member.chat_id).with(&member.user_id);
            context.found(&checks::MEMBERSHIP_CHAT, example.saying("there is no such chat"));
            context.leftovers.add(&member.chat_id);
        }
    }
    if context.wants(&checks::MEMBERSHIP_USER) {
        context.looked_at(&checks::MEMBERSHIP_USER, memberships.len());
        let user_of = |member: &Membership| strongly(users::lookup(&member.user_id));
        let all = memberships.iter().collect();
        for member in without(&context, all, |member| member.user_id.as_str(), user_of).await? {
            let example = Example::of(&member.chat_id).with(&member.user_id);
            context.found(&checks::MEMBERSHIP_USER, example.saying("there is no such user"));
        }
    }
    if context.wants(&checks::INDEX_AGREES) {
        context.looked_at(&checks::INDEX_AGREES, memberships.len());
        let each = stream::iter(&memberships).map(Ok);
        each.try_for_each_concurrent(QUESTIONS, |member| {
            check_index(&context, &member.chat_id, &member.user_id, Rows::OfTable)
        })
        .await?;
    }
    Ok(())
}

/// The memberships that are still there although what they belong to is not.
async fn without<'a>(
    context: &Context,
    memberships: Vec<&'a Membership>,
    name: impl Fn(&'a Membership) -> &'a str,
    lookup: impl Fn(&Membership) -> Get,
) -> Result<Vec<&'a Membership>> {
    let gets: BTreeMap<&str, Get> = memberships.iter().map(|member| (name(member), lookup(member))).collect();
    let names: Vec<&str> = gets.keys().copied().collect();
    let found = context.reads.get_all(gets.into_values().collect()).await?;
    let gone = names.into_iter().zip(found).filter(|(_, item)| item.is_none());
    let gone: BTreeSet<&str> = gone.map(|(name, _)| name).collect();
    let mut left = Vec::new();
    for member in memberships.into_iter().filter(|member| gone.contains(name(member))) {
        let again = chat_memberships::lookup(&member.chat_id, &member.user_id);
        if context.reads.get(again).await?.is_some() {
            left.push(member);
        }
    }
    Ok(left)
}

/// Whose rows are being read; the other side is looked at for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    OfTable,
    /// Only what the table does not have at all, since the rest is found from there.
    OfIndex,
}

/// Compares one membership with its row of the index, until they agree or the index has had time enough.
pub(super) async fn check_index(context: &Context, chat: &ChatId, user: &UserId, rows: Rows) -> Result<()> {
    let began = Instant::now();
    loop {
        let indexed = context.reads.query_all(index_row(chat, user)).await?.pop();
        let stored = context.reads.get(chat_memberships::lookup(chat, user)).await?;
        let detail = match (&stored, &indexed) {
            _ if stored == indexed => return Ok(()),
            (Some(_), _) if rows == Rows::OfIndex => return Ok(()),
            (None, _) => "the index has it, and the table does not",
            (Some(_), None) => "the table has it, and the index does not",
            (Some(_), Some(_)) => "the index has other attributes than the table",
        };
        let has_waited = began.elapsed() >= context.options.grace;
        if has_waited || context.findings.count(&checks::INDEX_AGREES) >= WAIT_FOR {
            context.found(&checks::INDEX_AGREES, Example::of(chat).with(user).saying(detail));
            return Ok(());
        }
        context.pause(ASK_EVERY.min(context.options.grace)).await?;
    }
}

fn index_row(chat: &ChatId, user: &UserId) -> Query {
    let mut query = Query::new(SCHEMA.name.clone(), "user_id", user);
    query.index = Some(BY_USER);
    let only = || Bound::Included(chat.into());
    let within = Within::Bounds(only(), only());
    query.range = Some(SortRange { attribute: Name::new_static("chat_id"), within });
    query
}
