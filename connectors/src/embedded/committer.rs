//! The one thread that writes. Whatever waits when it is free becomes one group with one sync.
//!
//! A sync takes as long for one write as for a thousand, so under load the cost per write falls by itself and no
//! timer is needed. And since one thread decides all writes in order, conditional writes and transactions are
//! serializable without locks.
//!
//! While a group fills up, those that are there are decided and written, and answered with the rest of it.
//!
//! Writes that ask only for order are a group of their own without a sync, as a rule before the synced one: they do not
//! wait for the disk, and the next sync carries them there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fjall::PersistMode;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::group::Group;
use super::runway::Runway;
use super::shared::Shared;
use crate::store::Durability;

/// Waiting writes take at most this much memory; full: callers wait.
const WAITING_KIB: u32 = 256 * 1024;
/// A group is closed at this size, so that one sync stays short and memory bounded.
const GROUP_BYTES: usize = 16 * 1024 * 1024;
/// The part of the last group's time that may be spent waiting for the next one to fill up.
const PATIENCE: u32 = 4;
/// A group that fills up is written in so many portions,
const PORTIONS: usize = 4;
/// unless they are smaller than this: each is a batch of its own.
const SMALLEST_PORTION: usize = 8;

/// A piece of work for the committer.
pub(super) trait Job: Send {
    /// What it will hold in memory, roughly.
    fn bytes(&self) -> usize;

    fn durability(&self) -> Durability {
        Durability::Synced
    }

    /// Decides what to write, and keeps the answer to itself.
    fn decide(&mut self, group: &mut Group);

    /// Called once after the group is on disk, or was found impossible to write.
    fn answer(self: Box<Self>, committed: Result<(), &CommitError>);
}

/// Why nothing can be written any more.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum CommitError {
    /// Nothing of the job was written.
    #[error("{because}")]
    Closed { because: String },
    /// The job's group may or may not be on disk.
    #[error(
        "writing to '{folder}' failed ({error}); nothing more is written until a restart, after making room or \
             replacing the disk"
    )]
    Failed { folder: String, error: String },
}

#[derive(Default)]
struct Queue {
    ordered: Jobs,
    synced: Jobs,
    /// How many jobs wake the committer.
    wake_at: usize,
    /// Why nothing more is taken.
    closed: Option<String>,
}

impl Queue {
    fn len(&self) -> usize {
        self.ordered.len() + self.synced.len()
    }

    fn is_closed_or_has(&self, jobs: usize) -> bool {
        self.closed.is_some() || self.len() >= jobs
    }
}

/// Jobs and what they hold in memory.
type Jobs = Vec<(Box<dyn Job>, usize)>;

struct Waiting {
    queue: Mutex<Queue>,
    enough: Condvar,
    /// For what waits and what is being written, in KiB.
    memory: Semaphore,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // a panic while it was held left a queue that is still a queue
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until there are so many jobs, or none will come any more, or it is too late.
    fn wait<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        jobs: usize,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Queue> {
        queue.wake_at = jobs;
        let waits = |queue: &mut Queue| !queue.is_closed_or_has(jobs);
        match until {
            None => self.enough.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                let waited = self.enough.wait_timeout_while(queue, left, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

pub(super) struct Committer {
    waiting: Arc<Waiting>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Committer {
    pub(super) fn start(shared: Arc<Shared>, runway: Runway, folder: String) -> std::io::Result<Self> {
        let worker = Worker::new(shared, runway, folder);
        let waiting = Arc::clone(&worker.waiting);
        let thread = std::thread::Builder::new().name("courant-commit".into()).spawn(move || worker.run())?;
        Ok(Self { waiting, thread: Mutex::new(Some(thread)) })
    }

    /// Hands over a job; it answers by itself, also when the engine closes first.
    pub(super) async fn submit(&self, job: Box<dyn Job>) {
        let bytes = job.bytes();
        let permit = self.waiting.memory.acquire_many(kib(bytes)).await;
        // given back by the committer, for a whole group at once
        permit.expect("the semaphore is never closed").forget();
        let mut queue = self.waiting.lock();
        if let Some(because) = queue.closed.clone() {
            drop(queue);
            self.waiting.memory.add_permits(kib(bytes) as usize);
            return job.answer(Err(&CommitError::Closed { because }));
        }
        let jobs = match job.durability() {
            Durability::Ordered => &mut queue.ordered,
            Durability::Synced => &mut queue.synced,
        };
        jobs.push((job, bytes));
        let is_enough = queue.len() == queue.wake_at;
        drop(queue);
        if is_enough {
            self.waiting.enough.notify_one();
        }
    }

    /// Why nothing more is taken.
    pub(super) fn closed(&self) -> Option<String> {
        self.waiting.lock().closed.clone()
    }

    /// Finishes what waits and ends the thread.
    pub(super) fn close(&self) {
        self.waiting.lock().closed.get_or_insert_with(|| "the engine is closed".to_owned());
        self.waiting.enough.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the committer panicked");
        }
    }
}

struct Worker {
    waiting: Arc<Waiting>,
    shared: Arc<Shared>,
    runway: Runway,
    folder: String,
    group: Group,
    failed: Option<CommitError>,
    last: LastGroup,
}

/// What the next group is likely to be like.
#[derive(Default)]
struct LastGroup {
    jobs: usize,
    has_ordered: bool,
    took: Duration,
}

/// Jobs that are to be done together.
struct Gathered {
    /// Decided and written, but neither synced nor answered.
    written: Jobs,
    synced: Jobs,
    ordered: Jobs,
}

impl Worker {
    fn new(shared: Arc<Shared>, runway: Runway, folder: String) -> Self {
        let memory = Semaphore::new(WAITING_KIB as usize);
        Self {
            waiting: Arc::new(Waiting { queue: Mutex::default(), enough: Condvar::new(), memory }),
            shared,
            runway,
            folder,
            group: Group::default(),
            failed: None,
            last: LastGroup::default(),
        }
    }

    fn run(mut self) {
        while let Some(gathered) = self.gather() {
            self.finish(gathered);
        }
    }

    fn finish(&mut self, Gathered { written, synced, ordered }: Gathered) {
        let started = Instant::now();
        let jobs = written.iter().chain(&synced).chain(&ordered);
        let kib: u32 = jobs.map(|(_, bytes)| kib(*bytes)).sum();
        self.last.jobs = written.len() + synced.len() + ordered.len();
        self.last.has_ordered = !ordered.is_empty();
        if written.is_empty() {
            self.commit(Jobs::new(), ordered, Durability::Ordered);
            self.commit(Jobs::new(), synced, Durability::Synced);
        } else {
            // showing what asks only for order would show what is written and not on disk
            self.commit(written, synced, Durability::Synced);
            self.commit(Jobs::new(), ordered, Durability::Ordered);
        }
        self.waiting.memory.add_permits(kib as usize);
        self.last.took = started.elapsed();
    }

    /// Waits for jobs; `None` once closed and empty.
    fn gather(&mut self) -> Option<Gathered> {
        let waiting = Arc::clone(&self.waiting);
        let mut queue = waiting.wait(waiting.lock(), 1, None);
        if queue.len() == 0 {
            return None;
        }
        // Callers that were answered together come back together, but not at the same moment. Taking the first of them
        // alone would make the rest wait for a sync that could have been theirs; waiting costs a small part of that.
        let until = Instant::now() + self.last.took / PATIENCE;
        let mut written = Jobs::new();
        // Meanwhile those that are there are written. Not beside jobs that ask only for order, which would have to wait
        // for the disk then.
        let portion = self.last.jobs / PORTIONS;
        while portion >= SMALLEST_PORTION && !self.last.has_ordered && self.failed.is_none() {
            queue = waiting.wait(queue, portion, Some(until));
            let is_rest = written.len() + queue.len() + portion > self.last.jobs;
            if is_rest || queue.len() < portion || !queue.ordered.is_empty() {
                break;
            }
            let mut jobs = std::mem::take(&mut queue.synced);
            drop(queue);
            let later = self.write(written.is_empty(), &mut jobs, None);
            written.append(&mut jobs);
            let is_full = !later.is_empty();
            queue = waiting.lock();
            queue.synced.splice(..0, later);
            if is_full {
                break;
            }
        }
        queue = waiting.wait(queue, self.last.jobs.saturating_sub(written.len()), Some(until));
        let mut room = GROUP_BYTES;
        let ordered = take_group(&mut queue.ordered, &mut room);
        Some(Gathered { written, ordered, synced: take_group(&mut queue.synced, &mut room) })
    }

    /// Writes the jobs, as a rule in one group with those that are written already, and answers them all.
    fn commit(&mut self, mut written: Jobs, mut jobs: Jobs, durability: Durability) {
        while !(written.is_empty() && jobs.is_empty()) {
            if let Some(failed) = &self.failed {
                answer(&mut written, Err(failed));
                return answer(&mut jobs, Err(&CommitError::Closed { because: failed.to_string() }));
            }
            let later = self.write(written.is_empty(), &mut jobs, Some(durability));
            written.append(&mut jobs);
            answer(&mut written, self.failed.as_ref().map_or(Ok(()), Err));
            jobs = later;
        }
    }

    /// Decides the jobs in order and writes what they change, in a new group or behind what is written of the last one.
    /// With a durability that is the end of the group, and readers see it.
    ///
    /// Returns the jobs that there was no room for: what a write changes is known only once it is decided.
    fn write(&mut self, is_new: bool, jobs: &mut Jobs, ends_with: Option<Durability>) -> Jobs {
        let mut decided = 0;
        // A panic in here is a bug; it must not leave callers waiting or half a group behind.
        let written = catch_unwind(AssertUnwindSafe(|| {
            if is_new {
                self.group.begin(self.shared.clock.unix_millis());
            }
            let before = self.group.bytes();
            while decided < jobs.len() && self.group.bytes() < GROUP_BYTES {
                decided += 1;
                jobs[decided - 1].0.decide(&mut self.group);
            }
            self.runway.lay_out(self.group.bytes() - before);
            match ends_with {
                None => self.group.write(&self.shared, PersistMode::Buffer),
                Some(durability) => self.group.commit(&self.shared, durability),
            }
        }));
        match written {
            Ok(Ok(())) => {}
            // what the engine below says of all writes after one of its own threads could not write a file
            Ok(Err(fjall::Error::Poisoned)) => {
                self.fail("writing a file in the background failed, as it does when the disk is full");
            }
            Ok(Err(error)) => self.fail(&error.to_string()),
            Err(_) => self.fail("the committer panicked, see the log"),
        }
        jobs.split_off(decided)
    }

    /// After a failed write nobody knows what the disk holds, so nothing more is written.
    fn fail(&mut self, error: &str) {
        tracing::error!(folder = self.folder, error, "the embedded engine cannot write");
        let failed = CommitError::Failed { folder: self.folder.clone(), error: error.to_owned() };
        self.waiting.lock().closed = Some(failed.to_string());
        self.failed = Some(failed);
    }
}

fn answer(jobs: &mut Jobs, committed: Result<(), &CommitError>) {
    jobs.drain(..).for_each(|(job, _)| job.answer(committed));
}

/// As many of the waiting jobs as there is room for, at least one if there is any room.
fn take_group(jobs: &mut Jobs, room: &mut usize) -> Jobs {
    let fits = jobs.iter().take_while(|(_, bytes)| {
        let fits = *room > 0;
        *room = room.saturating_sub(*bytes);
        fits
    });
    let count = fits.count();
    if count == jobs.len() {
        // as many will come again
        return std::mem::replace(jobs, Vec::with_capacity(count));
    }
    let later = jobs.split_off(count);
    std::mem::replace(jobs, later)
}

/// What a job takes of the memory for waiting ones.
fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX).min(WAITING_KIB)
}

#[cfg(test)]
mod tests;
