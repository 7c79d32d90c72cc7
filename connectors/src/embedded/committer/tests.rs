use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::SystemTime;

use fjall::Readable as _;
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

/// Puts a row, and tells when it has decided and when it is answered.
struct Telling {
    number: u8,
    durability: Durability,
    shared: Arc<Shared>,
    told: mpsc::SyncSender<Told>,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Decided(u8),
    Answered(u8),
}

impl Job for Telling {
    fn bytes(&self) -> usize {
        100
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn decide(&mut self, group: &mut Group) {
        group.put(&self.shared.catalog_rows, vec![b'z', self.number], [1]);
        self.told.send(Told::Decided(self.number)).unwrap();
    }

    fn answer(self: Box<Self>, committed: Result<(), &CommitError>) {
        committed.unwrap();
        let seen = self.shared.moment().get(&self.shared.catalog_rows, [b'z', self.number]).unwrap();
        assert!(seen.is_some(), "who is answered can read what was written");
        self.told.send(Told::Answered(self.number)).unwrap();
    }
}

/// While jobs are still arriving, the first of them are written; readers see them, and callers are answered, with the
/// rest. One that asks only for order would show them, so it comes after.
#[tokio::test]
async fn a_group_is_written_in_portions_and_shown_as_a_whole() {
    const FIRST: u8 = 8;
    const ALL: u8 = 32;
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
    let shared = Arc::clone(&engine.shared);
    let runway = Runway::new(folder.path(), shared.database.clone());
    let mut worker = Worker::new(Arc::clone(&shared), runway, "the folder".to_owned());
    let an_hour = Duration::from_secs(60 * 60);
    worker.last = LastGroup { jobs: usize::from(ALL), has_ordered: false, took: an_hour };
    let (told, tells) = mpsc::sync_channel(2 * usize::from(ALL)); // each job says two words
    let committer = Committer { waiting: Arc::clone(&worker.waiting), thread: Mutex::default() };
    let submit = async |numbers: std::ops::Range<u8>, durability| {
        for number in numbers {
            let (shared, told) = (Arc::clone(&shared), told.clone());
            committer.submit(Box::new(Telling { number, durability, shared, told })).await;
        }
    };
    let gathering = std::thread::spawn(move || {
        let gathered = worker.gather().unwrap();
        (worker, gathered)
    });

    submit(0..FIRST, Durability::Synced).await;
    for number in 0..FIRST {
        assert_eq!(tells.recv_timeout(an_hour), Ok(Told::Decided(number)), "nobody else has come yet");
    }
    submit(FIRST..ALL - 1, Durability::Synced).await;
    submit(ALL - 1..ALL, Durability::Ordered).await;
    let (mut worker, gathered) = gathering.join().unwrap();
    let written = u8::try_from(gathered.written.len()).unwrap();
    assert!(written >= FIRST && gathered.ordered.len() == 1);
    for number in 0..ALL {
        let key = [b'z', number];
        assert_eq!(shared.catalog_rows.contains_key(key).unwrap(), number < written, "{number} is written");
        assert!(shared.moment().get(&shared.catalog_rows, key).unwrap().is_none(), "and not seen");
    }

    worker.finish(gathered);
    let told: Vec<Told> = tells.try_iter().collect();
    let answered: Vec<&Told> = told.iter().filter(|told| matches!(told, Told::Answered(_))).collect();
    let in_order: Vec<Told> = (0..ALL).map(Told::Answered).collect();
    assert_eq!(answered, in_order.iter().collect::<Vec<_>>());
    let last = [Told::Decided(ALL - 1), Told::Answered(ALL - 1)];
    assert!(told.ends_with(&last), "what asks for order was decided when the others were on disk");
    assert!(engine.check(|_| ()).await.is_ok());
}
