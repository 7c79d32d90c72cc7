//! What was found of counters, and what was done. Plain data that goes over the admin socket and to programs as JSON.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use courant_connectors::model::{ChatId, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Counter, Highest};
use crate::verify::Ending;
use crate::verify::context::{Context, now};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub began_at: Timestamp,
    pub ended_at: Timestamp,
    pub ending: Ending,
    /// Chats that were looked at.
    pub chats: u64,
    /// Counters that were not in order.
    pub found: u64,
    /// Of those, how many are now.
    pub recovered: u64,
    /// Some of them.
    pub counters: Vec<CounterReport>,
}

impl Report {
    /// Counters that are still not in order.
    pub fn left(&self) -> u64 {
        self.found - self.recovered
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterReport {
    pub chat_id: ChatId,
    pub fault: Fault,
    /// Where it stood; nothing if there was none.
    pub counter: Option<u64>,
    /// The highest sequence that was used.
    pub highest: u64,
    /// Where that was seen.
    pub seen_in: Seen,
    /// What it was set to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub set_to: Option<u64>,
    /// What it would be set to, had that been asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub would_be: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    Missing,
    /// Below what its chat has used.
    Behind,
    /// Its value is no number; correct or remove the item.
    Unreadable,
    /// There is no such chat, so it needs no counter.
    NoChat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seen {
    Messages,
    /// What members have acknowledged.
    Watermarks,
    Log,
}

impl CounterReport {
    pub(super) fn new(chat: &ChatId, fault: Fault, counter: Counter, highest: Highest) -> Self {
        let counter = match counter {
            Counter::At(counter) => Some(counter),
            Counter::Missing | Counter::Unreadable => None,
        };
        Self {
            chat_id: chat.clone(),
            fault,
            counter,
            highest: highest.sequence,
            seen_in: highest.seen,
            set_to: None,
            would_be: None,
        }
    }
}

/// Kept as it is found: counts, and the first few by name. Beside them the ids of recovered counters, which are looked
/// at again.
pub(super) struct Findings {
    state: Mutex<State>,
    examples: usize,
}

struct State {
    chats: u64,
    found: u64,
    recovered: Vec<ChatId>,
    counters: Vec<CounterReport>,
    /// Chats that were asked for and not seen yet.
    unseen: BTreeSet<ChatId>,
}

impl Findings {
    pub(super) fn new(examples: usize, chats: &[ChatId]) -> Self {
        let unseen = chats.iter().cloned().collect();
        let state = State { chats: 0, found: 0, recovered: Vec::new(), counters: Vec::new(), unseen };
        Self { state: Mutex::new(state), examples }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seen(&self, chat: &ChatId) {
        let mut state = self.state();
        state.chats += 1;
        state.unseen.remove(chat);
    }

    pub(super) fn add(&self, report: CounterReport) {
        let mut state = self.state();
        state.found += 1;
        if report.set_to.is_some() {
            state.recovered.push(report.chat_id.clone());
        }
        if state.counters.len() < self.examples {
            state.counters.push(report);
        }
    }

    /// Those that were asked for and are not there.
    pub(super) fn add_unseen(&self) {
        let unseen = std::mem::take(&mut self.state().unseen);
        for chat in unseen {
            let nothing = Highest { sequence: 0, seen: Seen::Messages };
            self.add(CounterReport::new(&chat, Fault::NoChat, Counter::Missing, nothing));
        }
    }

    pub(super) fn recovered(&self) -> Vec<ChatId> {
        self.state().recovered.clone()
    }

    /// A recovered counter was set once more.
    pub(super) fn raised(&self, again: &CounterReport) {
        let mut state = self.state();
        let of_chat = state.counters.iter_mut().find(|report| report.chat_id == again.chat_id);
        if let Some(report) = of_chat {
            let CounterReport { highest, seen_in, set_to, .. } = again;
            (report.highest, report.seen_in, report.set_to) = (*highest, *seen_in, *set_to);
        }
    }

    pub(super) fn report(&self, context: &Context, ending: Ending) -> Report {
        let mut state = self.state();
        let mut counters = std::mem::take(&mut state.counters);
        counters.sort_by(|one, other| one.chat_id.cmp(&other.chat_id));
        Report {
            began_at: context.began_at,
            ended_at: now(),
            ending,
            chats: state.chats,
            found: state.found,
            recovered: state.recovered.len() as u64,
            counters,
        }
    }
}
