//! `courant bench`: figures as ratios to a limit measured in the same run, because machines differ and are noisy.

pub mod chat;
mod disk;
pub mod fill;
pub mod live;
mod load;
pub mod log;
mod native;
mod process;
pub mod replay;
pub mod runtime;
pub mod store;
pub mod stream;

use std::io::Write as _;

use serde::Serialize;

/// One measured figure; the names are stable and explained in `docs/performance.md`.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub figure: String,
    pub value: f64,
    pub unit: &'static str,
    /// The most that could be had, measured in the same run.
    pub limit: Option<f64>,
    pub ratio: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
}

impl Figure {
    pub fn new(figure: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { figure: figure.into(), value, unit, limit: None, ratio: None, p50_ms: None, p99_ms: None }
    }

    #[must_use]
    pub fn against(mut self, limit: f64) -> Self {
        (self.limit, self.ratio) = (Some(limit), Some(self.value / limit));
        self
    }
}

/// Writers at once, for the figures named after them.
const IN_FLIGHT: [usize; 3] = [1, 64, 1024];
/// The size of a message with what belongs to it.
const RECORD_BYTES: usize = 500;
/// Rounds per figure, alternating with the limit's, so that both meet the same weather.
const ROUNDS: usize = 5;

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// How figures are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Table,
    /// One JSON object a line.
    JsonLines,
}

/// Prints a figure as soon as it is known. A reader that has gone away is no error of ours.
pub fn report(figure: &Figure, format: Format) -> std::io::Result<()> {
    match print(figure, format) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

fn print(figure: &Figure, format: Format) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match format {
        Format::JsonLines => {
            serde_json::to_writer(&mut out, figure)?;
            writeln!(out)
        }
        Format::Table => {
            write!(out, "{:<28} {:>14} {:<10}", figure.figure, short(figure.value), figure.unit)?;
            if let (Some(limit), Some(ratio)) = (figure.limit, figure.ratio) {
                write!(out, " {:>5.0}% of {}", ratio * 100.0, short(limit))?;
            }
            if let (Some(p50), Some(p99)) = (figure.p50_ms, figure.p99_ms) {
                write!(out, "  p50 {p50:.2} ms  p99 {p99:.2} ms")?;
            }
            writeln!(out)
        }
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}
