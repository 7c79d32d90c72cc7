//! What stages that talk to servers on the web share: where secrets are, what an answer means, and pauses that a server
//! asked for. The servers are other people's: nothing they say is more than a reason in an error.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use courant_connectors::http::{Answer, PostError};
use courant_pipeline::{Class, StageError};
use tokio::time::Instant;

/// As much of an answer as an error quotes.
const QUOTED: usize = 200;
/// The longest that a server can ask to be left alone.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Where a secret is: in the environment, or in a file whose last line break does not count.
pub(crate) struct Secret {
    pub(crate) variable: Option<String>,
    pub(crate) file: Option<PathBuf>,
}

impl Secret {
    /// The secret and the place it is in, none if there is none; the reason if it cannot be read, without the secret.
    pub(crate) fn read(&self) -> Result<Option<(String, String)>, String> {
        let (text, place) = match (&self.variable, &self.file) {
            (Some(name), _) => {
                let value = std::env::var(name);
                let value = value.map_err(|_| {
                    format!("the environment variable `{name}` should hold the secret; set it")
                })?;
                (value, format!("`{name}`"))
            }
            (None, Some(path)) => {
                let place = format!("`{}`", path.display());
                let read = std::fs::read_to_string(path);
                (read.map_err(|error| format!("the secret cannot be read from {place}: {error}"))?, place)
            }
            (None, None) => return Ok(None),
        };
        Ok(Some((text.trim_end().to_owned(), place)))
    }
}

/// Until when a server asked to be left alone.
#[derive(Default)]
pub(crate) struct Pause(Mutex<Option<Instant>>);

impl Pause {
    /// Takes the server's word for it, up to a limit, if it will answer otherwise later.
    pub(crate) fn heed(&self, status: u16, asked: Option<Duration>) {
        if let Some(asked) = asked.filter(|_| is_retried(status)) {
            let until = Instant::now() + asked.min(LONGEST_PAUSE);
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        }
    }

    /// Trying again is the runtime's business and comes sooner; this keeps it from the server.
    pub(crate) fn check(&self, doing: &'static str, server: &str) -> Result<(), StageError> {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.and_then(|until| until.checked_duration_since(Instant::now()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            let reason = format!("the {server} asked to be left alone for {} s more", left.as_secs());
            return Err(StageError::retry(doing, reason));
        }
        *until = None;
        Ok(())
    }
}

/// Whether the same request may be answered otherwise later.
pub(crate) fn is_retried(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

/// An answer that is no success.
pub(crate) fn refused(doing: &'static str, server: &str, answer: &Answer) -> StageError {
    let status = answer.status;
    let class = if is_retried(status.as_u16()) { Class::Retry } else { Class::Reject };
    let mut reason = format!("the {server} answered {status}");
    if status.is_redirection() {
        reason += "; redirects are not followed, give the address it leads to";
    }
    let said = quoted(&answer.text);
    if !said.is_empty() {
        reason = format!("{reason}: {said}");
    }
    StageError::new(class, doing, reason)
}

/// The beginning of what a server said, on one line.
pub(crate) fn quoted(said: &str) -> String {
    let line: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(QUOTED).collect();
    line.trim().to_owned()
}

/// No answer at all, or only a part of one.
pub(crate) fn unanswered(doing: &'static str, error: PostError) -> StageError {
    let class = match error {
        PostError::Header(_) | PostError::Certificates(_) => Class::Fatal,
        _ => Class::Retry,
    };
    StageError::new(class, doing, error)
}
