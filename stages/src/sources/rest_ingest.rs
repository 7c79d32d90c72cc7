//! `rest-ingest`: commands that clients send over HTTP.

use courant_connectors::model::commands::REST;
use courant_pipeline::spec::{BuildContext, Built, Problem, StageConfig, StageSpec};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::commands::{self, COMMAND};

pub static SPEC: StageSpec = StageSpec::source::<Config>("rest-ingest", COMMAND)
    .summary("takes the commands that clients send over REST; the end of the pipeline is their answer")
    .example("[[pipeline.stage]]\nkind = \"rest-ingest\"\nparams = { commands = [\"create_chat\", \"rename_chat\"] }\n");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The commands that this pipeline carries out: `create_chat`, `send_message`, … Each belongs to one pipeline.
    pub commands: Vec<String>,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        commands::build(REST, self.commands, context)
    }
}
