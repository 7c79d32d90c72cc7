//! How far it is, on standard error: a bar for people, a line for each phase for those who keep what is printed.

use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use courant_replay::verify::Progress;
use indicatif::{ProgressBar, ProgressStyle};

#[derive(Clone)]
pub(super) struct ProgressLine {
    bar: Option<ProgressBar>,
    last: Arc<Mutex<Option<Progress>>>,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar, last: Arc::default() }
    }

    pub(super) fn show(&self, progress: &Progress) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = last.as_ref().is_none_or(|last| last.number != progress.number);
        let ended = last.replace(progress.clone()).filter(|_| is_new);
        match &self.bar {
            Some(bar) => draw(bar, progress, is_new),
            None => print(ended.as_ref()),
        }
    }

    pub(super) fn end(&self) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None => print(last.as_ref()),
        }
    }
}

fn print(ended: Option<&Progress>) {
    if let Some(Progress { phase, done, number, phases, .. }) = ended {
        eprintln!("{number} of {phases}: {phase}, {done}");
    }
}

fn draw(bar: &ProgressBar, progress: &Progress, is_new: bool) {
    if is_new {
        bar.reset();
    }
    if let Some(of) = progress.of {
        bar.set_length(of);
    }
    let template = match progress.of {
        Some(_) => "{prefix} [{bar:30}] {human_pos}/{human_len} {per_sec}",
        None => "{prefix} {spinner} {human_pos} {per_sec}",
    };
    let style = ProgressStyle::with_template(template).expect("the templates are well formed");
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(format!("{} of {}: {}", progress.number, progress.phases, progress.phase));
    bar.set_position(progress.done);
}
