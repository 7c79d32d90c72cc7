//! Users with their phone numbers and lists of chats, and sessions with their users. A number's item is written in one
//! transaction with its user, so each has the other at any moment.

use std::collections::BTreeSet;
use std::sync::Arc;

use courant_connectors::model::UserId;
use courant_connectors::model::tables::chat_memberships;
use courant_connectors::model::tables::sessions::{self, Session};
use courant_connectors::model::tables::users::{self, User};
use courant_connectors::store::{Consistency, Get, Item, Key, Query};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::Result;
use super::chats::QUESTIONS;
use super::checks;
use super::context::Context;
use super::members::{BY_USER, Rows, check_index};
use super::pages::each_page;
use super::reads::strongly;
use super::report::Example;

/// Beside users, the table has an item for each phone number that keeps it for one of them: its id begins with this.
const KEPT_NUMBER: &str = "phone#";
/// For whom.
const OWNER: &str = "owner_id";

pub(super) async fn run_users(context: &Arc<Context>) -> Result<()> {
    each_page(context, &users::SCHEMA, check_users).await
}

async fn check_users(context: Arc<Context>, items: Vec<Item>) -> Result<()> {
    let (numbers, items): (Vec<Item>, Vec<Item>) =
        items.into_iter().partition(|item| number_kept_by(item).is_some());
    let users = context.records(&users::SCHEMA, &items, User::from_item);
    drop(items);
    if context.wants(&checks::PHONE_USER) {
        check_numbers(&context, &numbers).await?;
        check_phones(&context, &users).await?;
    }
    if context.wants(&checks::INDEX_AGREES) {
        let each = stream::iter(&users).map(Ok);
        each.try_for_each_concurrent(QUESTIONS, |user| check_chats(&context, &user.user_id)).await?;
    }
    Ok(())
}

fn number_kept_by(item: &Item) -> Option<&str> {
    item.text("user_id")?.strip_prefix(KEPT_NUMBER)
}

fn kept_number(phone_number: &str) -> Get {
    strongly(users::lookup(&format!("{KEPT_NUMBER}{phone_number}").into()))
}

/// Numbers are kept for users who have them.
async fn check_numbers(context: &Context, numbers: &[Item]) -> Result<()> {
    context.looked_at(&checks::PHONE_USER, numbers.len());
    let owner = |item: &Item| UserId::from(item.text(OWNER).unwrap_or_default());
    let owners: Vec<UserId> = numbers.iter().map(owner).collect();
    let gets = owners.iter().map(|owner| strongly(users::lookup(owner))).collect();
    let found = context.reads.get_all(gets).await?;
    for ((item, owner), user) in numbers.iter().zip(&owners).zip(found) {
        let Some(number) = number_kept_by(item) else { continue };
        let has = user.as_ref().and_then(|user| user.text("phone_number"));
        if has == Some(number) || context.reads.get(kept_number(number)).await?.as_ref() != Some(item) {
            continue;
        }
        let problem = if has.is_some() { "has another" } else { "is not there" };
        let detail = format!("the number {number} is kept for a user who {problem}");
        context.found(&checks::PHONE_USER, Example::about(owner).saying(detail));
    }
    Ok(())
}

/// Users have numbers that are kept for them. Agents have none.
async fn check_phones(context: &Context, users: &[User]) -> Result<()> {
    let people = || users.iter().filter(|user| !user.user_id.is_agent());
    context.looked_at(&checks::PHONE_USER, people().count());
    let kept = context.reads.get_all(people().map(|user| kept_number(&user.phone_number)).collect()).await?;
    for (user, item) in people().zip(kept) {
        let owner = item.as_ref().and_then(|item| item.text(OWNER));
        if owner == Some(user.user_id.as_str()) {
            continue;
        }
        let again = context.reads.get(strongly(users::lookup(&user.user_id))).await?;
        if again.as_ref().and_then(|item| item.text("phone_number")) != Some(&user.phone_number) {
            continue;
        }
        let problem = owner.map_or_else(|| "nobody".to_owned(), |other| format!("user {other}"));
        let detail = format!("their number {} is kept for {problem}", user.phone_number);
        context.found(&checks::PHONE_USER, Example::about(&user.user_id).saying(detail));
    }
    Ok(())
}

/// What the index lists of a user is in the table.
async fn check_chats(context: &Context, user: &UserId) -> Result<()> {
    let mut query = Query::new(chat_memberships::SCHEMA.name.clone(), "user_id", user);
    query.index = Some(BY_USER);
    let listed = context.reads.query_all(query).await?;
    let chats: Vec<_> = listed.iter().filter_map(|item| item.text("chat_id")).map(Into::into).collect();
    let gets = chats.iter().map(|chat| chat_memberships::lookup(chat, user)).collect();
    let found = context.reads.get_all(gets).await?;
    for (chat, _) in chats.iter().zip(found).filter(|(_, item)| item.is_none()) {
        check_index(context, chat, user, Rows::OfIndex).await?;
    }
    Ok(())
}

pub(super) async fn run_sessions(context: &Arc<Context>) -> Result<()> {
    each_page(context, &sessions::SCHEMA, check_sessions).await
}

async fn check_sessions(context: Arc<Context>, items: Vec<Item>) -> Result<()> {
    context.check_ends(&sessions::SCHEMA, &items);
    let sessions = context.records(&sessions::SCHEMA, &items, Session::from_item);
    drop(items);
    if !context.wants(&checks::SESSION_USER) {
        return Ok(());
    }
    context.looked_at(&checks::SESSION_USER, sessions.len());
    let users: BTreeSet<&UserId> = sessions.iter().map(|session| &session.user_id).collect();
    let gets = users.iter().map(|user| strongly(users::lookup(user))).collect();
    let found = context.reads.get_all(gets).await?;
    let gone = users.into_iter().zip(found).filter(|(_, item)| item.is_none());
    let gone: BTreeSet<&UserId> = gone.map(|(user, _)| user).collect();
    for session in sessions.iter().filter(|session| gone.contains(&session.user_id)) {
        // It may have been revoked meanwhile.
        let key = Key::new("session_id", &session.session_id);
        let again = Get { table: sessions::SCHEMA.name.clone(), key, consistency: Consistency::Strong };
        if context.reads.get(again).await?.is_some() {
            let detail = format!("session {} is of no user", session.session_id);
            context.found(&checks::SESSION_USER, Example::about(&session.user_id).saying(detail));
        }
    }
    Ok(())
}
