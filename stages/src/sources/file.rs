//! `file` as a source: reads JSON lines, also while somebody writes them.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use courant_connectors::files::json_lines::{FileIdentity, Line, LineReader, Start};
use courant_pipeline::spec::{BuildContext, Built, JSON, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch};
use courant_pipeline::units::Size;
use courant_pipeline::{Payload, Record, Source, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;

use crate::host::file_error;
use crate::jq::{Expr, key_from};

pub static SPEC: StageSpec = StageSpec::source::<Config>("file", JSON)
    .summary("reads a file of JSON lines, once or as it grows")
    .example("[[pipeline.stage]]\nkind = \"file\"\nparams = { path = \"in.jsonl\", key = \".chat_id\", follow = true }\n");

/// Between two looks at a file that has no more: soon enough for people, rare enough to cost nothing.
const POLL: Duration = Duration::from_millis(250);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The file: one JSON document a line. Blank lines are left out. How far it was read is kept for this very file:
    /// if another one stands there when the pipeline starts, it is read from its start.
    pub path: PathBuf,
    /// The records' key, in jq on the line: text, a number or a truth value. Records have no key if left out,
    /// nor has a line on which the expression fails; such a line is for the next stage to refuse.
    #[serde(default)]
    pub key: Option<String>,
    /// Wait for more at the end instead of finishing. A file that is replaced (rotated) is finished before its
    /// successor is read; one that is cut is read from its start. A last line counts once its line feed is there.
    #[serde(default)]
    pub follow: bool,
    /// The longest line to expect. Of a longer one only the start is handed on, with the header `truncated: true`; as
    /// JSON it is cut in the middle, so the next stage that reads it refuses it.
    #[serde(default = "default_max_line")]
    pub max_line: Size,
}

fn default_max_line() -> Size {
    Size(1 << 20)
}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let key = self.key.map(|key| Expr::on_record("key", &key)).transpose()?;
        let max_line = usize::try_from(self.max_line.0).unwrap_or(usize::MAX);
        let at_end = if self.follow { AtEnd::Wait } else { AtEnd::Finish };
        Ok(Built::source(File {
            path: self.path,
            key,
            at_end,
            max_line,
            found: OnceLock::new(),
            reader: None,
        }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    Finish,
    Wait,
}

struct File {
    path: PathBuf,
    key: Option<Expr>,
    at_end: AtEnd,
    max_line: usize,
    /// What stood at the path when the runtime first asked, to see whether kept positions are good for it.
    found: OnceLock<Option<FileIdentity>>,
    /// There once opened.
    reader: Option<LineReader>,
}

#[async_trait]
impl Source for File {
    fn identity(&self) -> String {
        let file = match &self.reader {
            Some(reader) => Some(reader.identity()),
            // Asked once before opening, and by `courant plan`: a small read, which may as well block.
            None => *self.found.get_or_init(|| FileIdentity::at(&self.path)),
        };
        let path = self.path.display();
        file.map_or_else(|| format!("file:{path}"), |file| format!("file:{path}#{file}"))
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Runtime
    }

    async fn open(&mut self, resume: &Positions) -> Result<(), StageError> {
        let offset = resume.get(&Partition::only()).copied().unwrap_or(0);
        let start = Start { offset, file: self.found.get().copied().flatten() };
        let reader = LineReader::open(&self.path, start, self.max_line).await;
        self.reader = Some(reader.map_err(|error| file_error("read the file", error))?);
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let failed = |error| file_error("read the file", error);
        let reader = self.reader.as_mut().expect("the runtime opens a source before it reads");
        loop {
            let lines = reader.lines(max).await.map_err(failed)?;
            if !lines.is_empty() {
                return Ok(Read::Batch(to_batch(lines, self.key.as_ref())));
            }
            if self.at_end == AtEnd::Finish {
                // A file that is complete may well lack the last line feed.
                let last = reader.last_line();
                return Ok(
                    last.map_or(Read::End, |line| Read::Batch(to_batch(vec![line], self.key.as_ref())))
                );
            }
            if !reader.follow().await.map_err(failed)? {
                sleep(POLL).await;
            }
        }
    }
}

fn to_batch(lines: Vec<Line>, key: Option<&Expr>) -> ReadBatch {
    let mut batch = ReadBatch::new(Partition::only(), lines.len());
    for line in lines {
        let mut record = Record::new(Payload::Text(line.text));
        if let Some(expr) = key {
            let result = expr.first(&mut record);
            record.key = result.and_then(|result| key_from(result.as_ref())).unwrap_or_default();
        }
        if line.truncated {
            record.headers.set("truncated", "true");
        }
        batch.push(record, line.resume_at);
    }
    batch
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::{payloads, problem, read, source};
    use courant_pipeline::{Class, Key, Services};
    use serde_json::{Value, json};
    use tokio::time::timeout;

    async fn opened(path: &Path, mut params: Value, at: u64) -> Box<dyn Source> {
        params["path"] = json!(path);
        let mut source = source(&SPEC, params, &Services::default());
        source.open(&Positions::from([(Partition::only(), at)])).await.unwrap();
        source
    }

    fn append(path: &Path, text: &str) {
        use std::io::Write as _;
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[tokio::test]
    async fn a_file_is_read_to_its_last_byte_and_resumed_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        append(&path, "{\"n\":1}\nnot json\n{\"n\":3}");
        let mut source = opened(&path, json!({}), 0).await;
        let batch = read(&mut *source, 10).await.unwrap();
        assert_eq!(payloads(&batch), [r#"{"n":1}"#, "not json"]);
        assert_eq!(batch.resume_at(), [8, 17]);
        let last = read(&mut *source, 10).await.unwrap();
        assert_eq!((payloads(&last), last.resume_at()), (vec![r#"{"n":3}"#.to_owned()], &[24][..]));
        assert!(read(&mut *source, 10).await.is_none());
        assert_eq!(payloads(&read(&mut *opened(&path, json!({}), 8).await, 10).await.unwrap()), ["not json"]);
    }

    #[tokio::test]
    async fn keys_come_from_the_lines_that_have_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        append(&path, "{\"id\":\"a\"}\nnot json\n{\"id\":{}}\n{}\n");
        let mut source = opened(&path, json!({"key": ".id"}), 0).await;
        let batch = read(&mut *source, 10).await.unwrap();
        let keys: Vec<_> =
            batch.records().records().map(|record| record.key.as_ref().map(Key::as_str)).collect();
        assert_eq!(keys, [Some("a"), None, None, None]);
        assert_eq!(payloads(&batch)[1], "not json", "what cannot be read goes on as it is");
    }

    #[tokio::test(start_paused = true)]
    async fn following_waits_for_whole_lines_and_survives_being_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        append(&path, "1\n2");
        let mut source = opened(&path, json!({"follow": true}), 0).await;
        assert_eq!(payloads(&read(&mut *source, 10).await.unwrap()), ["1"]);
        assert!(timeout(Duration::from_secs(60), source.read(10)).await.is_err());
        append(&path, "2\n");
        assert_eq!(payloads(&read(&mut *source, 10).await.unwrap()), ["22"]);
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        append(&path, "3\n");
        let batch = read(&mut *source, 10).await.unwrap();
        assert_eq!((payloads(&batch), batch.resume_at()), (vec!["3".to_owned()], &[2][..]));
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_marked_and_passed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        append(&path, "{\"text\":\"too long\"}\n{}\n");
        let mut source = opened(&path, json!({"max_line": "8 B"}), 0).await;
        let batch = read(&mut *source, 10).await.unwrap();
        assert_eq!(
            (payloads(&batch), batch.resume_at()),
            (vec![r#"{"text":"#.into(), "{}".into()], &[20, 23][..])
        );
        let marks: Vec<_> = batch.records().records().map(|record| record.headers.get("truncated")).collect();
        assert_eq!(marks, [Some("true"), None]);
    }

    /// What the runtime does: positions are used if the identity is still the one they were saved with.
    async fn resumed(path: &Path, saved: &(String, u64)) -> Vec<String> {
        let mut source = source(&SPEC, json!({"path": path}), &Services::default());
        let at = if source.identity() == saved.0 { saved.1 } else { 0 };
        source.open(&Positions::from([(Partition::only(), at)])).await.unwrap();
        payloads(&read(&mut *source, 10).await.unwrap())
    }

    #[tokio::test]
    async fn a_file_rotated_while_nobody_read_is_read_from_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        append(&path, "1\n2\n3\n");
        let mut source = opened(&path, json!({}), 0).await;
        let batch = read(&mut *source, 2).await.unwrap();
        let saved = (source.identity(), batch.resume_at()[1]);
        append(&path, "4\n");
        assert_eq!(resumed(&path, &saved).await, ["3", "4"], "it has only grown");
        std::fs::rename(&path, folder.path().join("in.jsonl.1")).unwrap();
        append(&path, "5\n6\n7\n8\n");
        assert_eq!(resumed(&path, &saved).await, ["5", "6", "7", "8"]);
        std::fs::rename(folder.path().join("in.jsonl.1"), &path).unwrap();
        std::fs::write(&path, "8\n9\n10\n").unwrap();
        assert_eq!(resumed(&path, &saved).await, ["8", "9", "10"], "cut and written anew in place");
    }

    #[tokio::test]
    async fn a_file_rotated_between_asking_and_opening_is_read_from_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        append(&path, "1\n2\n");
        let mut source = source(&SPEC, json!({"path": path}), &Services::default());
        let _asked = source.identity();
        std::fs::rename(&path, folder.path().join("in.jsonl.1")).unwrap();
        append(&path, "3\n4\n");
        source.open(&Positions::from([(Partition::only(), 2)])).await.unwrap();
        assert_eq!(payloads(&read(&mut *source, 10).await.unwrap()), ["3", "4"]);
    }

    #[tokio::test]
    async fn errors_say_which_file_and_whether_waiting_helps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        let mut missing = source(&SPEC, json!({"path": path}), &Services::default());
        let error = missing.open(&Positions::new()).await.unwrap_err();
        assert_eq!(error.class, Class::Retry);
        assert!(error.to_string().contains("in.jsonl"), "{error}");
        assert_eq!(problem(&SPEC, json!({"path": "x", "key": "("})).key, "key");
    }
}
