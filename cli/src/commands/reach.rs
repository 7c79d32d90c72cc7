//! Work on store and log from wherever they can be reached.
//!
//! Done here on servers, and in the folder of an embedded engine that nobody has open. The process that has it open is
//! asked otherwise. Nothing is made that is not there.

use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use courant_connectors::connections::{ConnectError, Connections, LogConnection, StoreConnection};
use courant_connectors::embedded::{Engine, OpenError};
use courant_connectors::log::Log;
use courant_connectors::store::Store;
use courant_edge::admin::{AdminClient, ClientError};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::admin;
use super::inventory::{self, check_is_there};
use super::progress::ProgressLine;
use crate::app::{Job, JobUpdate, job_here};

/// Does a job, and shows how far it is. The report is the job's.
pub(super) async fn work<R: DeserializeOwned>(file: &Path, job: Job) -> anyhow::Result<R> {
    let report = match open(&inventory::connections(file)?).await {
        Ok(Opened { store, log, engines }) => {
            let progress = ProgressLine::new();
            let shown = progress.clone();
            let report = job_here(job, store, log, move |progress| shown.show(&progress)).await;
            progress.end();
            for engine in engines {
                inventory::close(engine).await;
            }
            report?
        }
        Err(error) if is_in_use(&error) => ask(&admin(file)?, &job, error).await?,
        Err(error) => return Err(error),
    };
    Ok(serde_json::from_value(report)?)
}

struct Opened {
    store: Arc<dyn Store>,
    log: Arc<dyn Log>,
    engines: [Option<Arc<Engine>>; 2],
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
async fn ask(admin: &AdminClient, job: &Job, in_use: anyhow::Error) -> anyhow::Result<Value> {
    let mut lines = match admin.job(serde_json::to_value(job)?).await {
        // Somebody else has it, and it is no `courant run`.
        Err(ClientError::NotRunning { .. }) => return Err(in_use),
        lines => lines?,
    };
    let progress = ProgressLine::new();
    let report = loop {
        match lines.next().await? {
            Some(line) => match serde_json::from_value(line)? {
                JobUpdate::Progress(told) => progress.show(&told),
                JobUpdate::Report(report) => break report,
            },
            None => bail!("the running process ended the work without a report"),
        }
    };
    progress.end();
    Ok(report)
}
