//! Sequence counters with what their chats have used: which are missing or behind, and recovering them.
//!
//! A counter that is missing stops its chat (`COUNTER_MISSING`), on purpose: made anew on the fly it would start at one.
//! Recovered, it stands at the highest sequence that anybody can have seen: of the last message, read strongly and
//! backward; of what members have acknowledged; and, if asked for, of events in the log, which may be ahead of a store
//! that came from a backup.
//!
//! Why no sequence is given to two messages, whoever writes meanwhile:
//! - Nobody allocates while the counter is missing. So beyond the last message there are at most sequences that were
//!   allocated before it was lost, by writers that have not stored their messages yet.
//! - The write is conditional: only a counter that is still missing, or still behind, is set. It never goes back, so two
//!   who recover at once end at the higher value, and what is allocated afterwards lies beyond it.
//! - A message is stored only where its sequence is free. A late writer and a new one may hold the same sequence; one of
//!   them is stored, the other refused, and its client sends again.
//! - Because that refusal says the counter is behind, recovered counters are looked at again after a grace period, when
//!   late writers have ended, and raised once more if one of them came through. A `margin` avoids the collision
//!   altogether, at the price of a gap, which is allowed.

mod recover;
mod report;
#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::log::Log;
use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chats::{self, ChatState};
use courant_connectors::model::tables::messages;
use courant_connectors::store::{Consistency, Item, Store, WriteStore};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use report::{CounterReport, Fault, Report, Seen};

use crate::verify::chats::QUESTIONS;
use crate::verify::context::Context;
use crate::verify::ledger::digest;
use crate::verify::pages::each_page;
use crate::verify::{self, Deployment, Ending, Progress, Result, VerifyError, checks, events};
use report::Findings;

/// What is looked at and put right.
#[derive(Clone)]
pub struct Recoverable {
    pub deployment: Deployment,
    pub store: Arc<dyn WriteStore>,
}

impl Recoverable {
    pub fn new(store: &Arc<dyn Store>, log: &Arc<dyn Log>) -> Self {
        Self { deployment: Deployment::new(store, log), store: Arc::clone(store) as _ }
    }
}

/// What to do about counters that are missing or behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Tell of them.
    Check,
    /// Tell what they would be set to.
    DryRun,
    Recover,
}

/// How to look, and what to do then. Has a JSON form, in which it goes over the admin socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Only these chats; all if empty.
    pub chats: Vec<ChatId>,
    pub action: Action,
    /// Read the log too: sequences of events count as used.
    pub with_log: bool,
    /// Set recovered counters this far beyond what was used.
    pub margin: u64,
    /// How long to wait for writers that had their sequences before the counter was lost.
    pub grace: Duration,
    /// Counters that are named of those that are not in order.
    pub examples: usize,
    /// Workers that read at the same time.
    pub parallel: NonZeroUsize,
}

impl Default for Options {
    fn default() -> Self {
        let verify::Options { chats, grace, parallel, .. } = verify::Options::default();
        Self { chats, action: Action::Check, with_log: false, margin: 0, grace, examples: 100, parallel }
    }
}

/// Looks at counters and does what was asked for. Told to stop, it finishes the counter it is at.
pub async fn counters(
    recoverable: Recoverable,
    options: Options,
    progress: impl Fn(Progress) + Send + Sync + 'static,
    stop: CancellationToken,
) -> Result<Report> {
    let look = verify::Options {
        only: vec![checks::EVENT_ORDER.id.to_owned()],
        chats: options.chats.clone(),
        grace: options.grace,
        parallel: options.parallel,
        ..verify::Options::default()
    };
    let Recoverable { deployment, store } = recoverable;
    let context = Arc::new(Context::new(deployment, look, Box::new(progress), stop)?);
    let work = Arc::new(Work { store, findings: Findings::new(options.examples, &options.chats), options });
    let ending = match work.run(&context).await {
        Ok(()) => Ending::Finished,
        Err(VerifyError::Stopped) => Ending::Stopped,
        Err(error) => return Err(error),
    };
    Ok(work.findings.report(&context, ending))
}

struct Work {
    store: Arc<dyn WriteStore>,
    options: Options,
    findings: Findings,
}

impl Work {
    async fn run(self: &Arc<Self>, context: &Arc<Context>) -> Result<()> {
        let recovers = self.options.action == Action::Recover;
        let phases = 1 + usize::from(self.options.with_log) + usize::from(recovers);
        if self.options.with_log {
            context.begin("messages.persisted", 1, phases);
            events::of_messages(context).await?;
            context.tell();
        }
        context.begin("counters", phases - usize::from(recovers), phases);
        let work = Arc::clone(self);
        each_page(context, &chats::SCHEMA, move |context, items| {
            let work = Arc::clone(&work);
            async move { work.check_page(&context, &items).await }
        })
        .await?;
        context.tell();
        self.findings.add_unseen();
        if recovers {
            context.begin("second look", phases, phases);
            self.look_again(context).await?;
            context.tell();
        }
        Ok(())
    }

    async fn check_page(&self, context: &Context, items: &[Item]) -> Result<()> {
        // Rows that cannot be read are told of by `verify`; their ids are all that is needed here.
        let id = |item: &Item| item.text("chat_id").map(ChatId::from);
        let is_forming = |item: &Item| ChatState::from_item(item).is_ok_and(|state| state.is_forming);
        let formed: Vec<ChatId> = items.iter().filter(|item| !is_forming(item)).filter_map(id).collect();
        for forming in items.iter().filter(|item| is_forming(item)).filter_map(id) {
            self.findings.seen(&forming);
        }
        let lookup = |chat: &ChatId| chat_counters::lookup(chat, Consistency::Strong);
        let found = context.reads.get_all(formed.iter().map(lookup).collect()).await?;
        let each = stream::iter(formed.iter().zip(found)).map(Ok);
        each.try_for_each_concurrent(QUESTIONS, |(chat, item)| self.check(context, chat, item)).await
    }

    async fn check(&self, context: &Context, chat: &ChatId, item: Option<Item>) -> Result<()> {
        context.check_stop()?;
        self.findings.seen(chat);
        let counter = Counter::of(item.as_ref());
        let highest = self.highest_of_all(context, chat).await?;
        // The counters of a page are read before its messages, so one that was sent in between is no fault.
        if counter.fault(highest.sequence).is_some()
            && let Some(report) = self.recover(context, chat).await?
        {
            self.findings.add(report);
        }
        Ok(())
    }

    /// The last message, or an event beyond it if the log was read.
    async fn highest_of_messages(&self, context: &Context, chat: &ChatId) -> Result<Highest> {
        let last = context.reads.query(messages::last_query(chat)).await?;
        let stored = last.items.first().and_then(|item| item.u64("sequence")).unwrap_or(0);
        let published = context.ledger.highest_published(digest(chat)).unwrap_or(0);
        let messages = Highest { sequence: stored, seen: Seen::Messages };
        Ok(messages.or(Highest { sequence: published, seen: Seen::Log }))
    }
}

/// The highest sequence that was used, and where that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Highest {
    sequence: u64,
    seen: Seen,
}

impl Highest {
    fn or(self, other: Self) -> Self {
        if other.sequence > self.sequence { other } else { self }
    }
}

/// A counter as it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counter {
    Missing,
    At(u64),
    /// With a value that is no number of a sequence.
    Unreadable,
}

impl Counter {
    fn of(item: Option<&Item>) -> Self {
        match item {
            // Without its value it is as good as missing: nobody can allocate from it.
            Some(item) if item.get("sequence_counter").is_some() => match ChatCounter::from_item(item) {
                Ok(counter) => Self::At(counter.sequence_counter),
                Err(_) => item.u64("sequence_counter").map_or(Self::Unreadable, Self::At),
            },
            _ => Self::Missing,
        }
    }

    fn fault(self, highest: u64) -> Option<Fault> {
        match self {
            Self::At(counter) if counter >= highest => None,
            Self::At(_) => Some(Fault::Behind),
            Self::Missing => Some(Fault::Missing),
            Self::Unreadable => Some(Fault::Unreadable),
        }
    }
}
