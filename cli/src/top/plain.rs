//! The same numbers as text, for pipes and tickets.

use super::model::{Flow, PipelineView};
use super::number::{count, latency, rate};

const HEADER: [&str; 12] = [
    "PIPELINE", "STAGE", "STATE", "IN/S", "OUT/S", "ERR/S", "P50", "P99", "QUEUE", "PARKED", "FLIGHT", "LAG",
];

/// Columns with names, which read from the left; numbers stand at the right.
const NAMES: usize = 3;

/// A row per pipeline, and one per stage below it.
pub(super) fn table(pipelines: &[PipelineView]) -> String {
    let mut rows = vec![HEADER.map(str::to_owned)];
    for view in pipelines {
        let health = &view.health;
        let flow = flow(&view.flow);
        let numbers = ["-".to_owned(), "-".to_owned(), count(health.in_flight()), count(health.commit_lag)];
        let names = [health.name.clone(), "-".to_owned(), state(view)];
        rows.push(row(names, flow, numbers));
        for stage in &view.stages {
            let state = if stage.circuit_open { "circuit-open" } else { "-" };
            let names = [health.name.clone(), stage.name.clone(), state.to_owned()];
            let numbers = [count(stage.queue), count(stage.parked), "-".to_owned(), "-".to_owned()];
            rows.push(row(names, self::flow(&stage.flow), numbers));
        }
    }
    align(&rows)
}

fn state(view: &PipelineView) -> String {
    match view.health.restarts {
        0 => view.health.state.name().to_owned(),
        restarts => format!("{}({restarts})", view.health.state.name()),
    }
}

fn flow(flow: &Flow) -> [String; 5] {
    [
        rate(flow.in_per_second),
        rate(flow.out_per_second),
        rate(flow.errors_per_second),
        latency(flow.p50),
        latency(flow.p99),
    ]
}

fn row(names: [String; 3], flow: [String; 5], numbers: [String; 4]) -> [String; 12] {
    let mut cells = names.into_iter().chain(flow).chain(numbers);
    std::array::from_fn(|_| cells.next().unwrap_or_default())
}

fn align(rows: &[[String; 12]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; 12] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            ..NAMES => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
