//! How far a rebuild is, on standard error: a bar for people, a line now and then for those who keep what is printed.

use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use courant_replay::rebuild::Progress;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// Often enough to see it move, seldom enough for a log.
const LINE_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct ProgressLine {
    bar: Option<ProgressBar>,
    current: Arc<Mutex<Option<Current>>>,
}

struct Current {
    last: Progress,
    began: Instant,
    printed: Instant,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar, current: Arc::default() }
    }

    pub(super) fn show(&self, progress: &Progress) {
        let now = Instant::now();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = current
            .as_ref()
            .is_none_or(|current| current.last.phase != progress.phase || progress.done < current.last.done);
        if is_new {
            if let (Some(ended), None) = (&*current, &self.bar) {
                eprintln!("{}", line(&ended.last, ended.began.elapsed()));
            }
            *current = Some(Current { last: progress.clone(), began: now, printed: now });
        }
        let Some(current) = &mut *current else { return };
        current.last = progress.clone();
        match &self.bar {
            Some(bar) => draw(bar, progress, is_new),
            None if current.printed.elapsed() >= LINE_EVERY => {
                current.printed = now;
                eprintln!("{}", line(progress, current.began.elapsed()));
            }
            None => {}
        }
    }

    pub(super) fn end(&self) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (&self.bar, current) {
            (Some(bar), _) => bar.finish_and_clear(),
            (None, Some(current)) => eprintln!("{}", line(&current.last, current.began.elapsed())),
            (None, None) => {}
        }
    }
}

/// `building: 12,000 of 40,000, 6,000/s, 5 seconds left`.
fn line(progress: &Progress, took: Duration) -> String {
    let Progress { phase, done, of, trouble } = progress;
    let mut line = format!("{}: {}", phase.name(), HumanCount(*done));
    if let Some(of) = of.filter(|of| of >= done) {
        line += &format!(" of {}", HumanCount(of));
    }
    let rate = *done as f64 / took.as_secs_f64().max(0.001);
    if *done > 0 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; for people")]
        let rate = rate as u64;
        line += &format!(", {}/s", HumanCount(rate));
    }
    if let Some(left) = of.and_then(|of| of.checked_sub(*done)).filter(|left| *left > 0 && *done > 0) {
        let seconds = (left as f64 / rate).min(1e9);
        line += &format!(", {} left", HumanDuration(Duration::from_secs_f64(seconds)));
    }
    match trouble {
        Some(trouble) => format!("{line}; waits: {trouble}"),
        None => line,
    }
}

fn draw(bar: &ProgressBar, progress: &Progress, is_new: bool) {
    if is_new {
        bar.reset();
    }
    if let Some(of) = progress.of {
        bar.set_length(of.max(progress.done));
    }
    let template = match progress.of {
        Some(_) => "{prefix} [{bar:30}] {human_pos}/{human_len} {per_sec} {eta} {msg}",
        None => "{prefix} {spinner} {human_pos} {per_sec} {msg}",
    };
    let style = ProgressStyle::with_template(template).expect("the templates are well formed");
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(progress.phase.name());
    bar.set_message(progress.trouble.clone().unwrap_or_default());
    bar.set_position(progress.done);
}

#[cfg(test)]
mod tests {
    use super::*;
    use courant_replay::rebuild::Phase;
    use indicatif::{InMemoryTerm, ProgressDrawTarget};

    #[test]
    fn a_bar_shows_how_far_it_is_and_begins_anew_with_each_phase() {
        let terminal = InMemoryTerm::new(3, 120);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let progress =
            ProgressLine { bar: Some(ProgressBar::with_draw_target(None, target)), current: Arc::default() };
        let shown = |phase, done, of| {
            progress.show(&Progress { phase, done, of, trouble: Some("disk full".into()) });
            // Drawing is limited in rate.
            progress.bar.as_ref().unwrap().force_draw();
            terminal.contents()
        };
        let half = shown(Phase::Building, 12_000, Some(24_000));
        assert!(half.contains("building [===============>") && half.contains("12,000/24,000"), "{half}");
        assert!(half.contains("disk full"), "{half}");
        let anew = shown(Phase::Walking, 7, None);
        assert!(
            anew.contains(Phase::Walking.name()) && anew.contains(" 7 ") && !anew.contains('['),
            "{anew}"
        );
        progress.end();
        assert_eq!(terminal.contents(), "");
    }

    #[test]
    fn a_line_has_rate_and_time_left_and_what_it_waits_for() {
        let progress = Progress { phase: Phase::Building, done: 12_000, of: Some(24_000), trouble: None };
        assert_eq!(
            line(&progress, Duration::from_secs(2)),
            "building: 12,000 of 24,000, 6,000/s, 2 seconds left"
        );
        let stuck = Progress { trouble: Some("disk full".into()), of: None, ..progress };
        assert_eq!(line(&stuck, Duration::from_secs(2)), "building: 12,000, 6,000/s; waits: disk full");
        let none = Progress { done: 0, trouble: None, ..stuck };
        assert_eq!(line(&none, Duration::ZERO), "building: 0");
    }
}
