//! What all phases share: what was asked for, what was found, how far it is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use courant_connectors::model::Timestamp;
use courant_connectors::store::{Item, MAX_ITEM_BYTES, TableSchema};
use courant_pipeline::clock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::checks::{self, Check, Scope, check};
use super::events::LogRead;
use super::findings::Findings;
use super::forward::Samples;
use super::ledger::{Digest, Ledger, digest};
use super::leftovers::Leftovers;
use super::messages::{KnownChats, Missing};
use super::reads::Reads;
use super::report::{Ending, Example, Figures, Report};
use super::{Deployment, Options, Progress, Result, VerifyError};

/// How often somebody who watches is told.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// More only wait for each other.
const MOST_WORKERS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

pub(crate) struct Context {
    pub(crate) reads: Reads,
    pub(crate) options: Options,
    pub(super) findings: Findings,
    pub(crate) ledger: Ledger,
    pub(crate) missing: Missing,
    pub(crate) leftovers: Leftovers,
    pub(super) known_chats: KnownChats,
    pub(super) samples: Samples,
    /// Set once the log was read.
    pub(super) log_read: OnceLock<LogRead>,
    pub(super) figures: Mutex<Figures>,
    pub(crate) stop: CancellationToken,
    only: Vec<&'static Check>,
    /// Digests of the chats that are looked at; all if empty.
    chats: Vec<Digest>,
    pub(crate) began_at: Timestamp,
    phase: Mutex<CurrentPhase>,
    done: AtomicU64,
    progress: Box<dyn Fn(Progress) + Send + Sync>,
}

struct CurrentPhase {
    name: &'static str,
    of: Option<u64>,
    number: usize,
    phases: usize,
    told_at: Option<Instant>,
}

impl Context {
    pub(crate) fn new(
        deployment: Deployment,
        mut options: Options,
        progress: Box<dyn Fn(Progress) + Send + Sync>,
        stop: CancellationToken,
    ) -> Result<Self> {
        let named = |id: &String| check(id).ok_or_else(|| VerifyError::UnknownCheck { unknown: id.clone() });
        let only = options.only.iter().map(named).collect::<Result<_>>()?;
        // Once each: findings are counted.
        options.chats.sort();
        options.chats.dedup();
        options.parallel = options.parallel.min(MOST_WORKERS);
        Ok(Self {
            reads: Reads::new(deployment),
            findings: Findings::new(options.examples),
            ledger: Ledger::default(),
            missing: Missing::default(),
            leftovers: Leftovers::default(),
            known_chats: KnownChats::default(),
            samples: Samples::default(),
            log_read: OnceLock::new(),
            figures: Mutex::default(),
            stop,
            only,
            chats: options.chats.iter().map(digest).collect(),
            began_at: now(),
            phase: Mutex::new(CurrentPhase { name: "", of: None, number: 0, phases: 0, told_at: None }),
            done: AtomicU64::new(0),
            progress,
            options,
        })
    }

    pub(crate) fn wants(&self, check: &Check) -> bool {
        self.skipped(check).is_none()
    }

    pub(crate) fn wants_any(&self, checks: &[&Check]) -> bool {
        checks.iter().any(|check| self.wants(check))
    }

    /// Why a check is not made.
    fn skipped(&self, check: &Check) -> Option<&'static str> {
        let named = self.only.iter().any(|wanted| wanted.id == check.id);
        match check.scope {
            _ if !self.only.is_empty() && !named => Some("not asked for"),
            Scope::Users if !self.options.chats.is_empty() => Some("is not about chats"),
            Scope::Watch if self.options.watch.is_none() => Some("takes two looks: use --watch"),
            _ => None,
        }
    }

    /// Whether a chat is one of those that are looked at.
    pub(crate) fn covers(&self, chat: Digest) -> bool {
        self.chats.is_empty() || self.chats.contains(&chat)
    }

    pub(crate) fn found(&self, check: &Check, example: Example) {
        if self.wants(check) {
            self.findings.add(check, example);
        }
    }

    pub(crate) fn looked_at(&self, check: &Check, count: usize) {
        if self.wants(check) {
            self.findings.looked_at(check, count);
        }
    }

    /// The records of a page of items; those that are none are findings.
    pub(crate) fn records<T>(
        &self,
        schema: &'static TableSchema,
        items: &[Item],
        read: impl Fn(&Item) -> courant_connectors::store::Result<T>,
    ) -> Vec<T> {
        self.looked_at(&checks::READABLE, items.len());
        self.looked_at(&checks::ITEM_SIZE, items.len());
        let mut records = Vec::with_capacity(items.len());
        for item in items {
            let size = item.size();
            if size > MAX_ITEM_BYTES / 2 {
                let detail = format!("{}: {size} of {MAX_ITEM_BYTES} bytes", key_of(schema, item));
                self.found(&checks::ITEM_SIZE, example_of(item).saying(detail));
            }
            match read(item) {
                Ok(record) => records.push(record),
                Err(error) => self.found(&checks::READABLE, example_of(item).saying(error.to_string())),
            }
        }
        *self.figures().items.entry(schema.name.to_string()).or_default() += items.len() as u64;
        records
    }

    /// Items of tables that must not grow for ever say when they end.
    pub(crate) fn check_ends(&self, schema: &'static TableSchema, items: &[Item]) {
        self.looked_at(&checks::ENDS, items.len());
        let ttl = schema.ttl.as_deref().unwrap_or_default();
        for item in items.iter().filter(|item| item.u64(ttl).is_none()) {
            let detail = format!("{}: no number '{ttl}'", key_of(schema, item));
            self.found(&checks::ENDS, example_of(item).saying(detail));
        }
    }

    pub(crate) fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_stop(&self) -> Result<()> {
        if self.stop.is_cancelled() { Err(VerifyError::Stopped) } else { Ok(()) }
    }

    /// Waits, unless it is told to stop.
    pub(crate) async fn pause(&self, time: Duration) -> Result<()> {
        match self.stop.run_until_cancelled(tokio::time::sleep(time)).await {
            Some(()) => Ok(()),
            None => Err(VerifyError::Stopped),
        }
    }

    /// The phase after the last one.
    pub(crate) fn begin_next(&self, name: &'static str) {
        let (number, phases) = {
            let last = self.phase();
            (last.number + 1, last.phases.max(last.number + 1))
        };
        self.begin(name, number, phases);
    }

    pub(crate) fn begin(&self, name: &'static str, number: usize, phases: usize) {
        self.done.store(0, Ordering::Relaxed);
        *self.phase() = CurrentPhase { name, of: None, number, phases, told_at: None };
        self.tell();
    }

    pub(crate) fn expect(&self, count: u64) {
        self.phase().of = Some(count);
    }

    pub(crate) fn advance(&self, count: usize) {
        self.done.fetch_add(count as u64, Ordering::Relaxed);
        let recently = |at: Instant| at.elapsed() < TELL_EVERY;
        if !self.phase().told_at.is_some_and(recently) {
            self.tell();
        }
    }

    pub(crate) fn tell(&self) {
        let progress = {
            let mut phase = self.phase();
            phase.told_at = Some(Instant::now());
            Progress {
                phase: Cow::Borrowed(phase.name),
                done: self.done.load(Ordering::Relaxed),
                of: phase.of,
                number: phase.number,
                phases: phase.phases,
            }
        };
        (self.progress)(progress);
    }

    fn phase(&self) -> MutexGuard<'_, CurrentPhase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn report(&self, ending: Ending) -> Report {
        let mut figures = self.figures().clone();
        (figures.gaps, figures.chats_with_gaps) = self.ledger.gaps();
        let checks = self.findings.report(|check| self.skipped(check));
        Report { began_at: self.began_at, ended_at: now(), ending, figures, checks }
    }
}

pub(crate) fn now() -> Timestamp {
    Timestamp::from_unix_millis(clock::unix_millis())
}

pub(crate) fn before(time: Timestamp, by: Duration) -> Timestamp {
    let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_unix_millis(time.unix_millis().saturating_sub(millis))
}

/// Whether something of this time is older than a while.
pub(crate) fn is_older(time: Timestamp, than: Duration, now: Timestamp) -> bool {
    time.plus(than) < now
}

/// Chat and user of any item that has them.
fn example_of(item: &Item) -> Example {
    let chat_id = item.text("chat_id").map(Into::into);
    let user_id = item.text("user_id").map(Into::into);
    Example { chat_id, sequence: item.u64("sequence"), user_id, detail: String::new() }
}

fn key_of(schema: &TableSchema, item: &Item) -> String {
    let keys: BTreeMap<_, _> = schema.key_names(None).map(|name| (name, item.get(name))).collect();
    let keys = keys.into_iter().map(|(name, value)| match value.and_then(|value| value.as_text()) {
        Some(text) => format!("{name} '{text}'"),
        None => format!("{name} {}", item.u64(name).unwrap_or_default()),
    });
    format!("item of '{}' with {}", schema.name, keys.collect::<Vec<_>>().join(", "))
}
