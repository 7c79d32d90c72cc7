//! `courant check`: everything that is wrong with a file, at once.

use std::path::Path;

use super::say;
use crate::args;
use crate::exit::Exit;
use crate::settings;

pub(super) fn run(file: &Path, options: &args::Check) -> anyhow::Result<()> {
    let (found, pipelines) = match settings::loader().load(file, settings::environment()) {
        Ok(loaded) => (loaded.warnings, Some(loaded.topologies.len())),
        Err(wrong) => (wrong, None),
    };
    if options.json {
        say(&serde_json::to_string_pretty(&found)?)?;
    } else {
        if !found.is_empty() {
            eprintln!("{}", found.render(settings::style()));
        }
        match pipelines {
            Some(1) => say(&format!("{}: 1 pipeline, in order", file.display()))?,
            Some(count) => say(&format!("{}: {count} pipelines, in order", file.display()))?,
            None => eprintln!("{}", settings::summary(found.errors(), found.warnings())),
        }
    }
    if pipelines.is_some() { Ok(()) } else { Err(Exit::BadConfiguration.into()) }
}
