//! What a client asked for is done: commands go to pipelines, questions to the store.

use std::num::NonZeroU32;
use std::sync::Arc;

use courant_connectors::model::commands::{self, Code, Command, Refusal, WEBSOCKET};
use courant_connectors::model::tables::messages::Message;
use courant_connectors::model::tables::{chat_memberships, messages};
use courant_connectors::model::{ChatId, ClientMessageId};
use courant_connectors::store::{ReadStore, StoreError};
use tokio::time::{Instant, timeout_at};

use super::answers::{self, Unanswered};
use super::close::Close;
use super::frames::{self, About, Error, SyncBatch};
use super::request::{Request, Send};
use super::socket::{Ended, Socket};
use crate::commands::took_too_long;
use crate::limits::Limit;
use crate::rest::not_theirs;

/// Wrong frames, one after another, that a socket survives: enough to see a typo, few enough to be noticed. A client that
/// also says what is right has one now and then.
const MAX_BAD_FRAMES: u8 = 8;
/// Messages beyond the limit, one after another, that a socket survives. A client that waits when it is told to
/// has one now and then.
const MAX_EXCESS: u8 = 16;
/// Messages of one `sync_batch`.
const BATCH_MESSAGES: usize = 100;
/// Content of one `sync_batch`: a fraction of an outbox, also if every byte of it is escaped.
const BATCH_BYTES: usize = 64 << 10;

impl Socket {
    pub(super) async fn obey_one(&mut self, request: Request) -> Result<(), Ended> {
        if request.is_frame() {
            self.strikes.bad_frames = 0;
        }
        match request {
            Request::Send(send) => self.send(send).await,
            Request::Ack { chat_id, sequence } => self.ack(chat_id, sequence).await,
            Request::Sync { chat_id, after, limit } => self.sync(&chat_id, after, limit).await,
            Request::Heartbeat => {
                self.say(frames::heartbeat());
                Ok(())
            }
            Request::Refuse { client_message_id, refusal } => {
                self.refuse_frame(client_message_id.as_ref(), &refusal);
                Ok(())
            }
            Request::NotJson => {
                self.refuse(About::Frame, &Refusal::new(Code::BadFrame, "a frame is JSON, and this is none"));
                self.peer().outbox.close_own(Close::BadFrame);
                Ok(())
            }
            Request::Pong(frame) => {
                self.say(frame);
                Ok(())
            }
            Request::Close(code) => Err(self.close_back(code).await),
            Request::Violation(violation) => {
                self.peer().outbox.close_own(violation.into());
                Ok(())
            }
        }
    }

    fn refuse(&self, about: About<'_>, refusal: &Refusal) {
        self.say(frames::encode(&Error::new(about, refusal)));
    }

    fn refuse_frame(&mut self, client_message_id: Option<&ClientMessageId>, refusal: &Refusal) {
        let about = client_message_id.map_or(About::Frame, |id| About::Message(id.as_str()));
        self.refuse(about, refusal);
        if refusal.code == Code::BadFrame {
            self.strikes.bad_frames += 1;
            if self.strikes.bad_frames > MAX_BAD_FRAMES {
                self.peer().outbox.close_own(Close::BadFrame);
            }
        }
    }

    /// Whether this may be done now; says so if not.
    async fn may(&mut self, limit: Limit, about: About<'_>) -> Result<bool, Ended> {
        let (shared, user) = (Arc::clone(self.shared()), self.peer().connection.user.clone());
        let Err(refusal) = self.while_writing(shared.limits.take(limit, user.as_str())).await? else {
            self.strikes.excess = 0;
            return Ok(true);
        };
        self.refuse(about, &refusal);
        self.strikes.excess += 1;
        if self.strikes.excess > MAX_EXCESS {
            self.peer().outbox.close_own(Close::RateLimited);
        }
        Ok(false)
    }

    /// Hands a message in; its answer is said when it comes, while the socket goes on.
    async fn send(&mut self, send: Send) -> Result<(), Ended> {
        let (id, chat_id) = (send.client_message_id.clone(), send.chat_id.clone());
        if !self.may(Limit::Messages, About::Message(id.as_str())).await? {
            return Ok(());
        }
        self.room_in_flight().await?;
        let (shared, peer) = (Arc::clone(self.shared()), Arc::clone(&self.registered.peer));
        let until = Instant::now() + shared.commands.timeout();
        let command = Command::SendMessage(commands::SendMessage {
            chat_id: send.chat_id,
            sender_id: peer.connection.user.clone(),
            client_message_id: send.client_message_id,
            content: send.content,
            content_type: send.content_type,
        });
        let submit = shared.commands.submit(WEBSOCKET, command, Some(&peer.connection.id));
        let submitted = self.while_writing(timeout_at(until, submit)).await?;
        match submitted.unwrap_or_else(|_| Err(took_too_long())) {
            Ok(reply) => {
                let unanswered = Unanswered::new(reply, peer, answers::Message { id, chat_id, until });
                // The gateway outlives its sockets, so somebody takes it.
                let _ = self.while_writing(shared.unanswered.send(unanswered)).await?;
            }
            Err(refusal) => self.refuse(About::Message(id.as_str()), &refusal),
        }
        Ok(())
    }

    /// Not answered; a client with too many chats to ack waits.
    async fn ack(&mut self, chat_id: ChatId, sequence: u64) -> Result<(), Ended> {
        let (shared, user) = (Arc::clone(self.shared()), self.peer().connection.user.clone());
        self.while_writing(shared.watermarks.raise(user, chat_id, sequence)).await
    }

    /// Reads from the store for whoever is in the chat, at the speed of their connection.
    async fn sync(&mut self, chat_id: &ChatId, after: u64, limit: u32) -> Result<(), Ended> {
        let about = About::Chat(chat_id.as_str());
        if !self.may(Limit::Requests, about).await? {
            return Ok(());
        }
        let (store, user) = (Arc::clone(&self.shared().store), self.peer().connection.user.clone());
        match self.while_writing(chat_memberships::check(&*store, chat_id, &user)).await? {
            Ok(Some(_)) => self.say_messages(&*store, chat_id, after, limit as usize).await?,
            Ok(None) => {
                let refusal = self.while_writing(not_theirs(&*store, chat_id)).await?;
                self.refuse(about, &refusal);
            }
            Err(error) => self.failed(about, &error),
        }
        Ok(())
    }

    async fn say_messages(
        &mut self,
        store: &dyn ReadStore,
        chat_id: &ChatId,
        mut after: u64,
        mut left: usize,
    ) -> Result<(), Ended> {
        loop {
            let wanted = left.min(BATCH_MESSAGES);
            // One more, which tells whether there are more.
            let count = NonZeroU32::MIN.saturating_add(u32::try_from(wanted).unwrap_or(u32::MAX));
            let mut page = match self.while_writing(messages::after(store, chat_id, after, count)).await? {
                Ok(page) => page,
                Err(error) => {
                    self.failed(About::Chat(chat_id.as_str()), &error);
                    return Ok(());
                }
            };
            let has_more = page.items.len() > wanted || page.next.is_some();
            page.items.truncate(wanted);
            left -= page.items.len();
            let last = page.items.last().map(|message| message.sequence);
            // A part may be empty and not the last.
            after = last.or(page.next).unwrap_or(after);
            if last.is_some() || !has_more {
                self.say_batches(chat_id, &page.items, has_more).await?;
            }
            if !has_more || left == 0 {
                return Ok(());
            }
        }
    }

    async fn say_batches(
        &mut self,
        chat_id: &ChatId,
        mut found: &[Message],
        has_more: bool,
    ) -> Result<(), Ended> {
        loop {
            let (batch, rest) = found.split_at(batch_len(found));
            found = rest;
            let frame = frames::encode(&SyncBatch {
                chat_id: chat_id.as_str(),
                messages: batch.iter().map(Into::into).collect(),
                has_more: has_more || !rest.is_empty(),
            });
            self.say_when_room(frame).await?;
            // Whoever takes something is there; what they say is not read meanwhile.
            self.peer().heard(self.shared().ticks.now());
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn failed(&self, about: About<'_>, error: &StoreError) {
        tracing::warn!(%error, "cannot read the store for a client");
        self.refuse(about, &Refusal::new(Code::Unavailable, "the store cannot be read now; try again"));
    }
}

/// How many messages one frame takes: at least one.
fn batch_len(found: &[Message]) -> usize {
    let mut bytes = 0;
    let fits = found.iter().take_while(|message| {
        bytes += message.content.len();
        bytes <= BATCH_BYTES
    });
    fits.count().max(1).min(found.len())
}
