//! `courant verify`: what store and log hold, against what the design promises.

mod text;

use std::path::Path;

use anyhow::bail;
use courant_replay::verify::{Ending, Options, Report, Severity, VerifyError, check};

pub(super) use self::text::{counted, figures, findings, grouped};
use super::{reach, say};
use crate::app::Job;
use crate::args::Verify;
use crate::exit::Exit;

pub(super) async fn run(file: &Path, arguments: Verify) -> anyhow::Result<()> {
    if let Some(format) = arguments.list {
        return say(&text::list(format)?);
    }
    let report: Report = reach::work(file, Job::Verify(options(&arguments)?)).await?;
    say(&if arguments.json { serde_json::to_string_pretty(&report)? } else { text::report(&report) })?;
    end(&report, arguments.strict)
}

fn options(arguments: &Verify) -> anyhow::Result<Options> {
    if let Some(unknown) = arguments.only.iter().find(|id| check(id).is_none()) {
        return Err(VerifyError::UnknownCheck { unknown: unknown.clone() }.into());
    }
    Ok(Options {
        only: arguments.only.clone(),
        chats: arguments.chats.iter().map(|chat| chat.as_str().into()).collect(),
        grace: arguments.grace.0,
        watch: arguments.watch.map(|watch| watch.0),
        events_since: arguments.events_since,
        examples: arguments.examples,
        parallel: arguments.parallel,
        ..Options::default()
    })
}

fn end(report: &Report, strict: bool) -> anyhow::Result<()> {
    let warnings = if strict { report.found(Severity::Warning) } else { 0 };
    if report.found(Severity::Error) + warnings > 0 {
        return Err(Exit::Violated.into());
    }
    if report.ending == Ending::Stopped {
        bail!("stopped before everything was looked at");
    }
    Ok(())
}
