//! How commands of clients come in and are answered: what the ingest sources and the stages behind them share.

mod carry_out;

use std::sync::Arc;

use async_trait::async_trait;
use courant_connectors::model::commands::{Answer, Command, Refusal};
use courant_pipeline::intake::{Intake, Requests};
use courant_pipeline::spec::{BuildContext, Built, Problem, RecordKind};
use courant_pipeline::stage::{Partition, Positions, Read, ReadBatch};
use courant_pipeline::{Json, Payload, Record, Slot, Source, StageError};

pub use carry_out::{Carried, DECISIONS, Outcome, Unable, carry_out, keeps_changing, was_done};

/// What a client asks for, as the edge hands it on.
pub const COMMAND: RecordKind = "command";
/// What happened, as the log has it.
pub const EVENT: RecordKind = "event";
/// A frame and whom it is for.
pub const DELIVERY: RecordKind = "delivery";

/// Builds the source that serves commands at a door.
pub(crate) fn build(
    door: &'static str,
    commands: Vec<String>,
    context: &BuildContext<'_>,
) -> Result<Built, Vec<Problem>> {
    let mut problems = Vec::new();
    if commands.is_empty() {
        problems.push(
            Problem::new("commands", "there is no command to serve")
                .help(format!("name some of: {}", Command::NAMES.join(", "))),
        );
    }
    for (index, command) in commands.iter().enumerate() {
        if !Command::NAMES.contains(&command.as_str()) {
            problems.push(
                Problem::new(format!("commands.{index}"), format!("there is no command `{command}`"))
                    .help(format!("there are: {}", Command::NAMES.join(", "))),
            );
        } else if commands[..index].contains(command) {
            problems.push(Problem::new(format!("commands.{index}"), format!("`{command}` is there twice")));
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let intake = context.services.get::<Intake>();
    let served = commands.clone();
    Ok(Built::source(Ingest { door, commands, intake, requests: None }).serves(door, &served))
}

/// Reads what clients ask for; the end of the pipeline is the client's answer.
struct Ingest {
    door: &'static str,
    commands: Vec<String>,
    intake: Option<Arc<Intake>>,
    requests: Option<Requests>,
}

#[async_trait]
impl Source for Ingest {
    fn identity(&self) -> String {
        format!("{}:{}", self.door, self.commands.join(","))
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        let Some(intake) = &self.intake else {
            return Err(StageError::fatal("take commands", "this process was started without an edge"));
        };
        let served = intake.serve(self.door, &self.commands).await;
        self.requests = Some(served.map_err(|taken| StageError::fatal("take commands", taken))?);
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let Some(requests) = &mut self.requests else {
            return Err(StageError::fatal("take commands", "the source is not open"));
        };
        let requests = requests.next(max).await;
        let mut batch = ReadBatch::new(Partition::only(), requests.len());
        for request in requests {
            batch.push_request(request.record, request.reply);
        }
        Ok(Read::Batch(batch))
    }

    fn lag(&self) -> Option<u64> {
        self.requests.as_ref().map(|requests| requests.waiting() as u64)
    }

    async fn close(&mut self) -> Result<(), StageError> {
        self.requests = None;
        Ok(())
    }
}

/// A command as a record.
pub fn record(command: Command) -> Record {
    let key = command.key().to_owned();
    Record::new(Payload::value(Json(command))).with_key(key)
}

/// The command that a record holds.
pub fn command(record: &Record) -> Result<Arc<Json<Command>>, StageError> {
    record.payload.decode::<Json<Command>>().map_err(|error| StageError::reject("read the command", error))
}

/// Tells the client that its command was carried out; the record goes on.
pub fn answer(record: &mut Record, answer: Answer) {
    record.receipt = Some(Box::new(Payload::value(Json(answer))));
}

/// Ends a command that may not be carried out, and tells the client why.
pub fn refuse(slot: &mut Slot, refusal: Refusal) {
    let reason = refusal.code.reason();
    answer(slot.record_mut(), Answer::Refused(refusal));
    slot.drop_as(reason);
}
