//! The one thread that writes. Whatever waits when it is free becomes one group with one sync.
//!
//! A sync takes as long for one write as for a thousand, so under load the cost per write falls by itself and no
//! timer is needed. And since one thread decides all writes in order, conditional writes and transactions are
//! serializable without locks.
//!
//! Writes that ask only for order go first, in a group of their own without a sync: they do not wait for the disk, and
//! the synced group after them carries them there.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fjall::Database;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::clock::Clock;
use super::group::Group;
use crate::store::Durability;

/// Waiting writes take at most this much memory; full: callers wait.
const WAITING_KIB: u32 = 256 * 1024;
/// A group is closed at this size, so that one sync stays short and memory bounded.
const GROUP_BYTES: usize = 16 * 1024 * 1024;
/// The part of the last group's time that may be spent waiting for the next one to fill up.
const PATIENCE: u32 = 8;

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
    jobs: VecDeque<(Box<dyn Job>, OwnedSemaphorePermit)>,
    /// Why nothing more is taken.
    closed: Option<String>,
}

struct Waiting {
    queue: Mutex<Queue>,
    not_empty: Condvar,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // a panic while it was held left a queue that is still a queue
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Committer {
    waiting: Arc<Waiting>,
    memory: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Committer {
    pub(super) fn start(database: Database, folder: String, clock: Clock) -> std::io::Result<Self> {
        let waiting = Arc::new(Waiting { queue: Mutex::default(), not_empty: Condvar::new() });
        let worker = Worker {
            waiting: Arc::clone(&waiting),
            database,
            folder,
            clock,
            failed: None,
            last: LastGroup::default(),
        };
        let thread = std::thread::Builder::new().name("courant-commit".into()).spawn(move || worker.run())?;
        let memory = Arc::new(Semaphore::new(WAITING_KIB as usize));
        Ok(Self { waiting, memory, thread: Mutex::new(Some(thread)) })
    }

    /// Hands over a job; it answers by itself, also when the engine closes first.
    pub(super) async fn submit(&self, job: Box<dyn Job>) {
        let kib = u32::try_from(job.bytes() / 1024 + 1).unwrap_or(u32::MAX).min(WAITING_KIB);
        let permit =
            Arc::clone(&self.memory).acquire_many_owned(kib).await.expect("the semaphore is never closed");
        let mut queue = self.waiting.lock();
        if let Some(because) = queue.closed.clone() {
            drop(queue);
            return job.answer(Err(&CommitError::Closed { because }));
        }
        queue.jobs.push_back((job, permit));
        if queue.jobs.len() == 1 {
            self.waiting.not_empty.notify_one();
        }
    }

    /// Finishes what waits and ends the thread.
    pub(super) fn close(&self) {
        self.waiting.lock().closed.get_or_insert_with(|| "the engine is closed".to_owned());
        self.waiting.not_empty.notify_one();
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
    database: Database,
    folder: String,
    clock: Clock,
    failed: Option<String>,
    last: LastGroup,
}

/// What the next group is likely to be like.
#[derive(Default)]
struct LastGroup {
    jobs: usize,
    took: Duration,
}

impl Worker {
    fn run(mut self) {
        while let Some(jobs) = self.next() {
            self.last.jobs = jobs.len();
            let started = Instant::now();
            let (ordered, synced) =
                jobs.into_iter().partition(|(job, _)| job.durability() == Durability::Ordered);
            for (durability, jobs) in [(Durability::Ordered, ordered), (Durability::Synced, synced)] {
                self.commit(jobs, durability);
            }
            self.last.took = started.elapsed();
        }
    }

    /// Waits for jobs; `None` once closed and empty.
    fn next(&self) -> Option<Jobs> {
        let mut queue = self.waiting.lock();
        while queue.jobs.is_empty() {
            if queue.closed.is_some() {
                return None;
            }
            queue = self.waiting.not_empty.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let queue = self.wait_for_the_others(queue);
        Some(take_group(queue))
    }

    /// Callers that were answered together come back together, but not at the same moment. Taking the first of them alone
    /// would make the rest wait for a sync that could have been theirs; waiting costs a small part of that.
    fn wait_for_the_others<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let patience = self.last.took / PATIENCE;
        let started = Instant::now();
        while queue.jobs.len() < self.last.jobs && queue.closed.is_none() && started.elapsed() < patience {
            drop(queue);
            std::thread::yield_now();
            queue = self.waiting.lock();
        }
        queue
    }

    fn commit(&mut self, mut jobs: Jobs, durability: Durability) {
        if let Some(because) = self.failed.clone() {
            let closed = CommitError::Closed { because };
            return jobs.into_iter().for_each(|(job, _)| job.answer(Err(&closed)));
        }
        if jobs.is_empty() {
            return;
        }
        // A panic in here is a bug; it must not leave callers waiting or half a group behind.
        let committed = catch_unwind(AssertUnwindSafe(|| {
            let mut group = Group::new(self.clock.unix_millis(), jobs.len());
            for (job, _) in &mut jobs {
                job.decide(&mut group);
            }
            group.commit(&self.database, durability)
        }));
        let failed = match committed {
            Ok(Ok(appends)) => {
                appends.announce();
                None
            }
            // what the engine below says of all writes after one of its own threads could not write a file
            Ok(Err(fjall::Error::Poisoned)) => {
                Some(self.fail("writing a file in the background failed, as it does when the disk is full"))
            }
            Ok(Err(error)) => Some(self.fail(&error.to_string())),
            Err(_) => Some(self.fail("the committer panicked, see the log")),
        };
        for (job, permit) in jobs {
            job.answer(failed.as_ref().map_or(Ok(()), Err));
            drop(permit);
        }
    }

    /// After a failed write nobody knows what the disk holds, so nothing more is written.
    fn fail(&mut self, error: &str) -> CommitError {
        let failed = CommitError::Failed { folder: self.folder.clone(), error: error.to_owned() };
        tracing::error!(folder = self.folder, error, "the embedded engine cannot write");
        self.failed = Some(failed.to_string());
        self.waiting.lock().closed.clone_from(&self.failed);
        failed
    }
}

type Jobs = Vec<(Box<dyn Job>, OwnedSemaphorePermit)>;

/// As many of the waiting jobs as fit in a group.
fn take_group(mut queue: MutexGuard<'_, Queue>) -> Jobs {
    let mut bytes = 0;
    let fits = queue.jobs.iter().take_while(|(job, _)| {
        let fits = bytes < GROUP_BYTES;
        bytes += job.bytes();
        fits
    });
    let count = fits.count();
    if count == queue.jobs.len() {
        return std::mem::take(&mut queue.jobs).into();
    }
    queue.jobs.drain(..count).collect()
}
