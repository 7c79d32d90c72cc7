//! Removing what is left of large groups whose making died: a chat that is forming for ever, or memberships of a chat
//! that is not there (`docs/decisions/0006-large-groups.md`).
//!
//! Safe against somebody who is making the group at this moment. First the mark goes, if it is still that of the attempt
//! that was seen: every later part of that attempt finds it gone, and whoever carries the command out begins again. Then
//! the members, each part on the condition that nobody has begun again. And only where there is neither a counter nor a
//! message: a group that never formed has none, and a chat that lost its row by accident keeps what can restore it.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chat_memberships::Membership;
use courant_connectors::model::tables::chats::{self, ChatState};
use courant_connectors::model::tables::{chat_counters, chat_memberships, messages};
use courant_connectors::store::{Consistency, MAX_TRANSACTION, WriteStore};

use super::report::{Kept, Swept};
use crate::verify::Result;
use crate::verify::chats::members_of;
use crate::verify::context::{Context, is_older, now};
use crate::writes::{Written, transact};

const SWEEP: &str = "remove what is left of a group";
/// Members that fit into a transaction beside the two checks.
const REMOVED_TOGETHER: usize = MAX_TRANSACTION - 2;

/// What became of one.
enum Fate {
    Swept { members: u64 },
    Kept(&'static str),
}

pub(super) async fn leftovers(
    context: &Context,
    store: &Arc<dyn WriteStore>,
    after: Duration,
    swept: &mut Swept,
) -> Result<()> {
    context.begin_next("sweeping");
    let chats = context.leftovers.take();
    context.expect(chats.len() as u64);
    for chat in chats {
        context.check_stop()?;
        match sweep(context, store, after, &chat).await? {
            Fate::Swept { members } => {
                (swept.groups, swept.memberships) = (swept.groups + 1, swept.memberships + members);
            }
            Fate::Kept(why) => swept.keep(Kept { chat_id: chat, why: why.to_owned() }),
        }
        context.advance(1);
    }
    Ok(())
}

async fn sweep(
    context: &Context,
    store: &Arc<dyn WriteStore>,
    after: Duration,
    chat: &ChatId,
) -> Result<Fate> {
    if has_history(context, chat).await? {
        return Ok(Fate::Kept("it has a counter or messages, so it was a chat once: restore its row"));
    }
    let seen = match state_of(context, chat).await? {
        Seen::Forming(state) if is_older(state.chat.created_at, after, now()) => {
            let begun_at = state.chat.created_at;
            let writes = vec![chats::abandon_begun_write(chat, begun_at), chat_counters::still_missing(chat)];
            // Refused by our own first try, if its answer was lost: what is there now decides.
            transact(store, SWEEP, writes).await?;
            state_of(context, chat).await?
        }
        seen => seen,
    };
    match seen {
        Seen::Nothing => {
            let members = members_of(context, chat).await?;
            if members.iter().any(|member| !is_older(member.joined_at, after, now())) {
                return Ok(Fate::Kept("it is too new"));
            }
            remove_members(context, store, chat, &members).await
        }
        Seen::Forming(_) => Ok(Fate::Kept("it is being made, or too new")),
        Seen::Formed => Ok(Fate::Kept("it has been made meanwhile")),
        Seen::Unreadable => Ok(Fate::Kept("its row cannot be read")),
    }
}

enum Seen {
    Nothing,
    Forming(Box<ChatState>),
    Formed,
    Unreadable,
}

async fn state_of(context: &Context, chat: &ChatId) -> Result<Seen> {
    let item = context.reads.get(chats::state_lookup(chat)).await?;
    Ok(match item.as_ref().map(ChatState::from_item) {
        None => Seen::Nothing,
        Some(Ok(state)) if state.is_forming => Seen::Forming(Box::new(state)),
        Some(Ok(_)) => Seen::Formed,
        Some(Err(_)) => Seen::Unreadable,
    })
}

async fn has_history(context: &Context, chat: &ChatId) -> Result<bool> {
    let counter = context.reads.get(chat_counters::lookup(chat, Consistency::Strong)).await?;
    let last = context.reads.query(messages::last_query(chat)).await?;
    Ok(counter.is_some() || !last.items.is_empty())
}

async fn remove_members(
    context: &Context,
    store: &Arc<dyn WriteStore>,
    chat: &ChatId,
    members: &[Membership],
) -> Result<Fate> {
    let mut removed = 0;
    for part in members.chunks(REMOVED_TOGETHER) {
        context.check_stop()?;
        let mut writes = vec![chats::still_absent(chat), chat_counters::still_missing(chat)];
        writes.extend(part.iter().map(|member| chat_memberships::remove_write(chat, &member.user_id)));
        if transact(store, SWEEP, writes).await? == Written::Refused {
            return Ok(Fate::Kept("it was begun again meanwhile"));
        }
        removed += part.len() as u64;
    }
    Ok(Fate::Swept { members: removed })
}
