//! What the client of a record is told, where one waits.
//!
//! A record is answered once: when its last part has ended, or before that, where `reply_after` says so. Kept apart
//! from the slots, so that a source nobody waits at, such as a log, takes no lock.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::Disposition;
use crate::payload::Payload;

/// What a request/response source learns about its record.
#[derive(Debug, Clone)]
pub struct Reply {
    pub disposition: Disposition,
    /// Why it was dropped, dead-lettered or failed.
    pub reason: Option<Arc<str>>,
    /// What a stage attached to the record.
    pub receipt: Option<Box<Payload>>,
}

/// Where a request/response source waits for its [`Reply`].
pub type ReplyTo = oneshot::Sender<Reply>;

/// The replies of one read batch, one for each record.
pub(super) struct Replies(Mutex<Box<[Answer]>>);

/// What is known so far of one record's reply.
#[derive(Default)]
struct Answer {
    to: Option<ReplyTo>,
    /// The reason of the heaviest part so far.
    reason: Option<(Disposition, Arc<str>)>,
    receipt: Option<Box<Payload>>,
}

impl Replies {
    /// Those who wait, in the order of their records.
    pub(super) fn to(clients: Vec<Option<ReplyTo>>) -> Self {
        Self(Mutex::new(clients.into_iter().map(|to| Answer { to, ..Answer::default() }).collect()))
    }

    /// Notes what one part of a record has to say: the heaviest part's reason and the first receipt stand.
    pub(super) fn note(
        &self,
        index: u32,
        disposition: Disposition,
        reason: Option<&str>,
        receipt: Option<Box<Payload>>,
    ) {
        let answer = &mut self.0.lock().unwrap_or_else(PoisonError::into_inner)[index as usize];
        let heavier = answer.reason.as_ref().is_none_or(|(before, _)| *before < disposition);
        if heavier && let Some(reason) = reason {
            answer.reason = Some((disposition, Arc::from(reason)));
        }
        if answer.receipt.is_none() {
            answer.receipt = receipt;
        }
    }

    /// Answers the client of a record; the first answer is the only one.
    pub(super) fn send(&self, index: u32, disposition: Disposition) {
        let answer = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut all[index as usize])
        };
        if let Some(to) = answer.to {
            // A part that was left out says nothing about a record that was delivered otherwise.
            let reason = answer.reason.filter(|(of, _)| *of == disposition).map(|(_, reason)| reason);
            // The client may have gone; the record's fate does not depend on it.
            let _ = to.send(Reply { disposition, reason, receipt: answer.receipt });
        }
    }
}
