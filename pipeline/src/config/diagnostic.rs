//! What is wrong with a configuration, and where exactly.
//!
//! A [`Diagnostic`] names the place (a position in a file, an environment variable, a built-in default), the
//! key path and, where one is known, the way out. Loading collects all of them and sorts them by place, so
//! that one run of `courant check` shows everything; stopping at the first would make the user pay a run per
//! mistake. They are data: text and colours come from `render`, editors take the JSON form.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::render;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is loaded.
    Error,
    /// It works, and probably not as meant.
    Warning,
}

impl Severity {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "lowercase")]
pub enum Origin {
    File {
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
        snippet: Snippet,
    },
    Env {
        variable: String,
    },
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column, .. } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Env { variable } => write!(f, "environment variable {variable}"),
            Self::Default => f.write_str("built-in defaults"),
        }
    }
}

/// A name that is not UTF-8 must not cost the whole report.
fn lossy<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// The line a diagnostic is about, cut to a readable length and without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Snippet {
    pub text: String,
    /// Characters of `text` before the marked part.
    pub start: usize,
    /// Characters of the marked part.
    pub width: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub severity: Severity,
    pub origin: Origin,
    /// `pipeline.ingest.stage[2].params.topic`; empty if it is about a file as a whole.
    pub path: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render::render(self, render::Style::Plain))
    }
}

/// Everything found in one load, by place.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn errors(&self) -> usize {
        self.iter().filter(|found| found.severity == Severity::Error).count()
    }

    pub fn warnings(&self) -> usize {
        self.0.len() - self.errors()
    }

    /// All of them as rustc would print them, a blank line between two.
    pub fn render(&self, style: render::Style) -> String {
        let all: Vec<_> = self.iter().map(|found| render::render(found, style)).collect();
        all.join("\n")
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(render::Style::Plain))
    }
}

impl std::error::Error for Diagnostics {}
