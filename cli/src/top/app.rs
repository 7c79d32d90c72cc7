//! What the user has chosen, and how the connection is. Knows keys, but no terminal.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Model, PipelineView};
use super::poll::Polled;

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Quit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    File,
    Rate,
    Errors,
    Latency,
}

impl Sort {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Rate => "in/s",
            Self::Errors => "err/s",
            Self::Latency => "p99",
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::File => Self::Rate,
            Self::Rate => Self::Errors,
            Self::Errors => Self::Latency,
            Self::Latency => Self::File,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    Connecting,
    Live,
    /// With the reason.
    Lost(String),
}

pub(super) struct App {
    pub(super) socket: String,
    pub(super) link: Link,
    pub(super) paused: bool,
    pub(super) sort: Sort,
    model: Model,
    /// By name, so that the choice stays when the order changes.
    selected: Option<String>,
}

impl App {
    pub(super) fn new(socket: String) -> Self {
        Self {
            socket,
            link: Link::Connecting,
            paused: false,
            sort: Sort::File,
            model: Model::default(),
            selected: None,
        }
    }

    pub(super) fn observe(&mut self, polled: Polled) -> Flow {
        match polled {
            Ok((sample, order)) => {
                self.link = Link::Live;
                // While paused the picture stands; the next rates are then over the whole pause.
                if !self.paused {
                    self.model.observe(sample, &order);
                }
            }
            Err(error) => {
                self.link = Link::Lost(error.to_string());
                self.model.interrupt();
            }
        }
        Flow::Continue
    }

    pub(super) fn event(&mut self, event: &Event) -> Flow {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(*key),
            _ => Flow::Continue,
        }
    }

    fn key(&mut self, key: KeyEvent) -> Flow {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Flow::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Flow::Quit,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Down | KeyCode::Char('j') => self.select(|index, last| (index + 1).min(last)),
            KeyCode::Up | KeyCode::Char('k') => self.select(|index, _| index.saturating_sub(1)),
            KeyCode::Home | KeyCode::Char('g') => self.select(|_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.select(|_, last| last),
            _ => {}
        }
        Flow::Continue
    }

    fn select(&mut self, step: impl FnOnce(usize, usize) -> usize) {
        let pipelines = self.pipelines();
        let Some(last) = pipelines.len().checked_sub(1) else { return };
        let chosen = step(self.selected(), last);
        self.selected = Some(pipelines[chosen].health.name.clone());
    }

    /// In the chosen order.
    pub(super) fn pipelines(&self) -> Vec<&PipelineView> {
        let mut pipelines: Vec<&PipelineView> = self.model.pipelines().iter().collect();
        let weight = |view: &PipelineView| match self.sort {
            Sort::File => 0.0,
            Sort::Rate => view.flow.in_per_second,
            Sort::Errors => view.flow.errors_per_second,
            Sort::Latency => view.flow.p99.map_or(0.0, |latency| latency.seconds),
        };
        pipelines.sort_by(|one, two| weight(two).total_cmp(&weight(one)));
        pipelines
    }

    /// Index of the selected pipeline in the chosen order; the first if it has gone.
    pub(super) fn selected(&self) -> usize {
        let is_selected = |view: &&PipelineView| Some(&view.health.name) == self.selected.as_ref();
        self.pipelines().iter().position(is_selected).unwrap_or(0)
    }
}
