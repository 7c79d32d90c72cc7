//! One kind of damage for each check. Each makes a chat or a user of its own, so that any number of them can be done to one
//! deployment and each be found.

mod events;
mod messages;
mod people;

use std::collections::BTreeSet;
use std::time::Duration;

use courant_connectors::model::{ChatId, UserId};
use futures::future::BoxFuture;

use super::world::{World, options};
use crate::verify::report::Example;
use crate::verify::{CHECKS, Options};

/// What to find of it.
pub(super) struct Expected {
    check: &'static str,
    chat: Option<ChatId>,
    sequence: Option<u64>,
    user: Option<UserId>,
    detail: String,
}

impl Expected {
    pub(super) fn check(&self) -> &'static str {
        self.check
    }

    fn of(check: &'static str, chat: &ChatId) -> Self {
        Self { chat: Some(chat.clone()), ..Self::in_general(check) }
    }

    fn in_general(check: &'static str) -> Self {
        Self { check, chat: None, sequence: None, user: None, detail: String::new() }
    }

    fn at(mut self, sequence: u64) -> Self {
        self.sequence = Some(sequence);
        self
    }

    fn with(mut self, user: &UserId) -> Self {
        self.user = Some(user.clone());
        self
    }

    fn saying(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    fn is(&self, example: &Example) -> bool {
        (&self.chat, self.sequence, &self.user) == (&example.chat_id, example.sequence, &example.user_id)
            && example.detail.contains(&self.detail)
    }
}

pub(super) type Mutation = for<'a> fn(&'a World) -> BoxFuture<'a, Expected>;

macro_rules! mutations {
    ($($module:ident { $($name:ident)* })*) => {
        &[$($((stringify!($name), |world| Box::pin($module::$name(world)))),*),*]
    };
}

pub(super) const MUTATIONS: &[(&str, Mutation)] = mutations! {
    messages {
        message_zero two_messages_with_a_sequence chat_without_counter counter_without_chat counter_set_back
        message_without_chat endless_key key_without_message key_of_another_sender key_of_another_body
        message_without_key message_stored_twice
    }
    events {
        message_without_event first_message_without_event event_without_message event_with_other_content
        event_with_other_id record_that_is_no_event record_with_another_key events_out_of_order
        event_in_another_partition event_of_no_chat
    }
    people {
        unreadable_watermark huge_chat endless_session membership_without_chat chat_that_never_formed chat_that_counts_wrong chat_without_owner
        direct_chat_of_three direct_chat_of_one row_missing_in_index row_left_in_index
        membership_without_user watermark_beyond_counter watermark_without_chat watermark_goes_back
        counter_goes_back session_without_user number_of_nobody number_of_somebody_with_another
        user_without_number two_users_with_a_number
    }
};

pub(super) fn watching() -> Options {
    Options { watch: Some(Duration::from_millis(1)), examples: 1000, ..options() }
}

#[tokio::test]
async fn each_kind_of_damage_is_found_and_nothing_else() {
    for (name, mutation) in MUTATIONS {
        let world = World::healthy().await;
        let expected = mutation(&world).await;
        let report = world.verify(watching()).await;
        let found: Vec<_> = report.checks.iter().filter(|check| check.found > 0).collect();
        let [broken] = found[..] else { panic!("{name}: {found:#?}") };
        assert_eq!((broken.id.as_str(), broken.found), (expected.check, 1), "{name}: {broken:#?}");
        let [example] = &broken.examples[..] else { panic!("{name}: {broken:#?}") };
        let example = match expected.check {
            "event-partition" => &Example { sequence: None, ..example.clone() },
            _ => example,
        };
        assert!(expected.is(example), "{name}: {example:?}");
    }
}

#[test]
fn there_is_damage_for_every_check() {
    let sources = [include_str!("events.rs"), include_str!("messages.rs"), include_str!("people.rs")];
    let source = sources.concat();
    let named = |id: &str| {
        source.contains(&format!("Expected::of(\"{id}\"")) || source.contains(&format!("in_general(\"{id}\""))
    };
    let without: BTreeSet<_> = CHECKS.iter().map(|check| check.id).filter(|id| !named(id)).collect();
    assert_eq!(without, BTreeSet::new());
}
