//! The view against a real admin socket and a terminal in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use courant_edge::admin::{AdminClient, AdminServer, ClientError};
use courant_edge::{Control, Redrive, RedriveReport, Running, RunningPipeline};
use courant_pipeline::Tally;
use courant_pipeline::health::{PipelineHealth, PipelineState};
use courant_pipeline::runtime::ReloadReport;
use courant_pipeline::tap::TapRecord;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::app::{App, Flow, Link, Sort};
use super::draw::draw;
use super::model::{Metrics, Sample, StageOrder};
use super::{once, poll};

fn health(name: &str, state: PipelineState, read: u64) -> PipelineHealth {
    PipelineHealth {
        name: name.to_owned(),
        state,
        since: String::new(),
        restarts: 3,
        last_error: (state == PipelineState::BackingOff).then(|| "publish to log: refused".to_owned()),
        read,
        dispositions: Tally { delivered: read, ..Tally::default() },
        commit_lag: 42,
        lag: None,
    }
}

fn metrics(read: u64) -> String {
    format!(
        "courant_stage_in_total{{pipeline=\"ingest\",stage=\"persist\"}} {read}\n\
         courant_stage_queue_depth{{pipeline=\"ingest\",stage=\"persist\"}} 7\n"
    )
}

/// A process that reads a hundred records each time it is asked.
#[derive(Default)]
struct Counting(AtomicU64);

#[async_trait]
impl Control for Counting {
    fn health(&self) -> Vec<PipelineHealth> {
        vec![health("ingest", PipelineState::Running, self.0.fetch_add(100, Ordering::Relaxed))]
    }

    fn metrics(&self) -> String {
        metrics(0)
    }

    async fn running(&self) -> Running {
        let entry = serde_json::json!({"name": "ingest", "stage": [{"kind": "x", "name": "persist"}]});
        let entry = serde_json::from_value(entry).unwrap();
        Running { only: Vec::new(), pipelines: vec![RunningPipeline { entry, positions: None }] }
    }

    async fn reload(&self) -> Result<ReloadReport, String> {
        Err("not here".to_owned())
    }

    fn tap(&self, _: &str, _: &str) -> Result<mpsc::Receiver<TapRecord>, String> {
        Err("not here".to_owned())
    }

    async fn redrive(&self, _: Redrive) -> Result<RedriveReport, String> {
        Err("not here".to_owned())
    }

    fn stop(&self) {}
}

/// An app that has seen two samples, a second apart.
fn app() -> App {
    let mut app = App::new("data/admin.sock".to_owned());
    let start = Instant::now();
    for (second, read) in [(0, 0), (1, 1500)] {
        let health = vec![
            health("ingest", PipelineState::Running, read),
            health("fanout", PipelineState::BackingOff, read * 2),
        ];
        let at = start + Duration::from_secs(second);
        app.observe(Ok((Sample { at, health, metrics: Metrics::parse(&metrics(read)) }, StageOrder::new())));
    }
    app
}

fn press(app: &mut App, code: KeyCode) -> Flow {
    app.event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn screen(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    terminal.backend().to_string()
}

fn line<'a>(screen: &'a str, start: &str) -> &'a str {
    let found = screen.lines().find(|line| line.trim_matches('"').starts_with(start));
    found.unwrap_or_else(|| panic!("no line `{start}` in\n{screen}"))
}

#[test]
fn everything_fits_a_small_terminal() {
    let shown = screen(&app(), 80, 24);
    let header = line(&shown, "PIPELINE");
    for column in ["STATE", "IN/S", "OUT/S", "ERR/S", "P50", "P99", "FLIGHT", "LAG", "RST"] {
        assert!(header.contains(column), "{column} in {header}");
    }
    let ingest: Vec<&str> = line(&shown, "ingest").trim_matches('"').split_whitespace().collect();
    assert_eq!(ingest, ["ingest", "running", "1.5k", "1.5k", "0", "-", "-", "0", "42", "3"]);
    assert!(line(&shown, "fanout").contains("backing-off"));
    let stage: Vec<&str> = line(&shown, "persist").trim_matches('"').split_whitespace().collect();
    assert_eq!(stage, ["persist", "1.5k", "0", "0", "-", "-", "7", "0", "-"]);
    assert!(line(&shown, " ingest: 1.5k/s").contains("at most"), "{shown}");
    assert!(shown.contains("courant top  data/admin.sock  live") && shown.contains("q quit"), "{shown}");
    assert!(shown.contains('█'), "the sparkline has a bar");
}

#[test]
fn a_tiny_terminal_does_not_break_it() {
    for (width, height) in [(1, 1), (20, 5), (40, 10), (300, 3)] {
        screen(&app(), width, height);
    }
}

#[test]
fn keys_select_pause_sort_and_quit() {
    let mut app = app();
    assert_eq!(app.selected(), 0);
    press(&mut app, KeyCode::Char('j'));
    press(&mut app, KeyCode::Down);
    assert_eq!(app.pipelines()[app.selected()].health.name, "fanout");
    assert!(screen(&app, 80, 24).contains("last error: publish to log: refused"));
    press(&mut app, KeyCode::Char('s'));
    assert_eq!(app.sort, Sort::Rate);
    let names: Vec<_> = app.pipelines().iter().map(|view| view.health.name.clone()).collect();
    assert_eq!(names, ["fanout", "ingest"]);
    assert_eq!(app.selected(), 0, "the choice moved with its pipeline");
    press(&mut app, KeyCode::Up);
    assert_eq!(app.selected(), 0);
    assert_eq!(press(&mut app, KeyCode::Char('q')), Flow::Quit);
    let interrupt = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert_eq!(app.event(&interrupt), Flow::Quit);
}

#[test]
fn a_pause_freezes_the_picture() {
    let mut app = app();
    press(&mut app, KeyCode::Char('p'));
    let later = Sample { at: Instant::now(), health: Vec::new(), metrics: Metrics::default() };
    app.observe(Ok((later, StageOrder::new())));
    let shown = screen(&app, 80, 24);
    assert!(shown.contains("paused") && shown.contains("fanout"), "{shown}");
}

#[test]
fn a_lost_link_leaves_no_false_rate() {
    let mut app = app();
    app.observe(Err(ClientError::Refused("busy".to_owned())));
    assert_eq!(app.link, Link::Lost("busy".to_owned()));
    let health = vec![health("ingest", PipelineState::Running, 9_000_000)];
    let at = Instant::now() + Duration::from_secs(9);
    app.observe(Ok((Sample { at, health, metrics: Metrics::default() }, StageOrder::new())));
    assert!(app.pipelines()[0].flow.in_per_second.abs() < f64::EPSILON);
}

#[tokio::test]
async fn a_server_that_goes_away_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let start = |stop: &CancellationToken| {
        let server = AdminServer::bind(&path).unwrap();
        tokio::spawn(server.run(Arc::new(Counting::default()), stop.clone()))
    };
    let stop = CancellationToken::new();
    let running = start(&stop);
    let mut polls = poll::start(AdminClient::new(&path), Duration::from_millis(1));
    let mut app = App::new(String::new());
    while app.pipelines().is_empty() {
        app.observe(polls.recv().await.unwrap());
    }
    assert_eq!(app.pipelines()[0].stages[0].name, "persist");
    stop.cancel();
    running.await.unwrap();
    // A poll that was under way is cut off first; the next one finds nobody.
    while !screen(&app, 120, 24).contains("reconnecting: no courant is running here") {
        app.observe(polls.recv().await.unwrap());
    }
    assert!(screen(&app, 120, 24).contains("ingest"), "the last picture stays");
    let _running = start(&CancellationToken::new());
    while app.link != Link::Live {
        app.observe(polls.recv().await.unwrap());
    }
}

#[tokio::test]
async fn once_prints_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let server = AdminServer::bind(&path).unwrap();
    tokio::spawn(server.run(Arc::new(Counting::default()), CancellationToken::new()));
    let table = once(&AdminClient::new(&path), Duration::from_millis(10)).await.unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert_eq!(rows[1][..3], ["ingest", "-", "running(3)"]);
    assert_ne!(rows[1][3], "0", "a hundred records were read in between");
    assert_eq!(rows[2][..3], ["ingest", "persist", "-"]);
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");

    let missing = once(&AdminClient::new(folder.path().join("none.sock")), Duration::ZERO).await;
    assert!(missing.unwrap_err().to_string().contains("no courant is running here"));
}
