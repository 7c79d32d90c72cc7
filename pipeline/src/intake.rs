//! Where requests from outside enter pipelines.
//!
//! Somebody outside, such as the edge, sends a request through a *door* and under a *command*; a source that serves
//! that command there reads it as a record, and the record's end is the answer. The queue between them stays while
//! a pipeline is restarted, so that a reload makes requests wait and does not fail them.
//!
//! Rejected: a channel per connection of a client. Requests of many clients in one queue are what makes batches.

use std::sync::{Arc, PoisonError, RwLock};

use rustc_hash::FxHashMap;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot};

use crate::ack::{Reply, ReplyTo};
use crate::record::Record;

/// Requests that may wait for one source. Full: whoever sends waits, and stops reading from its own client.
const WAITING_REQUESTS: usize = 8192;

/// The requests of one process, by door and command. Clones share them.
#[derive(Clone, Default)]
pub struct Intake(Arc<RwLock<Doors>>);

type Doors = FxHashMap<&'static str, FxHashMap<Box<str>, Arc<Queue>>>;

/// A record that somebody waits for.
#[derive(Debug)]
pub struct Request {
    pub record: Record,
    pub reply: ReplyTo,
}

/// A command at a door: it belongs to one source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WayIn {
    pub door: &'static str,
    pub command: String,
}

struct Queue {
    /// What the source serves, to recognize it when it comes back.
    commands: Vec<String>,
    sender: mpsc::Sender<Request>,
    receiver: Arc<Mutex<mpsc::Receiver<Request>>>,
}

/// No pipeline of this process serves the command there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no pipeline takes '{command}' from '{door}'")]
pub struct NotServed {
    pub door: &'static str,
    pub command: String,
}

/// Another source serves the command already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("another pipeline serves '{command}' from '{door}'; a command has one way in")]
pub struct Taken {
    pub door: &'static str,
    pub command: String,
}

impl Intake {
    /// Sends a request in; waits while the queue is full. The answer comes when the record has ended; an error instead
    /// of one means that it was given up unread, as when its pipeline is removed.
    pub async fn send(
        &self,
        door: &'static str,
        command: &str,
        record: Record,
    ) -> Result<oneshot::Receiver<Reply>, NotServed> {
        let not_served = || NotServed { door, command: command.to_owned() };
        let sender = self.sender(door, command).ok_or_else(not_served)?;
        let (reply, answer) = oneshot::channel();
        sender.send(Request { record, reply }).await.map_err(|_| not_served())?;
        Ok(answer)
    }

    /// Whether some pipeline serves the command, or is about to again.
    pub fn is_served(&self, door: &'static str, command: &str) -> bool {
        self.sender(door, command).is_some()
    }

    fn sender(&self, door: &str, command: &str) -> Option<mpsc::Sender<Request>> {
        let doors = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(doors.get(door)?.get(command)?.sender.clone())
    }

    /// Serves commands at a door. The same commands as before are the same queue, with what waits in it: a source that
    /// is restarted waits here until its predecessor has let go. A command whose source is gone can be taken over.
    pub async fn serve(&self, door: &'static str, commands: &[String]) -> Result<Requests, Taken> {
        let queue = self.queue(door, commands)?;
        Ok(Requests(Arc::clone(&queue.receiver).lock_owned().await))
    }

    /// Gives up every other command, and tells those who wait for one: what nobody will come back for would be waited for
    /// in vain.
    pub(crate) fn keep_only(&self, served: &[WayIn]) {
        let mut doors = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for (door, routes) in doors.iter_mut() {
            let is_served =
                |command: &str| served.iter().any(|way| way.door == *door && way.command == command);
            routes.retain(|command, _| is_served(command));
        }
    }

    fn queue(&self, door: &'static str, commands: &[String]) -> Result<Arc<Queue>, Taken> {
        let mut doors = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let routes = doors.entry(door).or_default();
        let mut wanted = commands.to_vec();
        wanted.sort();
        if let Some(queue) = wanted.first().and_then(|first| routes.get(first.as_str()))
            && queue.commands == wanted
        {
            return Ok(Arc::clone(queue));
        }
        let in_use = |queue: &Arc<Queue>| queue.receiver.try_lock().is_err();
        if let Some(command) = wanted.iter().find(|command| routes.get(command.as_str()).is_some_and(in_use))
        {
            return Err(Taken { door, command: command.clone() });
        }
        // What is in the way belonged to a source that is gone; its requests are given up, all of them.
        routes.retain(|_, queue| !queue.commands.iter().any(|command| wanted.contains(command)));
        let (sender, receiver) = mpsc::channel(WAITING_REQUESTS); // full: the sender waits
        let receiver = Arc::new(Mutex::new(receiver));
        let queue = Arc::new(Queue { commands: wanted, sender, receiver });
        for command in &queue.commands {
            routes.insert(command.as_str().into(), Arc::clone(&queue));
        }
        Ok(queue)
    }
}

/// The reading end, held by one source at a time.
pub struct Requests(OwnedMutexGuard<mpsc::Receiver<Request>>);

impl Requests {
    /// Waits for requests; at most `max`, at least one. Cancel-safe.
    pub async fn next(&mut self, max: usize) -> Vec<Request> {
        let mut requests = Vec::new();
        if self.0.recv_many(&mut requests, max).await == 0 {
            // The queue itself holds a sender, so this is a queue that was replaced: nobody will ever send here.
            std::future::pending::<()>().await;
        }
        requests
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ack::Disposition;
    use crate::payload::Payload;

    fn record(text: &'static str) -> Record {
        Record::new(Payload::from_static(text))
    }

    fn names(commands: &[&str]) -> Vec<String> {
        commands.iter().map(|&command| command.to_owned()).collect()
    }

    #[tokio::test]
    async fn a_request_is_answered_by_whoever_serves_its_command() {
        let intake = Intake::default();
        let refused = intake.send("ws", "send", record("1")).await.unwrap_err();
        assert_eq!(refused.to_string(), "no pipeline takes 'send' from 'ws'");
        let mut requests = intake.serve("ws", &names(&["send", "ack"])).await.unwrap();
        assert!(!intake.is_served("rest", "send"), "each door has its own");
        let answer = intake.send("ws", "ack", record("2")).await.unwrap();
        let request = requests.next(10).await.pop().unwrap();
        assert_eq!(&request.record.payload.to_json()[..], b"2");
        let reply = Reply { disposition: Disposition::Delivered, reason: None, receipt: None };
        request.reply.send(reply).unwrap();
        assert_eq!(answer.await.unwrap().disposition, Disposition::Delivered);
    }

    #[tokio::test]
    async fn what_waits_is_kept_for_the_next_of_the_same_kind() {
        let intake = Intake::default();
        let first = intake.serve("ws", &names(&["a", "b"])).await.unwrap();
        let _answer = intake.send("ws", "a", record("1")).await.unwrap();
        drop(first);
        let _answer = intake.send("ws", "b", record("2")).await.unwrap();
        let mut second = intake.serve("ws", &names(&["b", "a"])).await.unwrap();
        assert_eq!(second.next(10).await.len(), 2);
    }

    #[tokio::test]
    async fn a_command_has_one_way_in() {
        let intake = Intake::default();
        let first = intake.serve("ws", &names(&["a", "b"])).await.unwrap();
        let taken = intake.serve("ws", &names(&["b", "c"])).await.err().expect("taken");
        assert_eq!(taken.command, "b");
        drop(first);
        let waiting = intake.send("ws", "a", record("1")).await.unwrap();
        let _second = intake.serve("ws", &names(&["a"])).await.unwrap();
        assert!(waiting.await.is_err(), "given up with the queue that nobody serves");
    }

    #[tokio::test]
    async fn what_nobody_comes_back_for_is_given_up() {
        let intake = Intake::default();
        let served = intake.serve("ws", &names(&["a"])).await.unwrap();
        for command in ["a", "b"] {
            drop(intake.serve("rest", &names(&[command])).await.unwrap());
        }
        let waiting = intake.send("rest", "a", record("1")).await.unwrap();
        let kept = |door, command: &str| WayIn { door, command: command.to_owned() };
        intake.keep_only(&[kept("ws", "a"), kept("rest", "b")]);
        assert!(waiting.await.is_err(), "whoever waits is told");
        assert!(!intake.is_served("rest", "a"));
        assert!(intake.is_served("rest", "b") && intake.is_served("ws", "a"));
        drop(served);
    }
}
