//! What the client of a record is told, where one waits.

use std::sync::Arc;

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

/// What is known so far of one record's reply.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) to: Option<ReplyTo>,
    /// The reason of the heaviest part so far.
    pub(super) reason: Option<(Disposition, Arc<str>)>,
    pub(super) receipt: Option<Box<Payload>>,
}

impl Answer {
    pub(super) fn to(to: Option<ReplyTo>) -> Self {
        Self { to, ..Self::default() }
    }
}
