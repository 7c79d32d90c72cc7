//! Store and log brought together again after they have come apart: messages without their event, events without their
//! message, groups that were begun and never made.
//!
//! It looks as [`verify`](crate::verify) does, so it can be used beside a deployment at work: a message too new to be
//! missed, an event that comes late and what the log has let go of are no findings. The store decides. Events that are
//! missing are published on request, made from the stored message as every other copy of them is: same id, same bytes,
//! so whoever knows events by chat and sequence sees each once. An event without a message is only told of, since the
//! log takes nothing back. What is left of a large group whose making died is swept on request.
//!
//! Cut off at any moment it leaves nothing half done: events are appended whole, and each removal is one transaction.
//! Run again, it finds what is left. Memory is that of `verify`.
//!
//! Rejected: stopping the fan-out meanwhile, as the procedure was first written down. It would silence everybody for
//! as long as reading takes, to spare consumers events that they recognize.

mod publish;
mod report;
mod sweep;
#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::log::{Log, WriteLog};
use courant_connectors::model::{ChatId, Timestamp};
use courant_connectors::store::{Store, WriteStore};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use report::{Kept, Published, Report, Swept};

use crate::verify::context::{Context, before, now};
use crate::verify::{self, Deployment, Ending, Progress, VerifyError, checks, look};

/// What is looked at and put right.
#[derive(Clone)]
pub struct Repairable {
    pub deployment: Deployment,
    pub store: Arc<dyn WriteStore>,
    pub log: Arc<dyn WriteLog>,
}

impl Repairable {
    pub fn new(store: &Arc<dyn Store>, log: &Arc<dyn Log>) -> Self {
        let deployment = Deployment::new(store, log);
        Self { deployment, store: Arc::clone(store) as _, log: Arc::clone(log) as _ }
    }
}

/// How to look, and what to do then. Has a JSON form, in which it goes over the admin socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Only these chats; all if empty.
    pub chats: Vec<ChatId>,
    /// Only messages stored since then, and events appended since then.
    pub since: Option<Timestamp>,
    /// Publish the events that are missing.
    pub publish: bool,
    /// Remove groups that were begun this long ago and never made.
    pub sweep_chats: Option<Duration>,
    /// How long a message may wait for its event before it is missed.
    pub grace: Duration,
    /// How long the log keeps events: what is older is not missed.
    pub events_kept: Duration,
    /// Examples of each kind of finding.
    pub examples: usize,
    /// Workers that read at the same time.
    pub parallel: NonZeroUsize,
}

impl Default for Options {
    fn default() -> Self {
        let verify::Options { chats, grace, events_kept, examples, parallel, .. } =
            verify::Options::default();
        let (since, publish, sweep_chats) = (None, false, None);
        Self { chats, since, publish, sweep_chats, grace, events_kept, examples, parallel }
    }
}

impl Options {
    fn to_look(&self) -> verify::Options {
        let only = [
            &checks::MESSAGE_EVENT,
            &checks::EVENT_MESSAGE,
            &checks::EVENT_CONTENT,
            &checks::CHAT_FORMED,
            &checks::MEMBERSHIP_CHAT,
        ];
        verify::Options {
            only: only.map(|check| check.id.to_owned()).to_vec(),
            chats: self.chats.clone(),
            grace: self.grace,
            // An event that was published then would be gone by now.
            events_since: self.since.max(Some(before(now(), self.events_kept))),
            read_since: self.since,
            events_kept: self.events_kept,
            examples: self.examples,
            parallel: self.parallel,
            ..verify::Options::default()
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error(transparent)]
    Look(#[from] VerifyError),
    #[error(
        "{} were published and {} swept before it could not go on; run it again for the rest",
        counted(*published, "event"), counted(*swept, "group")
    )]
    CutOff { published: u64, swept: u64, source: VerifyError },
}

fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Looks, and does what was asked for about what it finds. Told to stop, it finishes the step under way and answers with
/// what was found and done until then.
pub async fn reconcile(
    repairable: Repairable,
    options: Options,
    progress: impl Fn(Progress) + Send + Sync + 'static,
    stop: CancellationToken,
) -> Result<Report, ReconcileError> {
    let Repairable { deployment, store, log } = repairable;
    let context = Context::new(deployment, options.to_look(), Box::new(progress), stop)?;
    let context = Arc::new(context);
    let more = usize::from(options.publish) + usize::from(options.sweep_chats.is_some());
    let mut published = options.publish.then(Published::default);
    let mut swept = options.sweep_chats.map(|_| Swept::default());
    let work = async {
        look(&context, more).await?;
        if let Some(published) = &mut published {
            publish::missing_events(&context, &log, published).await?;
            context.tell();
        }
        if let (Some(swept), Some(after)) = (&mut swept, options.sweep_chats) {
            sweep::leftovers(&context, &store, after, swept).await?;
            context.tell();
        }
        Ok(())
    };
    let ending = match work.await {
        Ok(()) => Ending::Finished,
        Err(VerifyError::Stopped) => Ending::Stopped,
        Err(source) => {
            let published = published.map_or(0, |published| published.events);
            let swept = swept.map_or(0, |swept| swept.groups);
            if published + swept == 0 {
                return Err(source.into());
            }
            return Err(ReconcileError::CutOff { published, swept, source });
        }
    };
    Ok(Report { looked: context.report(ending), published, swept })
}
