//! Groups that were begun and never made: which they are, for those who sweep them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use courant_connectors::model::ChatId;

/// More than a deployment ever has. Beyond it they are left for the next time.
const KEPT: usize = 100_000;

#[derive(Default)]
pub(crate) struct Leftovers(Mutex<BTreeSet<ChatId>>);

impl Leftovers {
    pub(super) fn add(&self, chat: &ChatId) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT && !kept.contains(chat) {
            kept.insert(chat.clone());
        }
    }

    pub(crate) fn take(&self) -> BTreeSet<ChatId> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
