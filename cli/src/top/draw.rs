//! The picture: pipelines above, the selected one's stages below.

use courant_pipeline::health::PipelineState;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table, TableState, Wrap};

use super::app::{App, Link};
use super::model::{Flow, HISTORY, PipelineView, StageView};
use super::number::{count, latency, rate};

const PIPELINE_COLUMNS: [(&str, u16); 9] = [
    ("STATE", 11),
    ("IN/S", 6),
    ("OUT/S", 6),
    ("ERR/S", 5),
    ("P50", 6),
    ("P99", 6),
    ("FLIGHT", 6),
    ("LAG", 5),
    ("RST", 4),
];
const STAGE_COLUMNS: [(&str, u16); 8] = [
    ("IN/S", 6),
    ("OUT/S", 6),
    ("ERR/S", 5),
    ("P50", 6),
    ("P99", 6),
    ("QUEUE", 6),
    ("PARKED", 6),
    ("CIRCUIT", 7),
];
/// Sparkline with its title.
const SPARKLINE_HEIGHT: u16 = 4;
/// Two lines tell most errors.
const ERROR_HEIGHT: u16 = 2;

pub(super) fn draw(frame: &mut Frame, app: &App) {
    let pipelines = app.pipelines();
    let selected = pipelines.get(app.selected()).copied();
    let error = selected.and_then(|view| view.health.last_error.as_deref());
    let stages = selected.map_or(0, |view| view.stages.len());
    let [header, table, history, below, failure, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(SPARKLINE_HEIGHT),
        Constraint::Max(u16::try_from(stages).unwrap_or(u16::MAX).saturating_add(2)),
        Constraint::Length(if error.is_some() { ERROR_HEIGHT } else { 0 }),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_header(frame, header, app);
    draw_pipelines(frame, table, app, &pipelines);
    if let Some(view) = selected {
        draw_history(frame, history, view);
        draw_stages(frame, below, view);
    }
    if let Some(error) = error {
        let text = Line::from(vec!["last error: ".bold(), error.into()]).red();
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), failure);
    }
    let keys = format!(" q quit  ↑↓ select  p pause  s sort: {}", app.sort.name());
    frame.render_widget(Paragraph::new(keys).dim(), footer);
}

fn draw_header(frame: &mut Frame, area: Rect, app: &App) {
    let status = match &app.link {
        Link::Connecting => "connecting".yellow(),
        Link::Lost(why) => format!("reconnecting: {why}").red(),
        Link::Live if app.paused => "paused".yellow(),
        Link::Live => "live".green(),
    };
    // The reason is worth more than the path, which it names anyway.
    let socket = if matches!(app.link, Link::Lost(_)) { String::new() } else { format!("{}  ", app.socket) };
    let line = Line::from(vec!["courant top  ".bold(), Span::raw(socket).dim(), status]);
    frame.render_widget(Paragraph::new(line), area);
}

fn draw_pipelines(frame: &mut Frame, area: Rect, app: &App, pipelines: &[&PipelineView]) {
    let rows = pipelines.iter().map(|view| pipeline_row(view));
    let mut table = table("PIPELINE", &PIPELINE_COLUMNS, rows);
    if app.link != Link::Live {
        table = table.style(Style::new().dim());
    }
    let mut state = TableState::new().with_selected(app.selected());
    frame.render_stateful_widget(table, area, &mut state);
}

fn pipeline_row(view: &PipelineView) -> Row<'static> {
    let health = &view.health;
    let state = Cell::from(health.state.name()).style(state_style(health.state));
    let [records_in, records_out, errors, p50, p99] = flow_cells(&view.flow);
    let restarts = emphasised(count(health.restarts), health.restarts > 0, Color::Yellow);
    let numbers = [count(health.in_flight()), count(health.commit_lag)].map(right);
    let [in_flight, lag] = numbers;
    let name = Cell::from(health.name.clone());
    Row::new([name, state, records_in, records_out, errors, p50, p99, in_flight, lag, restarts])
}

fn draw_history(frame: &mut Frame, area: Rect, view: &PipelineView) {
    let [newest, most] = [view.history.last(), view.history.iter().max()].map(|n| n.copied().unwrap_or(0));
    let title = format!(" {}: {}/s, at most {}/s ", view.health.name, count(newest), count(most));
    let block = Block::new().borders(Borders::TOP).title(title);
    // The newest at the right edge.
    let width = usize::from(area.width).min(HISTORY);
    let shown = &view.history[view.history.len().saturating_sub(width)..];
    let padded = std::iter::repeat_n(0, usize::from(area.width).saturating_sub(shown.len()));
    let data: Vec<u64> = padded.chain(shown.iter().copied()).collect();
    frame.render_widget(Sparkline::default().block(block).data(data).cyan(), area);
}

fn draw_stages(frame: &mut Frame, area: Rect, view: &PipelineView) {
    let rows = view.stages.iter().map(stage_row);
    let table = table("STAGE", &STAGE_COLUMNS, rows).block(Block::new().borders(Borders::TOP));
    frame.render_widget(table, area);
}

fn stage_row(stage: &StageView) -> Row<'static> {
    let [records_in, records_out, errors, p50, p99] = flow_cells(&stage.flow);
    let parked = emphasised(count(stage.parked), stage.parked > 0, Color::Yellow);
    let circuit = if stage.circuit_open { "open" } else { "-" };
    let circuit = emphasised(circuit.to_owned(), stage.circuit_open, Color::Red);
    let name = Cell::from(stage.name.clone());
    Row::new([name, records_in, records_out, errors, p50, p99, right(count(stage.queue)), parked, circuit])
}

/// A table whose first column takes what the numbers leave.
fn table<'a>(first: &'a str, columns: &[(&'a str, u16)], rows: impl Iterator<Item = Row<'a>>) -> Table<'a> {
    let widths = std::iter::once(Constraint::Min(10))
        .chain(columns.iter().map(|(_, width)| Constraint::Length(*width)));
    let headings = columns.iter().map(|(name, _)| match *name {
        "STATE" => Cell::from(*name),
        name => Cell::from(Text::from(name).alignment(Alignment::Right)),
    });
    let header = Row::new(std::iter::once(Cell::from(first)).chain(headings)).bold();
    Table::new(rows, widths).header(header).row_highlight_style(Style::new().reversed())
}

fn flow_cells(flow: &Flow) -> [Cell<'static>; 5] {
    [
        right(rate(flow.in_per_second)),
        right(rate(flow.out_per_second)),
        emphasised(rate(flow.errors_per_second), flow.errors_per_second > 0.0, Color::Red),
        right(latency(flow.p50)),
        right(latency(flow.p99)),
    ]
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Text::from(text).alignment(Alignment::Right))
}

fn emphasised(text: String, bad: bool, colour: Color) -> Cell<'static> {
    let cell = right(text);
    if bad { cell.style(Style::new().fg(colour).bold()) } else { cell }
}

fn state_style(state: PipelineState) -> Style {
    match state {
        PipelineState::Running => Style::new().green(),
        PipelineState::Finished | PipelineState::Stopped => Style::new().dim(),
        PipelineState::Starting | PipelineState::Draining => Style::new().yellow(),
        PipelineState::BackingOff => Style::new().red().bold(),
    }
}
