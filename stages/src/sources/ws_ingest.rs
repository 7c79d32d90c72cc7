//! `ws-ingest`: commands that clients send over their sockets.

use courant_connectors::model::commands::WEBSOCKET;
use courant_pipeline::spec::{BuildContext, Built, Problem, StageConfig, StageSpec};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::commands::{self, COMMAND};

pub static SPEC: StageSpec = StageSpec::source::<Config>("ws-ingest", COMMAND)
    .summary("takes the commands that clients send over WebSocket; the end of the pipeline is their answer")
    .example("[[pipeline.stage]]\nkind = \"ws-ingest\"\nparams = { commands = [\"send_message\"] }\n");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The commands that this pipeline carries out: `send_message`, `ack`. Each belongs to one pipeline.
    pub commands: Vec<String>,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        commands::build(WEBSOCKET, self.commands, context)
    }
}

#[cfg(test)]
mod tests {
    use courant_connectors::model::commands::{Ack, Answer, Beyond, Command};
    use courant_pipeline::intake::Intake;
    use courant_pipeline::stage::{Positions, Read};
    use courant_pipeline::{Disposition, Json, Reply, Services};
    use serde_json::json;
    use std::sync::Arc;

    use super::*;
    use crate::testing::{problem, source};

    #[tokio::test]
    async fn commands_become_records_that_their_client_waits_for() {
        let intake = Intake::default();
        let services = Services::default().with(Arc::new(intake.clone()));
        let mut source = source(&SPEC, json!({"commands": ["ack"]}), &services);
        source.open(&Positions::new()).await.unwrap();
        let ack = Command::Ack(Ack {
            chat_id: "chat_1".into(),
            user_id: "user_1".into(),
            sequence: 7,
            beyond: Beyond::Refused,
        });
        let _answer = intake.send(WEBSOCKET, ack.name(), commands::record(ack.clone())).await.unwrap();
        let Read::Batch(batch) = source.read(10).await.unwrap() else { panic!("no batch") };
        let record = batch.records().records().next().unwrap();
        assert_eq!(commands::command(record).unwrap().0, ack);
        assert_eq!(record.key.as_ref().unwrap().as_str(), "chat_1");
    }

    #[test]
    fn a_command_that_does_not_exist_is_named() {
        let problem = problem(&SPEC, json!({"commands": ["send_mesage"]}));
        assert!(problem.message.contains("send_mesage") && problem.help.unwrap().contains("send_message"));
        assert_eq!(self::problem(&SPEC, json!({"commands": []})).key, "commands");
    }

    /// What a stage attaches is what the client's side reads.
    #[test]
    fn receipts_are_answers() {
        let mut record = commands::record(Command::Ack(Ack {
            chat_id: "chat_1".into(),
            user_id: "user_1".into(),
            sequence: 7,
            beyond: Beyond::Refused,
        }));
        commands::answer(&mut record, Answer::Done);
        let reply =
            Reply { disposition: Disposition::Delivered, reason: None, receipt: record.receipt.take() };
        assert_eq!(reply.receipt.unwrap().decode::<Json<Answer>>().unwrap().0, Answer::Done);
    }
}
