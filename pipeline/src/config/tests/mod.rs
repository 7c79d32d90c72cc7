//! What a user sees: texts in, diagnostics out, with kinds made up for the purpose.

mod alternatives;
mod authority;
mod hostile;
mod kinds;
mod layers;
mod mistakes;
mod reload;
mod values;
mod wiring;

use super::{Diagnostics, Loaded};
use kinds::loader;

const NO_ENV: [(String, String); 0] = [];

fn env(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn load(text: &str) -> Result<Loaded, Diagnostics> {
    loader().load_str("pipelines.toml", text, NO_ENV)
}

/// The diagnostics of a text that must not load, as a user reads them.
fn refused(text: &str) -> String {
    match load(text) {
        Ok(_) => panic!("loaded"),
        Err(found) => found.to_string(),
    }
}

/// A text that must load.
fn loaded(text: &str) -> Loaded {
    load(text).unwrap_or_else(|found| panic!("{found}"))
}

/// `line:column message` of each diagnostic, for tests about places.
fn places(found: &Diagnostics) -> Vec<String> {
    found
        .iter()
        .map(|found| match &found.origin {
            super::Origin::File { line, column, .. } => format!("{line}:{column} {}", found.message),
            super::Origin::Env { variable } => format!("{variable} {}", found.message),
            super::Origin::Default => format!("default {}", found.message),
        })
        .collect()
}

/// [`places`] of a text that must not load.
fn refused_at(text: &str) -> Vec<String> {
    load(text).err().map(|found| places(&found)).unwrap_or_default()
}
