//! `courant verify`: what store and log hold, against what the design promises.
//!
//! Done here where the data can be reached: on servers, and in the folder of an embedded engine that nobody has open. The
//! process that has it open is asked otherwise.

mod progress;
mod text;

use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use courant_connectors::connections::{ConnectError, Connections, LogConnection, StoreConnection};
use courant_connectors::embedded::{Engine, OpenError};
use courant_connectors::log::Log;
use courant_connectors::store::Store;
use courant_edge::admin::{AdminClient, ClientError};
use courant_replay::verify::{Deployment, Ending, Options, Report, Severity, VerifyError, check};

use self::progress::ProgressLine;
use super::inventory::{self, check_is_there};
use super::{admin, say};
use crate::app::{VerifyUpdate, verify_here};
use crate::args::Verify;
use crate::exit::Exit;

pub(super) async fn run(file: &Path, arguments: Verify) -> anyhow::Result<()> {
    if let Some(format) = arguments.list {
        return say(&text::list(format)?);
    }
    let options = options(&arguments)?;
    let report = match open(&inventory::connections(file)?).await {
        Ok(opened) => {
            let progress = ProgressLine::new();
            let shown = progress.clone();
            let deployment = Deployment::new(&opened.store, &opened.log);
            let show = move |progress| shown.show(&progress);
            let report = verify_here(deployment, &*opened.log, options, show).await;
            progress.end();
            opened.close().await;
            report?
        }
        Err(error) if is_in_use(&error) => ask(&admin(file)?, &options, error).await?,
        Err(error) => return Err(error),
    };
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

struct Opened {
    store: Arc<dyn Store>,
    log: Arc<dyn Log>,
    engines: [Option<Arc<Engine>>; 2],
}

impl Opened {
    async fn close(self) {
        for engine in self.engines {
            inventory::close(engine).await;
        }
    }
}

/// Store and log as they are: nothing is made that is not there.
async fn open(connections: &Connections) -> anyhow::Result<Opened> {
    if let StoreConnection::Embedded(embedded) = &connections.store {
        check_is_there(embedded, "tables")?;
    }
    if let LogConnection::Embedded(embedded) = &connections.log {
        check_is_there(embedded, "topics")?;
    }
    let (store, engine) = connections.open_store().await?;
    // In one folder both are one engine, which cannot be opened twice.
    let shared = match (&connections.log, &engine) {
        (LogConnection::Embedded(embedded), Some(engine)) if engine.folder() == embedded.engine_folder() => {
            Some(Arc::clone(engine))
        }
        _ => None,
    };
    let (log, of_log) = match shared {
        Some(engine) => (engine as Arc<dyn Log>, None),
        None => match connections.open_log().await {
            Ok(opened) => opened,
            Err(error) => {
                inventory::close(engine).await;
                return Err(error.into());
            }
        },
    };
    Ok(Opened { store, log, engines: [engine, of_log] })
}

fn is_in_use(error: &anyhow::Error) -> bool {
    let connecting = error.downcast_ref::<ConnectError>();
    matches!(connecting, Some(ConnectError::Embedded(OpenError::InUse { .. })))
}

/// Lets the process do it that has the folder open.
async fn ask(admin: &AdminClient, options: &Options, in_use: anyhow::Error) -> anyhow::Result<Report> {
    let mut lines = match admin.verify(serde_json::to_value(options)?).await {
        // Somebody else has it, and it is no `courant run`.
        Err(ClientError::NotRunning { .. }) => return Err(in_use),
        lines => lines?,
    };
    let progress = ProgressLine::new();
    let report = loop {
        match lines.next().await? {
            Some(line) => match serde_json::from_value(line)? {
                VerifyUpdate::Progress(told) => progress.show(&told),
                VerifyUpdate::Report(report) => break report,
            },
            None => bail!("the running process ended the verification without a report"),
        }
    };
    progress.end();
    Ok(*report)
}
