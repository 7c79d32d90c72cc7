//! How the edge gets things changed: a command goes to the pipeline that serves it, and the answer comes back.
//!
//! Whatever goes wrong on the way is a refusal in the words of the protocol, so that sockets and HTTP requests tell
//! their clients the same. A command that takes too long is answered with `TIMEOUT` and goes on: it may still be carried
//! out, which is why everything that is asked twice must be recognizable as the same.

use std::time::Duration;

use crate::relay::Relay;
use courant_connectors::model::ConnectionId;
use courant_connectors::model::commands::{Answer, Code, Command, ORIGIN, Refusal, WEBSOCKET};
use courant_pipeline::intake::Intake;
use courant_pipeline::{Disposition, Json, Payload, Record, Reply};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Sends commands into the process's pipelines. Clones share the way in.
#[derive(Clone)]
pub struct Commands {
    intake: Intake,
    relay: Option<Relay>,
    timeout: Duration,
}

impl Commands {
    pub fn new(intake: Intake, timeout: Duration) -> Self {
        Self { intake, relay: None, timeout }
    }

    /// What no pipeline of this process serves goes to others.
    #[must_use]
    pub fn relayed_by(mut self, relay: Option<Relay>) -> Self {
        self.relay = relay;
        self
    }

    /// Has a command carried out through a door ([`WEBSOCKET`](courant_connectors::model::commands::WEBSOCKET) or
    /// [`REST`](courant_connectors::model::commands::REST)) and waits for its answer.
    pub async fn ask(&self, door: &'static str, command: Command, origin: Option<&ConnectionId>) -> Answer {
        let asked = async {
            match self.submit(door, command, origin).await {
                Ok(reply) => answer(reply.await),
                Err(refusal) => Answer::Refused(refusal),
            }
        };
        timeout(self.timeout, asked).await.unwrap_or_else(|_| Answer::Refused(took_too_long()))
    }

    /// Hands a command in; waits only while too many wait before it. [`answer`] makes sense of the reply.
    pub async fn submit(
        &self,
        door: &'static str,
        command: Command,
        origin: Option<&ConnectionId>,
    ) -> Result<oneshot::Receiver<Reply>, Refusal> {
        let (name, key) = (command.name(), command.key().to_owned());
        let mut record = Record::new(Payload::value(Json(command))).with_key(key);
        if let Some(connection) = origin {
            record.headers.set(ORIGIN, connection.as_str());
        }
        let way_in = self.way_in(door, name);
        if let Some(relay) = &self.relay
            && !self.intake.is_served(way_in, name)
        {
            return Ok(relay.send(door, name, record).await);
        }
        self.intake.send(way_in, name, record).await.map_err(|not_served| {
            Refusal::new(
                Code::Unavailable,
                format!("{not_served}; the server is starting or misses a pipeline"),
            )
        })
    }

    /// A command that no pipeline takes at this door goes through the one for sockets: the same pipeline then serves both,
    /// in larger batches.
    fn way_in(&self, door: &'static str, command: &str) -> &'static str {
        if self.intake.is_served(door, command) { door } else { WEBSOCKET }
    }

    /// How long a command may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }
}

pub fn took_too_long() -> Refusal {
    Refusal::new(Code::Timeout, "it took too long; it may still be done, so retry with the same ids")
}

/// What a reply means to the client.
pub fn answer(reply: Result<Reply, oneshot::error::RecvError>) -> Answer {
    let unavailable =
        || Answer::Refused(Refusal::new(Code::Unavailable, "the server cannot do this now; try again"));
    let Ok(reply) = reply else { return unavailable() };
    let told = reply.receipt.and_then(|receipt| receipt.decode::<Json<Answer>>().ok());
    match (told.map(|answer| answer.0.clone()), reply.disposition) {
        // Whatever else became of it, this is why.
        (Some(Answer::Refused(refusal)), _) => Answer::Refused(refusal),
        (Some(answer), Disposition::Delivered) => answer,
        (None, Disposition::Delivered) => Answer::Done,
        _ => unavailable(),
    }
}

#[cfg(test)]
mod tests {
    use courant_connectors::model::commands::{Ack, Beyond, REST};

    use super::*;

    fn ack() -> Command {
        Command::Ack(Ack {
            chat_id: "chat_1".into(),
            user_id: "user_1".into(),
            sequence: 1,
            beyond: Beyond::Refused,
        })
    }

    fn commands(intake: &Intake) -> Commands {
        Commands::new(intake.clone(), Duration::from_secs(5))
    }

    fn code(answer: &Answer) -> Option<Code> {
        match answer {
            Answer::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }

    /// Serves one command with this reply.
    async fn reply_with(disposition: Disposition, receipt: Option<Answer>) -> Answer {
        let intake = Intake::default();
        let mut requests = intake.serve(WEBSOCKET, &["ack".to_owned()]).await.unwrap();
        let serve = async {
            let request = requests.next(1).await.pop().unwrap();
            assert_eq!(request.record.headers.get(ORIGIN), Some("conn_1"));
            let receipt = receipt.map(|answer| Box::new(Payload::value(Json(answer))));
            request.reply.send(Reply { disposition, reason: None, receipt }).unwrap();
        };
        let commands = commands(&intake);
        let connection = ConnectionId::from("conn_1");
        tokio::join!(commands.ask(WEBSOCKET, ack(), Some(&connection)), serve).0
    }

    #[tokio::test]
    async fn the_end_of_the_record_is_the_answer() {
        assert_eq!(reply_with(Disposition::Delivered, None).await, Answer::Done);
        let refused = Answer::Refused(Refusal::new(Code::NotAMember, "no"));
        assert_eq!(reply_with(Disposition::Dropped, Some(refused.clone())).await, refused);
        for lost in [Disposition::Dropped, Disposition::DeadLettered, Disposition::Failed] {
            let answer = reply_with(lost, Some(Answer::Done)).await;
            assert_eq!(code(&answer), Some(Code::Unavailable), "{lost:?}: done was not reached");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_pipeline_can_serve_both_doors() {
        let intake = Intake::default();
        let mut sockets = intake.serve(WEBSOCKET, &["ack".to_owned()]).await.unwrap();
        let commands = commands(&intake);
        let _reply = commands.submit(REST, ack(), None).await.unwrap();
        assert_eq!(sockets.next(9).await.len(), 1);
        let mut requests = intake.serve(REST, &["ack".to_owned()]).await.unwrap();
        let _reply = commands.submit(REST, ack(), None).await.unwrap();
        assert_eq!(requests.next(9).await.len(), 1, "its own pipeline comes first");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let intake = Intake::default();
        let unserved = commands(&intake).ask(WEBSOCKET, ack(), None).await;
        assert_eq!(code(&unserved), Some(Code::Unavailable));
        let _never_read = intake.serve(WEBSOCKET, &["ack".to_owned()]).await.unwrap();
        let late = commands(&intake).ask(WEBSOCKET, ack(), None).await;
        assert_eq!(code(&late), Some(Code::Timeout));
    }
}
