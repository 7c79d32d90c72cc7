//! The one thread that writes. Whatever waits when it is free becomes one group with one sync.
//!
//! A sync takes as long for one write as for a thousand, so under load the cost per write falls by itself and no
//! timer is needed. And since one thread decides all writes in order, conditional writes and transactions are
//! serializable without locks.
//!
//! Writes that ask only for order go first, in a group of their own without a sync: they do not wait for the disk, and
//! the synced group after them carries them there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::group::Group;
use super::shared::Shared;
use crate::store::Durability;

/// Waiting writes take at most this much memory; full: callers wait.
const WAITING_KIB: u32 = 256 * 1024;
/// A group is closed at this size, so that one sync stays short and memory bounded.
const GROUP_BYTES: usize = 16 * 1024 * 1024;
/// The part of the last group's time that may be spent waiting for the next one to fill up.
const PATIENCE: u32 = 4;

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
}

pub(super) struct Committer {
    waiting: Arc<Waiting>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Committer {
    pub(super) fn start(shared: Arc<Shared>, folder: String) -> std::io::Result<Self> {
        let memory = Semaphore::new(WAITING_KIB as usize);
        let waiting = Arc::new(Waiting { queue: Mutex::default(), enough: Condvar::new(), memory });
        let worker = Worker {
            waiting: Arc::clone(&waiting),
            shared,
            folder,
            group: Group::default(),
            failed: None,
            last: LastGroup::default(),
        };
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
    folder: String,
    group: Group,
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
        while let Some((ordered, synced)) = self.next() {
            self.last.jobs = ordered.len() + synced.len();
            let started = Instant::now();
            let kib: u32 = ordered.iter().chain(&synced).map(|(_, bytes)| kib(*bytes)).sum();
            self.commit(ordered, Durability::Ordered);
            self.commit(synced, Durability::Synced);
            self.waiting.memory.add_permits(kib as usize);
            self.last.took = started.elapsed();
        }
    }

    /// Waits for jobs, those that ask only for order apart; `None` once closed and empty.
    fn next(&self) -> Option<(Jobs, Jobs)> {
        let mut queue = self.wait(self.waiting.lock(), 1, None);
        if queue.len() == 0 {
            return None;
        }
        // Callers that were answered together come back together, but not at the same moment. Taking the first of them
        // alone would make the rest wait for a sync that could have been theirs; waiting costs a small part of that.
        queue = self.wait(queue, self.last.jobs, Some(self.last.took / PATIENCE));
        let mut room = GROUP_BYTES;
        let ordered = take_group(&mut queue.ordered, &mut room);
        Some((ordered, take_group(&mut queue.synced, &mut room)))
    }

    /// Sleeps until there are so many jobs, or none will come any more, or it takes too long.
    fn wait<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue>,
        jobs: usize,
        at_most: Option<Duration>,
    ) -> MutexGuard<'a, Queue> {
        queue.wake_at = jobs;
        let waits = |queue: &mut Queue| !queue.is_closed_or_has(jobs);
        let enough = &self.waiting.enough;
        match at_most {
            None => enough.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner),
            Some(at_most) => {
                let waited = enough.wait_timeout_while(queue, at_most, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Decides the jobs in order and writes them, as a rule in one group.
    fn commit(&mut self, mut jobs: Jobs, durability: Durability) {
        while !jobs.is_empty() {
            if let Some(because) = self.failed.clone() {
                let closed = CommitError::Closed { because };
                return jobs.into_iter().for_each(|(job, _)| job.answer(Err(&closed)));
            }
            jobs = self.commit_group(jobs, durability);
        }
    }

    /// Returns the jobs that there was no room for: what a write changes is known only once it is decided.
    fn commit_group(&mut self, mut jobs: Jobs, durability: Durability) -> Jobs {
        let mut decided = 0;
        // A panic in here is a bug; it must not leave callers waiting or half a group behind.
        let committed = catch_unwind(AssertUnwindSafe(|| {
            self.group.begin(self.shared.clock.unix_millis());
            while decided < jobs.len() && self.group.bytes() < GROUP_BYTES {
                decided += 1;
                jobs[decided - 1].0.decide(&mut self.group);
            }
            self.group.commit(&self.shared, durability)
        }));
        let later = jobs.split_off(decided);
        let failed = match committed {
            Ok(Ok(())) => None,
            // what the engine below says of all writes after one of its own threads could not write a file
            Ok(Err(fjall::Error::Poisoned)) => {
                Some(self.fail("writing a file in the background failed, as it does when the disk is full"))
            }
            Ok(Err(error)) => Some(self.fail(&error.to_string())),
            Err(_) => Some(self.fail("the committer panicked, see the log")),
        };
        for (job, _) in jobs {
            job.answer(failed.as_ref().map_or(Ok(()), Err));
        }
        later
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
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::time::SystemTime;

    use tokio::sync::oneshot;

    use super::super::{Clock, Engine, Options};
    use super::*;

    /// Much larger than it says, as an update of a large item is.
    struct Large {
        number: u8,
        shared: Arc<Shared>,
        /// Holds up the committer until it is let go.
        until: Option<mpsc::Receiver<()>>,
        group: u64,
        reply: oneshot::Sender<u64>,
    }

    const LARGE: usize = 1 << 20;

    impl Job for Large {
        fn bytes(&self) -> usize {
            100
        }

        fn decide(&mut self, group: &mut Group) {
            if let Some(until) = &self.until {
                until.recv().unwrap();
            }
            self.group = group.now;
            group.put(&self.shared.catalog_rows, vec![b'z', self.number], vec![self.number; LARGE]);
        }

        fn answer(self: Box<Self>, committed: Result<(), &CommitError>) {
            committed.unwrap();
            self.reply.send(self.group).unwrap();
        }
    }

    #[tokio::test]
    async fn a_group_is_closed_once_it_has_become_large() {
        let folder = tempfile::tempdir().unwrap();
        // every group has a time of its own
        let groups = AtomicU64::new(0);
        let clock = Clock::from_fn(move || {
            SystemTime::UNIX_EPOCH + Duration::from_millis(groups.fetch_add(1, Ordering::Relaxed))
        });
        let engine = Engine::open(folder.path(), Options { clock, ..Options::default() }).await.unwrap();
        let (go, until) = mpsc::sync_channel(1); // never full: one word is said
        let (mut until, mut answers) = (Some(until), Vec::new());
        for number in 0..100 {
            let (reply, answer) = oneshot::channel();
            let shared = Arc::clone(&engine.shared);
            engine
                .committer
                .submit(Box::new(Large { number, shared, until: until.take(), group: 0, reply }))
                .await;
            answers.push(answer);
        }
        go.send(()).unwrap();
        let mut groups = Vec::new();
        for answer in answers {
            groups.push(answer.await.unwrap());
        }
        assert!(groups.is_sorted(), "in order: {groups:?}");
        let sizes = groups.chunk_by(|a, b| a == b).map(<[u64]>::len);
        assert!(sizes.max() <= Some(GROUP_BYTES / LARGE), "{groups:?}");
    }
}
