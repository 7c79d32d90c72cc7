//! What `courant tables` and `courant topics` have in common: picking from the model, reporting, ending.

use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use courant_connectors::connections::{Connections, EmbeddedConnection};
use courant_connectors::embedded::{Engine, is_engine_folder};
use courant_connectors::model::drift::Difference;
use serde::Serialize;

use super::say;
use crate::exit::Exit;
use crate::settings;

pub(super) fn connections(file: &Path) -> anyhow::Result<Connections> {
    Ok(settings::load(file)?.section("connections"))
}

/// Looking makes nothing: the engine would create its folder.
pub(super) fn check_is_there(embedded: &EmbeddedConnection, command: &str) -> anyhow::Result<()> {
    if is_engine_folder(&embedded.engine_folder()) {
        return Ok(());
    }
    bail!("there is nothing in `{}` yet; `courant {command} create` makes it", embedded.path.display())
}

pub(super) async fn close(engine: Option<Arc<Engine>>) {
    if let Some(engine) = engine {
        engine.close().await;
    }
}

/// Fails unless every name is one of the model's.
pub(super) fn check_names<'a>(
    noun: &str,
    named: impl IntoIterator<Item = &'a String>,
    known: &[String],
) -> anyhow::Result<()> {
    match named.into_iter().find(|name| !known.contains(name)) {
        Some(unknown) => bail!("the model has no {noun} `{unknown}`; it has: {}", known.join(", ")),
        None => Ok(()),
    }
}

/// What became of one table or topic that was to be created.
pub(super) enum Outcome {
    Created {
        warnings: Vec<String>,
    },
    Exists,
    /// It was there, and this was off.
    Completed {
        turned_on: Vec<&'static str>,
        warnings: Vec<String>,
    },
}

pub(super) fn report_creation(name: &str, outcome: &Outcome) -> anyhow::Result<()> {
    let warnings = match outcome {
        Outcome::Exists => return say(&format!("exists   {name}")),
        Outcome::Created { warnings } => {
            say(&format!("created  {name}"))?;
            warnings
        }
        Outcome::Completed { turned_on, warnings } => {
            let turned_on: String = turned_on.iter().map(|what| format!("; turned on {what}")).collect();
            say(&format!("exists   {name}{turned_on}"))?;
            warnings
        }
    };
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    Ok(())
}

/// What comparing came to.
#[derive(Debug, Default, Serialize)]
pub(super) struct Findings {
    pub(super) differences: Vec<Difference>,
    /// What the server does not tell; no difference.
    pub(super) unknown: Vec<Unknown>,
}

#[derive(Debug, Serialize)]
pub(super) struct Unknown {
    pub(super) of: String,
    pub(super) attributes: Vec<&'static str>,
}

impl Findings {
    pub(super) fn add(&mut self, of: String, differences: Vec<Difference>, unknown: Option<&[&'static str]>) {
        self.differences.extend(differences);
        if let Some(attributes) = unknown.filter(|attributes| !attributes.is_empty()) {
            self.unknown.push(Unknown { of, attributes: attributes.to_vec() });
        }
    }

    /// Prints everything and ends accordingly. `compared` is how many there were, and of what.
    pub(super) fn report(&self, compared: &str, json: bool) -> anyhow::Result<()> {
        if json {
            say(&serde_json::to_string_pretty(self)?)?;
        } else {
            for difference in &self.differences {
                say(&difference.to_string())?;
            }
            for Unknown { of, attributes } in &self.unknown {
                say(&format!("{of}: not told, so not compared: {}", attributes.join(", ")))?;
            }
        }
        match self.differences.len() {
            0 if json => Ok(()),
            0 => say(&format!("{compared}, as in the model")),
            _ if json => Err(Exit::Drifted.into()),
            count => {
                let differences = if count == 1 { "difference" } else { "differences" };
                eprintln!("{compared}, {count} {differences}");
                Err(Exit::Drifted.into())
            }
        }
    }
}

/// `8 tables`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
