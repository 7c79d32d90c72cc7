//! Shows those who are connected how far an answer has come, by the way that frames of messages go.
//!
//! Each frame has the whole text so far, so one that is missed or comes late costs nothing. Nobody waits for it: what
//! cannot be shown is not shown, and the answer is stored all the same.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::capability::RestrictedLive;
use courant_connectors::model::frames::{Frame, ReplyFrame, ReplyStatus};
use courant_connectors::model::tables::chat_memberships;
use courant_connectors::model::topics::messages_persisted::PersistedMessage;
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{ReadStore, StoreError};
use tokio::time::{Instant, timeout};

use super::PLAIN_TEXT;
use crate::deliveries::{Addressed, Outgoing, send};

/// As long as the answer waits for a frame to be sent.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Progress {
    live: RestrictedLive,
    users: Arc<[UserId]>,
    frame: ReplyFrame,
    every: Duration,
    shown_at: Instant,
}

impl Progress {
    /// Shows that the agent has begun; none if that cannot be shown.
    pub(super) async fn begin(
        store: &dyn ReadStore,
        live: &RestrictedLive,
        agent: &UserId,
        question: &PersistedMessage,
        every: Duration,
    ) -> Option<Self> {
        let users = members(store, &question.chat_id).await;
        let users = users.inspect_err(|error| tracing::debug!(%error, "cannot show an answer in progress"));
        let frame = ReplyFrame {
            chat_id: question.chat_id.clone(),
            sender_id: agent.clone(),
            reply_to: question.message_id.clone(),
            status: ReplyStatus::Writing,
            content: String::new(),
            content_type: PLAIN_TEXT.to_owned(),
        };
        let shown_at = Instant::now();
        let mut progress = Self { live: live.clone(), users: users.ok()?, frame, every, shown_at };
        progress.send().await;
        Some(progress)
    }

    /// Shows the text so far, unless that was done a moment ago.
    pub(super) async fn show(&mut self, text: &str) {
        if self.shown_at.elapsed() >= self.every {
            text.clone_into(&mut self.frame.content);
            self.send().await;
        }
    }

    /// Says that it came to nothing.
    pub(super) async fn stop(&mut self) {
        self.frame.status = ReplyStatus::Stopped;
        self.frame.content.clear();
        self.send().await;
    }

    async fn send(&mut self) {
        let addressed = Addressed {
            chat_id: self.frame.chat_id.clone(),
            sequence: None,
            users: Arc::clone(&self.users),
            frame: Frame::Reply(self.frame.clone()).encode(),
        };
        let outgoing = [Some(Outgoing { addressed: &addressed, origin: None })];
        match timeout(PATIENCE, send(&self.live, &outgoing)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "cannot show an answer in progress"),
            Err(_) => tracing::debug!("showing an answer in progress takes too long"),
        }
        self.shown_at = Instant::now();
    }
}

async fn members(store: &dyn ReadStore, chat: &ChatId) -> Result<Arc<[UserId]>, StoreError> {
    let (mut users, mut after) = (Vec::new(), None);
    loop {
        let page = chat_memberships::list(store, chat, after.as_ref(), None).await?;
        users.extend(page.items.into_iter().map(|membership| membership.user_id));
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(users.into_iter().filter(|user| !user.is_agent()).collect()),
        }
    }
}
