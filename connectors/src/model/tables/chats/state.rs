//! A chat as those see it who change its members: how many they are, how many of them own it, what changed last.
//!
//! The counts are in the chat's item and change in one transaction with the memberships. So "no more than a thousand"
//! and "never without an owner" are conditions on one item, and hold whoever else changes the chat at the same moment.
//! The last change is remembered there too, since its event is published after it: whoever carries the same command
//! out again finds what it did, and tells of it with the same event.
//!
//! A group with more members than a transaction holds is *forming* until the last of them is written. Everything that
//! is written on the way rests on that mark, in the same transaction: what comes late, from an attempt that was given
//! up, finds the group formed or gone and changes nothing.

use super::{Chat, MAX_MEMBERS, SCHEMA, TABLE};
use crate::model::tables::attributes::Attributes;
use crate::model::tables::chat_memberships::{Change, ChangeType, Role};
use crate::model::{ChatId, Timestamp};
use crate::store::{Comparison, Condition, Consistency, Get, Item, Key, Result, Update, Write};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatState {
    pub chat: Chat,
    /// Not there yet for anybody else.
    pub is_forming: bool,
    /// `None` if nobody has counted yet, as in chats that other programs made.
    pub roster: Option<Roster>,
    pub last_change: Option<Change>,
}

/// How many are in a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roster {
    pub members: u64,
    pub owners: u64,
}

impl ChatState {
    pub fn from_item(item: &Item) -> Result<Self> {
        let attributes = Attributes::of(&SCHEMA, item);
        let members = attributes.optional("member_count", Attributes::u64)?;
        let roster = members.map(|members| Ok(Roster { members, owners: attributes.u64("owner_count")? }));
        let last_change = attributes.optional("changed_at", Attributes::time)?.map(|at| {
            Ok(Change {
                user_id: attributes.id("changed_user_id")?,
                change_type: attributes.word("change_type", ChangeType::parse)?,
                role: attributes.word("changed_role", Role::parse)?,
                by: attributes.id("changed_by")?,
                at,
            })
        });
        Ok(Self {
            chat: Chat::from_item(item)?,
            is_forming: is_forming(item),
            roster: roster.transpose()?,
            last_change: last_change.transpose()?,
        })
    }
}

const FORMING: &str = "forming";

pub(super) fn is_forming(item: &Item) -> bool {
    item.get(FORMING).is_some()
}

/// The chat is there, for everybody.
pub(super) fn has_formed() -> Condition {
    Condition::exists("chat_id").and(Condition::missing(FORMING))
}

fn key(chat: &ChatId) -> Key {
    Key::new("chat_id", chat)
}

/// For a batch together with the memberships concerned. Strong: what is found decides.
pub fn state_lookup(chat: &ChatId) -> Get {
    Get { table: TABLE, key: key(chat), consistency: Consistency::Strong }
}

/// Like [`create_write`](super::create_write), with its members counted.
pub fn create_counted_write(chat: &Chat, roster: Roster) -> Write {
    let item = chat.to_item().with("member_count", roster.members).with("owner_count", roster.owners);
    Write::put(TABLE, item).only_if(Condition::missing("chat_id"))
}

/// The beginning of a group that takes several transactions.
pub fn begin_write(chat: &Chat) -> Write {
    Write::put(TABLE, chat.to_item().with(FORMING, true)).only_if(Condition::missing("chat_id"))
}

/// Part of every transaction that writes members of a group that is forming.
pub fn still_forming(chat: &ChatId) -> Write {
    Write::Check { table: TABLE, key: key(chat), condition: Condition::exists(FORMING) }
}

/// The end: from here on the group is there. In one transaction with its counter and the last of its members.
pub fn form_write(chat: &ChatId, roster: Roster) -> Write {
    let update =
        Update::new().remove(FORMING).set("member_count", roster.members).set("owner_count", roster.owners);
    Write::update(TABLE, key(chat), update).only_if(Condition::exists(FORMING))
}

/// Gives a group up that is forming, so that its members can be taken out.
pub fn abandon_write(chat: &ChatId) -> Write {
    Write::delete(TABLE, key(chat)).only_if(Condition::exists(FORMING))
}

/// Like [`abandon_write`], of the very attempt that was begun then: one that was begun again meanwhile goes on.
pub fn abandon_begun_write(chat: &ChatId, begun_at: Timestamp) -> Write {
    let that_one = Condition::exists(FORMING).and(Condition::equals("created_at", begun_at));
    Write::delete(TABLE, key(chat)).only_if(that_one)
}

/// Part of a transaction that writes something of a chat: it is there, for everybody.
pub fn still_formed(chat: &ChatId) -> Write {
    Write::Check { table: TABLE, key: key(chat), condition: has_formed() }
}

/// Part of every transaction that takes members of an abandoned group out: nobody has begun it again.
pub fn still_absent(chat: &ChatId) -> Write {
    Write::Check { table: TABLE, key: key(chat), condition: Condition::missing("chat_id") }
}

/// Counts the members of a chat that has no counts. Nobody's membership changes before there are some.
pub fn count_write(chat: &ChatId, roster: Roster) -> Write {
    let update = Update::new().set("member_count", roster.members).set("owner_count", roster.owners);
    Write::update(TABLE, key(chat), update).only_if(has_formed().and(Condition::missing("member_count")))
}

/// Part of the transaction that changes somebody's membership, whose role was `before`. Refused where the group would
/// get too large or lose its last owner, and if something changed as late as this: the moments of a chat's changes
/// are all different, since the ids of their events are made of them.
pub fn change_write(chat: &ChatId, change: &Change, before: Option<Role>) -> Write {
    let after = (change.change_type != ChangeType::Removed).then_some(change.role);
    let members = i32::from(after.is_some()) - i32::from(before.is_some());
    let owners = i32::from(after == Some(Role::Owner)) - i32::from(before == Some(Role::Owner));
    let later = Condition::missing("changed_at").or(Condition::less("changed_at", change.at));
    let mut holds = has_formed().and(Condition::exists("member_count")).and(later);
    if members > 0 {
        holds = holds.and(Condition::less("member_count", MAX_MEMBERS));
    }
    if owners < 0 {
        holds = holds.and(Condition::compare("owner_count", Comparison::Greater, 1));
    }
    let update = Update::new()
        .add("member_count", members)
        .add("owner_count", owners)
        .set("changed_user_id", &change.user_id)
        .set("change_type", change.change_type.as_str())
        .set("changed_role", change.role.as_str())
        .set("changed_by", &change.by)
        .set("changed_at", change.at);
    Write::update(TABLE, key(chat), update).only_if(holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tables::chats::ChatType;

    const NOW: Timestamp = Timestamp::from_unix_millis(1_769_783_400_000);
    const LATER: Timestamp = Timestamp::from_unix_millis(1_769_783_400_001);

    fn group() -> Chat {
        Chat {
            chat_id: "chat_1".into(),
            chat_type: ChatType::Group,
            name: None,
            created_by: "user_1".into(),
            created_at: NOW,
            updated_at: NOW,
        }
    }

    fn counted(members: u64, owners: u64) -> Item {
        match create_counted_write(&group(), Roster { members, owners }) {
            Write::Put { item, .. } => item,
            other => panic!("{other:?}"),
        }
    }

    fn change(change_type: ChangeType, role: Role) -> Change {
        Change { user_id: "user_2".into(), change_type, role, by: "user_1".into(), at: LATER }
    }

    /// The item after the change, or `None` if it is refused.
    fn after(item: &Item, change: &Change, before: Option<Role>) -> Option<ChatState> {
        let Write::Update { update, condition, .. } = change_write(&"chat_1".into(), change, before) else {
            panic!("not an update")
        };
        let held = condition.unwrap().holds(Some(item));
        held.then(|| ChatState::from_item(&update.apply(item.clone()).unwrap()).unwrap())
    }

    #[test]
    fn counts_follow_the_members() {
        let cases = [
            (ChangeType::Added, Role::Member, None, (3, 1)),
            (ChangeType::Added, Role::Owner, None, (3, 2)),
            (ChangeType::Removed, Role::Member, Some(Role::Member), (1, 1)),
            (ChangeType::RoleChanged, Role::Owner, Some(Role::Admin), (2, 2)),
            (ChangeType::RoleChanged, Role::Admin, Some(Role::Member), (2, 1)),
        ];
        for (change_type, role, before, (members, owners)) in cases {
            let change = change(change_type, role);
            let state = after(&counted(2, 1), &change, before).unwrap();
            assert_eq!(state.roster, Some(Roster { members, owners }), "{change:?}");
            assert_eq!(state.last_change, Some(change), "remembered");
        }
    }

    #[test]
    fn a_group_is_not_overfilled_and_keeps_an_owner() {
        let added = change(ChangeType::Added, Role::Member);
        assert!(after(&counted(999, 1), &added, None).is_some());
        assert!(after(&counted(1000, 1), &added, None).is_none());
        let leaves = change(ChangeType::Removed, Role::Owner);
        let demoted = change(ChangeType::RoleChanged, Role::Member);
        for change in [leaves, demoted] {
            assert!(after(&counted(5, 2), &change, Some(Role::Owner)).is_some());
            assert!(after(&counted(5, 1), &change, Some(Role::Owner)).is_none());
        }
    }

    #[test]
    fn the_moments_of_changes_are_all_different() {
        let added = change(ChangeType::Added, Role::Member);
        let at = |at: Timestamp| counted(2, 1).with("changed_at", at);
        assert!(after(&at(NOW), &added, None).is_some());
        assert!(after(&at(LATER), &added, None).is_none());
    }

    #[test]
    fn what_is_forming_changes_by_nothing_else() {
        let Write::Put { item: forming, .. } = begin_write(&group()) else { panic!("not a put") };
        assert!(ChatState::from_item(&forming).unwrap().is_forming);
        assert!(super::super::visible(&forming).is_none(), "hidden");
        let id = ChatId::from("chat_1");
        let roster = Roster { members: 2, owners: 1 };
        let added = change(ChangeType::Added, Role::Member);
        let closed = [
            change_write(&id, &added, None),
            count_write(&id, roster),
            super::super::rename_write(&id, "Team", NOW),
        ];
        for write in closed {
            assert!(!write.condition().unwrap().holds(Some(&forming)), "{write:?}");
        }
        let again = abandon_begun_write(&id, LATER);
        assert!(!again.condition().unwrap().holds(Some(&forming)), "begun again, it goes on");
        let late =
            [still_forming(&id), form_write(&id, roster), abandon_write(&id), abandon_begun_write(&id, NOW)];
        for write in late {
            assert!(write.condition().unwrap().holds(Some(&forming)));
            assert!(!write.condition().unwrap().holds(Some(&counted(2, 1))), "{write:?}");
            assert!(!write.condition().unwrap().holds(None), "{write:?}");
        }
    }
}
