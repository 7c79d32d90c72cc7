//! Who is in a group, and as what.
//!
//! Owners and admins change members, only owners make owners or touch them, and anybody leaves. The last owner stays
//! until there is another.

use std::time::Duration;

use courant_connectors::model::commands::{AddMember, Answer, Code, Refusal, RemoveMember, SetRole};
use courant_connectors::model::tables::chat_memberships::{self, Change, ChangeType, Membership, Role};
use courant_connectors::model::tables::chats::{self, ChatState, ChatType, MAX_MEMBERS, Roster};
use courant_connectors::model::tables::users;
use courant_connectors::model::topics::MembershipChanged;
use courant_connectors::model::{ChatId, Timestamp, UserId};
use courant_connectors::store::{ReadStore as _, Write};
use courant_pipeline::StageError;

use super::{Chats, MEMBERSHIP, forbidden, formed, looked, manages, membership, not_a_member, now};
use crate::commands::{Carried, DECISIONS, Outcome, Unable, keeps_changing};

const CHANGE: &str = "change the members of the chat";

/// What somebody wants to become of somebody's membership.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    chat: &'a ChatId,
    by: &'a UserId,
    user: &'a UserId,
    to: To,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Add(Role),
    Remove,
    Become(Role),
}

impl<'a> From<&'a AddMember> for Wish<'a> {
    fn from(command: &'a AddMember) -> Self {
        Self { chat: &command.chat_id, by: &command.by, user: &command.user_id, to: To::Add(command.role) }
    }
}

impl<'a> From<&'a RemoveMember> for Wish<'a> {
    fn from(command: &'a RemoveMember) -> Self {
        Self { chat: &command.chat_id, by: &command.by, user: &command.user_id, to: To::Remove }
    }
}

impl<'a> From<&'a SetRole> for Wish<'a> {
    fn from(command: &'a SetRole) -> Self {
        Self { chat: &command.chat_id, by: &command.by, user: &command.user_id, to: To::Become(command.role) }
    }
}

/// What the store says that a wish depends on.
struct Seen {
    state: ChatState,
    caller: Option<Membership>,
    member: Option<Membership>,
    user_exists: bool,
}

/// What a wish comes to.
enum Decision {
    /// It came true before, by this change; its event may not have been published.
    Told(Change),
    /// It is so already, and not by this command.
    Given,
    Change,
}

impl Chats {
    pub(super) async fn change_members(&self, wish: Wish<'_>) -> Carried {
        for _ in 0..DECISIONS {
            let seen = self.look(wish).await?;
            match decide(wish, &seen)? {
                Decision::Told(change) => return Ok(told(wish, seen.member.as_ref(), change)),
                Decision::Given => return Ok(Outcome::Done(answer(seen.member))),
                Decision::Change => {}
            }
            if seen.state.roster.is_none() {
                self.count_members(wish.chat).await?;
                continue;
            }
            let change = change(wish, &seen, now());
            if self.transact(CHANGE, writes(wish, &seen, &change)).await?.is_some() {
                let after = after(wish, &seen, &change);
                return Ok(told(wish, after.as_ref(), change));
            }
        }
        Err(keeps_changing(CHANGE))
    }

    async fn look(&self, wish: Wish<'_>) -> Result<Seen, Unable> {
        let mut asked = vec![
            chats::state_lookup(wish.chat),
            chat_memberships::lookup(wish.chat, wish.by),
            chat_memberships::lookup(wish.chat, wish.user),
        ];
        if matches!(wish.to, To::Add(_)) {
            asked.push(users::existence_lookup(wish.user));
        }
        let found = looked(self.store.batch_get(asked).await)?;
        Ok(Seen {
            state: formed(found[0].as_ref(), wish.chat)??,
            caller: membership(found[1].as_ref())?,
            member: membership(found[2].as_ref())?,
            user_exists: found.get(3).is_some_and(|user| user.as_ref().is_some_and(users::is_user)),
        })
    }

    /// Counts those of a chat that another program made. Whoever else counts meanwhile comes to the same, since no
    /// membership changes before there are counts.
    async fn count_members(&self, chat: &ChatId) -> Result<(), StageError> {
        let (mut roster, mut after) = (Roster { members: 0, owners: 0 }, None);
        loop {
            let part = looked(chat_memberships::list(&self.store, chat, after.as_ref(), None).await)?;
            roster.members += part.items.len() as u64;
            roster.owners += part.items.iter().filter(|member| member.role == Role::Owner).count() as u64;
            after = part.next;
            if after.is_none() {
                break;
            }
        }
        self.transact("count the members of the chat", vec![chats::count_write(chat, roster)]).await?;
        Ok(())
    }
}

fn decide(wish: Wish<'_>, seen: &Seen) -> Result<Decision, Refusal> {
    // Before anything else: whoever left is no member any more, and may ask again whether they did.
    if let Some(change) = seen.state.last_change.as_ref().filter(|change| is_by(wish, seen, change)) {
        return Ok(Decision::Told(change.clone()));
    }
    let Some(caller) = &seen.caller else { return Err(not_a_member(wish.by, wish.chat)) };
    if seen.state.chat.chat_type == ChatType::Direct {
        return Err(forbidden("a direct chat is between the same two people for good"));
    }
    let leaves = wish.by == wish.user && wish.to == To::Remove;
    if !leaves && !manages(caller.role) {
        return Err(forbidden("only owners and admins change the members of a chat"));
    }
    let is_owner = seen.member.as_ref().is_some_and(|member| member.role == Role::Owner);
    let makes_owner = matches!(wish.to, To::Add(Role::Owner) | To::Become(Role::Owner));
    if caller.role != Role::Owner && (is_owner || makes_owner) {
        return Err(forbidden("only owners make owners, and only they change or remove them"));
    }
    match (wish.to, &seen.member) {
        (To::Add(_), _) if !seen.user_exists => Err(nobody(wish.user)),
        (To::Add(role) | To::Become(role), Some(member)) if member.role == role => Ok(Decision::Given),
        (To::Add(_), Some(member)) => {
            let why = format!("'{}' is a member already, as {}", wish.user, member.role.as_str());
            Err(Refusal::new(Code::Conflict, why))
        }
        (To::Remove | To::Become(_), None) => {
            let why = format!("'{}' is not a member of chat '{}'", wish.user, wish.chat);
            Err(Refusal::new(Code::NotFound, why))
        }
        _ => check_roster(wish, seen.state.roster, is_owner),
    }
}

/// What the counts do not allow; without counts, the write will tell.
fn check_roster(wish: Wish<'_>, roster: Option<Roster>, is_owner: bool) -> Result<Decision, Refusal> {
    let Some(roster) = roster else { return Ok(Decision::Change) };
    if matches!(wish.to, To::Add(_)) && roster.members >= u64::from(MAX_MEMBERS) {
        let why = format!("the group is full: it has {MAX_MEMBERS} members");
        return Err(Refusal::new(Code::Conflict, why));
    }
    if is_owner && !matches!(wish.to, To::Add(_)) && roster.owners <= 1 {
        let why = "the last owner stays until there is another; make somebody else an owner first";
        return Err(Refusal::new(Code::Conflict, why));
    }
    Ok(Decision::Change)
}

pub(super) fn nobody(user: &UserId) -> Refusal {
    Refusal::new(Code::NotFound, format!("there is no user '{user}'"))
}

/// Whether the last change is what this wish would do, and nothing has undone it.
fn is_by(wish: Wish<'_>, seen: &Seen, change: &Change) -> bool {
    let of_same = change.by == *wish.by && change.user_id == *wish.user;
    let role = seen.member.as_ref().map(|member| member.role);
    of_same
        && match wish.to {
            To::Add(to) => change.change_type == ChangeType::Added && role == Some(to) && change.role == to,
            To::Become(to) => {
                change.change_type == ChangeType::RoleChanged && role == Some(to) && change.role == to
            }
            To::Remove => change.change_type == ChangeType::Removed && role.is_none(),
        }
}

fn change(wish: Wish<'_>, seen: &Seen, now: Timestamp) -> Change {
    let last = seen.state.last_change.as_ref().map(|change| change.at.plus(Duration::from_millis(1)));
    let (change_type, role) = match wish.to {
        To::Add(role) => (ChangeType::Added, role),
        To::Become(role) => (ChangeType::RoleChanged, role),
        To::Remove => (ChangeType::Removed, seen.member.as_ref().map_or(Role::Member, |member| member.role)),
    };
    // Later than the last one, whatever the clocks of two processes say.
    let at = last.map_or(now, |last| last.max(now));
    Change { user_id: wish.user.clone(), change_type, role, by: wish.by.clone(), at }
}

fn writes(wish: Wish<'_>, seen: &Seen, change: &Change) -> Vec<Write> {
    let before = seen.member.as_ref().map(|member| member.role);
    let mut writes = vec![chats::change_write(wish.chat, change, before)];
    writes.extend(match (after(wish, seen, change), before) {
        (Some(added), None) => Some(chat_memberships::add_write(&added)),
        (Some(_), Some(from)) => {
            Some(chat_memberships::change_role_write(wish.chat, wish.user, from, change.role))
        }
        (None, Some(from)) => Some(chat_memberships::remove_from_role_write(wish.chat, wish.user, from)),
        (None, None) => None,
    });
    // Of themselves, the write above already says what it rests on.
    if let Some(caller) = seen.caller.as_ref().filter(|_| wish.by != wish.user) {
        writes.push(chat_memberships::still_has_role(wish.chat, wish.by, caller.role));
    }
    writes
}

/// The membership once the change is made.
fn after(wish: Wish<'_>, seen: &Seen, change: &Change) -> Option<Membership> {
    match (&seen.member, change.change_type) {
        (_, ChangeType::Removed) => None,
        (Some(member), _) => Some(Membership { role: change.role, ..member.clone() }),
        (None, _) => Some(Membership {
            chat_id: wish.chat.clone(),
            user_id: wish.user.clone(),
            role: change.role,
            joined_at: change.at,
            muted_until: None,
        }),
    }
}

fn answer(member: Option<Membership>) -> Answer {
    member.map_or(Answer::Done, |member| Answer::Member(member.into()))
}

fn told(wish: Wish<'_>, member: Option<&Membership>, change: Change) -> Outcome {
    let event = MembershipChanged::of(wish.chat.clone(), change);
    Outcome::happened(answer(member.cloned()), &event, MEMBERSHIP)
}
