//! `stdout`: prints records, one JSON document a line.

use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use courant_pipeline::spec::{BuildContext, Built, Effect, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::lines;

pub static SPEC: StageSpec = StageSpec::sink::<Config>("stdout", Takes::Any)
    .effect(Effect::ExternalEffect)
    .summary("prints every record to standard output, one JSON document a line")
    .example("[[pipeline.stage]]\nkind = \"stdout\"\nparams = { pretty = true }\n");

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Spread each document over several lines, indented, for people to read.
    pub pretty: bool,
}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let form = if self.pretty { Form::Pretty } else { Form::Line };
        Ok(Built::stage(Stdout { form, out: Arc::new(Mutex::new(Box::new(io::stdout()))) }))
    }
}

#[derive(Clone, Copy)]
enum Form {
    Line,
    Pretty,
}

struct Stdout {
    form: Form,
    /// Lanes take turns, a batch each. Held on blocking threads only: a slow reader of the pipe blocks writes.
    out: Arc<Mutex<Box<dyn Write + Send>>>,
}

#[async_trait]
impl Stage for Stdout {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let text = match self.form {
            Form::Line => lines::one_each(batch.records()),
            Form::Pretty => lines::pretty(batch.records()),
        };
        let out = Arc::clone(&self.out);
        let printed = tokio::task::spawn_blocking(move || {
            let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
            out.write_all(&text).and_then(|()| out.flush())
        });
        match printed.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind() == ErrorKind::BrokenPipe => {
                Err(StageError::fatal("print to standard output", "nobody reads it any more"))
            }
            Ok(Err(error)) => Err(StageError::retry("print to standard output", error)),
            Err(stopped) => Err(StageError::retry("print to standard output", stopped)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch;
    use courant_pipeline::Class;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    async fn printed(form: Form) -> String {
        let screen = Screen::default();
        let stage = Stdout { form, out: Arc::new(Mutex::new(Box::new(screen.clone()))) };
        stage.process(&mut batch(&["{\"a\":\n1}", "not json"])).await.unwrap();
        let text = screen.0.lock().unwrap();
        String::from_utf8(text.clone()).unwrap()
    }

    #[tokio::test]
    async fn a_record_is_a_line_unless_it_is_pretty() {
        assert_eq!(printed(Form::Line).await, "{\"a\": 1}\nnot json\n");
        assert_eq!(printed(Form::Pretty).await, "{\n  \"a\": 1\n}\nnot json\n");
    }

    #[tokio::test]
    async fn a_closed_pipe_stops_the_pipeline() {
        let stage = Stdout { form: Form::Line, out: Arc::new(Mutex::new(Box::new(Closed))) };
        let error = stage.process(&mut batch(&["1"])).await.unwrap_err();
        assert_eq!(error.class, Class::Fatal);
        assert!(error.to_string().contains("nobody reads it"), "{error}");
    }
}
