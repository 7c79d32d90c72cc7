//! Whether a deployment is as the design promises: the invariants of dataflow, sequencing and data model, checked on
//! store and log while others may be using them.
//!
//! Things move while it looks, so a finding must be one that motion cannot explain. What is written second is read first,
//! and what must have been there before it is then read strongly: an event and then its message, a message and then its
//! key and counter, a watermark and then the counter. The relation that goes the other way is a message and its event.
//! It is missed only if the message is older than a grace period at the moment whose end of the log was read up to, and
//! if the event has not come by another look at the end of the log. What a scan or an index says late is asked for
//! again. Nothing is written.
//!
//! Memory is a few pages for each worker and the [`ledger`] of sequences, see there: never messages.
//!
//! Rejected: a snapshot. Neither DynamoDB nor Kafka has one, and what is only true in a snapshot is of no use to those
//! who read beside the writers.
//!
//! [`reconcile`](crate::reconcile) and [`counters`](crate::counters) look with the same eyes and then act on what they see.

mod accounts;
pub(crate) mod chats;
pub mod checks;
pub(crate) mod context;
pub(crate) mod delivery;
pub(crate) mod events;
mod findings;
mod forward;
mod keys;
pub(crate) mod ledger;
pub(crate) mod leftovers;
mod members;
mod messages;
pub(crate) mod pages;
pub(crate) mod reads;
mod report;
#[cfg(test)]
pub(crate) mod tests;

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::log::{Log, LogError, ReadLog};
use courant_connectors::model::topics::{chats_created, memberships_changed, messages_persisted};
use courant_connectors::model::{ChatId, Timestamp};
use courant_connectors::store::{ReadStore, ScanStore, Store, StoreError};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use checks::{CHECKS, Check, Scope, Severity, check};
pub use report::{CheckReport, Ending, Example, Figures, Report};

use context::Context;

/// What is looked at.
#[derive(Clone)]
pub struct Deployment {
    pub store: Arc<dyn ReadStore>,
    pub scan: Arc<dyn ScanStore>,
    pub log: Arc<dyn ReadLog>,
}

impl Deployment {
    pub fn new(store: &Arc<dyn Store>, log: &Arc<dyn Log>) -> Self {
        Self { store: Arc::clone(store) as _, scan: Arc::clone(store) as _, log: Arc::clone(log) as _ }
    }
}

/// How to look. Has a JSON form, in which it goes over the admin socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Only these checks; all if empty.
    pub only: Vec<String>,
    /// Only these chats, and nothing about users; everything if empty.
    pub chats: Vec<ChatId>,
    /// How long a message may wait for its event, a large group for its chat, and an index for its table. Clocks of
    /// different machines should not be further apart.
    pub grace: Duration,
    /// Look at watermarks and counters a second time after this long.
    pub watch: Option<Duration>,
    /// Messages from before this have no event: the log began then.
    pub events_since: Option<Timestamp>,
    /// Read the events of messages from here on only, a margin before it for clocks that differ and late publishes.
    pub read_since: Option<Timestamp>,
    /// How long the log keeps events, for partitions in which it holds none any more.
    pub events_kept: Duration,
    /// Examples of each kind of finding.
    pub examples: usize,
    /// Workers that read at the same time.
    pub parallel: NonZeroUsize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            only: Vec::new(),
            chats: Vec::new(),
            grace: Duration::from_secs(10),
            watch: None,
            events_since: None,
            read_since: None,
            events_kept: messages_persisted::spec().retention.age.unwrap_or(Duration::MAX),
            examples: 10,
            // Two keep a small machine busy and leave a large one to those who serve.
            parallel: NonZeroUsize::new(2).expect("two is not zero"),
        }
    }
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being read.
    pub phase: Cow<'static, str>,
    /// Items or events so far.
    pub done: u64,
    /// How many there are, where that is known.
    pub of: Option<u64>,
    /// The phase's number, and how many there will be.
    pub number: usize,
    pub phases: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("there is no check '{unknown}'; there are: {}", known_checks())]
    UnknownCheck { unknown: String },
    #[error("cannot {doing}")]
    Store { doing: &'static str, source: StoreError },
    #[error("cannot {doing}")]
    Log { doing: &'static str, source: LogError },
    #[error("a worker ended early")]
    Worker(#[source] tokio::task::JoinError),
    #[error("stopped")]
    Stopped,
}

fn known_checks() -> String {
    CHECKS.iter().map(|check| check.id).collect::<Vec<_>>().join(", ")
}

pub(crate) type Result<T, E = VerifyError> = std::result::Result<T, E>;

/// Looks at everything that was asked for. Told to stop, it answers with what it found until then.
pub async fn verify(
    deployment: Deployment,
    options: Options,
    progress: impl Fn(Progress) + Send + Sync + 'static,
    stop: CancellationToken,
) -> Result<Report> {
    let context = Arc::new(Context::new(deployment, options, Box::new(progress), stop)?);
    let ending = match look(&context, 0).await {
        Ok(()) => Ending::Finished,
        Err(VerifyError::Stopped) => Ending::Stopped,
        Err(error) => return Err(error),
    };
    Ok(context.report(ending))
}

/// Part of the work: one table or topic. Made if one of its checks is wanted.
struct Phase {
    name: &'static str,
    scope: Scope,
    checks: &'static [&'static Check],
    run: for<'a> fn(&'a Arc<Context>) -> BoxFuture<'a, Result<()>>,
}

/// In this order, so that what is written second is read first.
static PHASES: &[Phase] = &[
    Phase {
        name: messages_persisted::NAME,
        scope: Scope::Chats,
        checks: &[
            &checks::MESSAGE_EVENT,
            &checks::EVENT_MESSAGE,
            &checks::EVENT_CONTENT,
            &checks::EVENT_READABLE,
            &checks::EVENT_ORDER,
            &checks::EVENT_PARTITION,
        ],
        run: |context| Box::pin(events::of_messages(context)),
    },
    Phase {
        name: chats_created::NAME,
        scope: Scope::Chats,
        checks: &[&checks::CHAT_EVENT, &checks::EVENT_READABLE],
        run: |context| Box::pin(events::of_chats(context)),
    },
    Phase {
        name: memberships_changed::NAME,
        scope: Scope::Chats,
        checks: &[&checks::CHAT_EVENT, &checks::EVENT_READABLE],
        run: |context| Box::pin(events::of_members(context)),
    },
    Phase {
        name: "messages",
        scope: Scope::Chats,
        checks: &[
            &checks::READABLE,
            &checks::ITEM_SIZE,
            &checks::SEQUENCE_POSITIVE,
            &checks::SEQUENCE_UNIQUE,
            &checks::COUNTER_BOUND,
            &checks::MESSAGE_CHAT,
            &checks::MESSAGE_KEY,
            &checks::MESSAGE_ONCE,
            &checks::MESSAGE_EVENT,
        ],
        run: |context| Box::pin(messages::run(context)),
    },
    Phase {
        name: "idempotency_keys",
        scope: Scope::Chats,
        checks: &[
            &checks::READABLE,
            &checks::ITEM_SIZE,
            &checks::ENDS,
            &checks::KEY_MESSAGE,
            &checks::KEY_AGREES,
        ],
        run: |context| Box::pin(keys::run(context)),
    },
    Phase {
        name: "chats",
        scope: Scope::Chats,
        checks: &[
            &checks::READABLE,
            &checks::ITEM_SIZE,
            &checks::COUNTER_EXISTS,
            &checks::CHAT_FORMED,
            &checks::CHAT_COUNTS,
            &checks::CHAT_OWNER,
            &checks::DIRECT_PAIR,
        ],
        run: |context| Box::pin(chats::run(context)),
    },
    Phase {
        name: "chat_counters",
        scope: Scope::Chats,
        checks: &[&checks::READABLE, &checks::ITEM_SIZE, &checks::COUNTER_CHAT, &checks::COUNTER_FORWARD],
        run: |context| Box::pin(chats::run_counters(context)),
    },
    Phase {
        name: "chat_memberships",
        scope: Scope::Chats,
        checks: &[
            &checks::READABLE,
            &checks::ITEM_SIZE,
            &checks::MEMBERSHIP_CHAT,
            &checks::MEMBERSHIP_USER,
            &checks::INDEX_AGREES,
        ],
        run: |context| Box::pin(members::run(context)),
    },
    Phase {
        name: "delivery_state",
        scope: Scope::Chats,
        checks: &[
            &checks::READABLE,
            &checks::ITEM_SIZE,
            &checks::WATERMARK_BOUND,
            &checks::WATERMARK_CHAT,
            &checks::WATERMARK_FORWARD,
        ],
        run: |context| Box::pin(delivery::run(context)),
    },
    Phase {
        name: "users",
        scope: Scope::Users,
        checks: &[&checks::READABLE, &checks::ITEM_SIZE, &checks::INDEX_AGREES, &checks::PHONE_USER],
        run: |context| Box::pin(accounts::run_users(context)),
    },
    Phase {
        name: "sessions",
        scope: Scope::Users,
        checks: &[&checks::READABLE, &checks::ITEM_SIZE, &checks::ENDS, &checks::SESSION_USER],
        run: |context| Box::pin(accounts::run_sessions(context)),
    },
    Phase {
        name: "late events",
        scope: Scope::Chats,
        checks: &[&checks::MESSAGE_EVENT],
        run: |context| Box::pin(events::late(context)),
    },
    Phase {
        name: "second look",
        scope: Scope::Chats,
        checks: &[&checks::WATERMARK_FORWARD, &checks::COUNTER_FORWARD],
        run: |context| Box::pin(forward::run(context)),
    },
];

/// Makes every phase that is wanted, of which `more` will follow.
pub(crate) async fn look(context: &Arc<Context>, more: usize) -> Result<()> {
    let everything = context.options.chats.is_empty();
    let can_be_made = |phase: &&Phase| phase.scope == Scope::Chats || everything;
    let wanted = PHASES.iter().filter(can_be_made).filter(|phase| context.wants_any(phase.checks));
    let wanted: Vec<_> = wanted.collect();
    for (number, phase) in (1..).zip(&wanted) {
        context.begin(phase.name, number, wanted.len() + more);
        (phase.run)(context).await?;
        context.tell();
    }
    Ok(())
}
