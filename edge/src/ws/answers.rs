//! What became of messages, told to those who sent them.
//!
//! One task waits for the answers of all sockets. A pipeline that ends a thousand records at once then wakes one task and
//! not a thousand times the sockets', and each socket gets all of its acks in one write.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use courant_connectors::model::commands::{Answer, Code, Refusal};
use courant_connectors::model::{ChatId, ClientMessageId};
use courant_pipeline::Reply;
use futures::FutureExt as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use super::frames::{self, About, Acked, Error};
use super::gateway::Shared;
use super::outbox::Wakers;
use super::peer::Peer;
use crate::commands::{answer, took_too_long};
use crate::rest::not_theirs;

/// How late `TIMEOUT` may be said. All that are under way are looked at each time, which a socket's bound keeps few.
const TIMEOUT_SWEEP: Duration = Duration::from_millis(250);
/// Answers that are told before sockets are woken to write them.
const ANSWERS_AT_ONCE: usize = 1024;

/// A message that was handed in.
pub(super) struct Unanswered {
    reply: oneshot::Receiver<Reply>,
    /// Who sent it; nobody any more once they were told that it took too long.
    peer: Option<Arc<Peer>>,
    about: Message,
}

/// What of a message its answer needs.
#[derive(Clone)]
pub(super) struct Message {
    pub(super) id: ClientMessageId,
    pub(super) chat_id: ChatId,
    pub(super) until: Instant,
}

impl Unanswered {
    pub(super) fn new(reply: oneshot::Receiver<Reply>, peer: Arc<Peer>, about: Message) -> Self {
        peer.begin();
        Self { reply, peer: Some(peer), about }
    }
}

pub(super) struct Answered {
    answer: Answer,
    peer: Option<Arc<Peer>>,
    about: Message,
}

impl Future for Unanswered {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let reply = std::task::ready!(self.reply.poll_unpin(cx));
        let (peer, about) = (self.peer.take(), self.about.clone());
        Poll::Ready(Answered { answer: answer(reply), peer, about })
    }
}

pub(super) async fn run(shared: Arc<Shared>, mut incoming: mpsc::Receiver<Unanswered>) {
    let mut unanswered = FuturesUnordered::new();
    // Like those that are unanswered, no more than sockets may have in flight.
    let mut strangers = FuturesUnordered::new();
    let mut new = Vec::new();
    let mut sweep = interval(TIMEOUT_SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // The task's share of time is bounded by the counts below.
        tokio::task::coop::unconstrained(async {
            tokio::select! {
                _ = incoming.recv_many(&mut new, ANSWERS_AT_ONCE) => {
                    unanswered.extend(new.drain(..));
                }
                Some(first) = unanswered.next() => {
                    let mut wakers = Wakers::default();
                    let mut hand_on = |answered: Answered| {
                        if answered.is_to_a_stranger() {
                            strangers.push(look_for_the_chat(Arc::clone(&shared), answered));
                        } else {
                            tell(&shared, answered, &mut wakers);
                        }
                    };
                    hand_on(first);
                    for _ in 1..ANSWERS_AT_ONCE {
                        let Some(Some(next)) = unanswered.next().now_or_never() else { break };
                        hand_on(next);
                    }
                }
                Some(looked) = strangers.next() => tell(&shared, looked, &mut Wakers::default()),
                _ = sweep.tick() => give_up(&shared, &mut unanswered),
            }
        })
        .await;
        tokio::task::yield_now().await;
    }
}

impl Answered {
    fn is_to_a_stranger(&self) -> bool {
        matches!(&self.answer, Answer::Refused(refusal) if refusal.code == Code::NotAMember)
    }
}

/// The pipeline looks for members and not for chats: whoever is none may have named what does not exist.
async fn look_for_the_chat(shared: Arc<Shared>, answered: Answered) -> Answered {
    let looking = not_theirs(&*shared.store, &answered.about.chat_id);
    let refusal = timeout_at(answered.about.until, looking).await.unwrap_or_else(|_| took_too_long());
    Answered { answer: Answer::Refused(refusal), ..answered }
}

fn tell(shared: &Shared, answered: Answered, wakers: &mut Wakers) {
    // They were told that it took too long.
    let Some(peer) = answered.peer else { return };
    let id = answered.about.id.as_str();
    let frame = match &answered.answer {
        Answer::Sent(sent) => frames::encode(&Acked::new(id, sent)),
        Answer::Refused(refusal) => frames::encode(&Error::new(About::Message(id), refusal)),
        other => {
            tracing::error!(?other, "a message was answered with something else; is its pipeline in order?");
            let refusal = Refusal::new(Code::Unavailable, "the server cannot do this now; try again");
            frames::encode(&Error::new(About::Message(id), &refusal))
        }
    };
    peer.end();
    let _ = peer.outbox.push(frame, shared.bounds, wakers);
}

/// Tells those who have waited too long. The record goes on, and its end is still waited for: the pipeline has bounds of
/// its own for that.
fn give_up(shared: &Shared, unanswered: &mut FuturesUnordered<Unanswered>) {
    let (now, mut wakers) = (Instant::now(), Wakers::default());
    for late in unanswered.iter_mut().filter(|one| one.about.until <= now) {
        let Some(peer) = late.peer.take() else { continue };
        let frame = frames::encode(&Error::new(About::Message(late.about.id.as_str()), &took_too_long()));
        peer.end();
        let _ = peer.outbox.push(frame, shared.bounds, &mut wakers);
    }
}
