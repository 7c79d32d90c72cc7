//! Collects what is found while a configuration is checked.
//!
//! Checks run before all files are read and some are tried and thrown away, so findings keep a [`Spot`] and
//! become diagnostics at the end, when the order is known.

use super::diagnostic::{Diagnostic, Diagnostics, Origin, Severity};
use super::source::{Sources, Spot};

/// Nobody reads more, and each one costs a walk over its line in a hostile file.
const MOST_FINDINGS: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    spot: Spot,
    severity: Severity,
    path: String,
    message: String,
    help: Option<String>,
}

#[derive(Default)]
pub(super) struct Report {
    found: Vec<Finding>,
    errors: usize,
    left_out: usize,
}

impl Report {
    pub(super) fn error(&mut self, spot: &Spot, path: &str, message: String, help: Option<String>) {
        self.errors += 1;
        self.push(Severity::Error, spot, path, message, help);
    }

    pub(super) fn warning(&mut self, spot: &Spot, path: &str, message: String, help: Option<String>) {
        self.push(Severity::Warning, spot, path, message, help);
    }

    fn push(&mut self, severity: Severity, spot: &Spot, path: &str, message: String, help: Option<String>) {
        if self.found.len() < MOST_FINDINGS {
            let path = path.to_owned();
            self.found.push(Finding { spot: spot.clone(), severity, path, message, help });
        } else {
            self.left_out += 1;
        }
    }

    /// Errors so far; a part is clean if its check does not raise this.
    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    /// A part of the configuration could not be read, so what is missing may be in it.
    pub(super) fn forget_missing_defaults(&mut self) {
        let whole_file = |finding: &Finding| finding.spot == Spot::file(0, 0..0) && !finding.path.is_empty();
        self.found.retain(|finding| finding.spot != Spot::Default && !whole_file(finding));
    }

    /// Everything found, by place: files in the order they were read, then the environment.
    pub(super) fn into_diagnostics(mut self, sources: &Sources) -> Diagnostics {
        self.found.sort_by(|a, b| a.spot.cmp(&b.spot));
        self.found.dedup();
        let left_out = self.left_out;
        let mut all: Vec<Diagnostic> =
            self.found.into_iter().map(|finding| resolve(finding, sources)).collect();
        if left_out > 0 {
            all.push(Diagnostic {
                severity: Severity::Error,
                origin: Origin::Default,
                path: String::new(),
                message: format!("{left_out} more are not shown"),
                help: None,
            });
        }
        Diagnostics(all)
    }
}

fn resolve(finding: Finding, sources: &Sources) -> Diagnostic {
    Diagnostic {
        severity: finding.severity,
        origin: sources.origin(&finding.spot),
        path: finding.path,
        message: finding.message,
        help: finding.help,
    }
}
