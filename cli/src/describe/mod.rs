//! Stage kinds as pages: for `courant stages` and for the reference.
//!
//! Everything is made from a kind's [`StageSpec`], whose parameters document themselves, so a page cannot say
//! something else than the code.

mod fields;
mod markdown;
mod page;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use courant_pipeline::StageSpec;
use courant_pipeline::spec::{Effect, Gives, Role, Takes};

pub use markdown::reference;

const ROLES: [(Role, &str); 3] =
    [(Role::Source, "sources"), (Role::Transform, "transforms"), (Role::Sink, "sinks")];

/// Likeness from which a misspelt kind is taken for a known one.
const ALIKE: f64 = 0.7;

/// No kind of that name.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownKind {
    pub kind: String,
    pub alike: Option<&'static str>,
}

impl std::error::Error for UnknownKind {}

impl std::fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no stage kind `{}`", self.kind)?;
        match self.alike {
            Some(kind) => write!(f, "; did you mean `{kind}`?"),
            None => f.write_str("; `courant stages` lists them"),
        }
    }
}

/// Every kind with its summary, by role.
pub fn list(specs: &[&'static StageSpec]) -> String {
    let width = specs.iter().map(|spec| spec.kind.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for (heading, members) in by_role(specs) {
        let gap = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{gap}{heading}");
        for spec in members {
            let _ = writeln!(text, "  {:width$}  {}", spec.kind, spec.summary);
        }
    }
    text
}

/// All there is to say about a kind; two pages if it stands both first and elsewhere, as `file` does.
pub fn page(specs: &[&'static StageSpec], kind: &str) -> Result<String, UnknownKind> {
    let pages: Vec<String> =
        specs.iter().filter(|spec| spec.kind == kind).map(|spec| page::write(spec)).collect();
    if pages.is_empty() {
        return Err(UnknownKind { kind: kind.to_owned(), alike: alike(specs, kind) });
    }
    Ok(pages.join("\n\n"))
}

fn alike(specs: &[&'static StageSpec], kind: &str) -> Option<&'static str> {
    specs
        .iter()
        .map(|spec| (strsim::jaro_winkler(spec.kind, kind), spec.kind))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|(one, _), (two, _)| one.total_cmp(two))
        .map(|(_, kind)| kind)
}

/// Kinds under their role's heading, by name; roles without kinds are left out.
fn by_role(specs: &[&'static StageSpec]) -> Vec<(&'static str, Vec<&'static StageSpec>)> {
    let group = |role| {
        let mut members: Vec<_> = specs.iter().copied().filter(|spec| spec.role == role).collect();
        members.sort_by_key(|spec| spec.kind);
        members
    };
    ROLES
        .into_iter()
        .map(|(role, heading)| (heading, group(role)))
        .filter(|(_, members)| !members.is_empty())
        .collect()
}

fn takes(spec: &StageSpec) -> String {
    match spec.takes {
        Takes::Nothing => "nothing".to_owned(),
        Takes::Any => "any record".to_owned(),
        Takes::Only(kinds) => kinds.join(" or "),
    }
}

fn gives(spec: &StageSpec) -> &'static str {
    match spec.gives {
        Gives::Nothing => "nothing",
        Gives::Same => "what it took",
        Gives::Kind(kind) => kind,
    }
}

fn effect(spec: &StageSpec) -> String {
    let meaning = match spec.effect {
        Effect::Pure => "nothing outside the pipeline changes",
        Effect::IdempotentWrite => "running a record twice leaves the same state",
        Effect::ExternalEffect => "running a record twice is seen twice",
    };
    format!("{}: {meaning}", spec.effect.name())
}
