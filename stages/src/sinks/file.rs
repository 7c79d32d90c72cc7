//! `file` as a sink: appends records as JSON lines.

use std::path::PathBuf;
use std::sync::OnceLock;

use async_trait::async_trait;
use courant_connectors::files::json_lines::{self, LineAppender};
use courant_pipeline::spec::{BuildContext, Built, Effect, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::host::file_error;
use crate::lines;

pub static SPEC: StageSpec = StageSpec::sink::<Config>("file", Takes::Any)
    .effect(Effect::ExternalEffect)
    .summary("appends every record to a file, one JSON document a line")
    .example("[[pipeline.stage]]\nkind = \"file\"\nparams = { path = \"out/messages.jsonl\" }\n");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The file; it and its folders are created if they are missing. One that is moved away (rotated) is
    /// created anew.
    pub path: PathBuf,
    /// When a record counts as written.
    #[serde(default)]
    pub sync: Sync,
}

/// When a record counts as written.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// Once its batch is on disk: what is acknowledged survives a power cut.
    #[default]
    Batch,
    /// Once the system has it: faster, and a power cut may take the last seconds.
    None,
}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        if self.path.as_os_str().is_empty() {
            return Err(vec![Problem::new("path", "the path is empty")]);
        }
        let sync = match self.sync {
            Sync::Batch => json_lines::Sync::Data,
            Sync::None => json_lines::Sync::None,
        };
        Ok(Built::stage(File { path: self.path, sync, appender: OnceLock::new() }))
    }
}

struct File {
    path: PathBuf,
    sync: json_lines::Sync,
    /// There once opened.
    appender: OnceLock<LineAppender>,
}

#[async_trait]
impl Stage for File {
    async fn open(&self) -> Result<(), StageError> {
        let opened = LineAppender::open(&self.path).await;
        let appender = opened.map_err(|error| file_error("open the file", error))?;
        self.appender.get_or_init(|| appender);
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let appender = self.appender.get().expect("the runtime opens a stage before it gives it records");
        let lines = lines::one_each(batch.records());
        appender.append(lines, self.sync).await.map_err(|error| file_error("append to the file", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, problem, process, stage};
    use courant_pipeline::Class;
    use serde_json::json;

    #[tokio::test]
    async fn records_are_lines_in_order_whatever_they_hold() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/out.jsonl");
        for sync in ["batch", "none"] {
            let stage = stage(&SPEC, json!({"path": path, "sync": sync}));
            stage.open().await.unwrap();
            process(&*stage, batch(&["{\"a\":\n 1}", "not json"])).await;
            stage.close().await.unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"a\":  1}\nnot json\n".repeat(2));
    }

    #[tokio::test]
    async fn a_full_disk_is_worth_another_try() {
        let stage = stage(&SPEC, json!({"path": "/dev/full"}));
        stage.open().await.unwrap();
        let error = stage.process(&mut batch(&["1"])).await.unwrap_err();
        assert_eq!(error.class, Class::Retry);
        assert!(
            error.to_string().starts_with("append to the file: cannot write to /dev/full: No space"),
            "{error}"
        );
    }

    #[test]
    fn wrong_parameters_are_refused() {
        assert_eq!(problem(&SPEC, json!({"path": ""})).key, "path");
        assert!(problem(&SPEC, json!({"path": "x", "sync": "often"})).message.contains("often"));
    }
}
