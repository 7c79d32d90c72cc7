//! What a stage says when it cannot do its work.
//!
//! The class decides what the runtime does: back off and try again, hand the record to `on_error`, or stop
//! the pipeline. A stage picks the class, never the policy.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// How an error is to be treated, whatever caused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The dependency is unwell; the same record may pass later.
    Retry,
    /// This record will never pass.
    Reject,
    /// The stage itself cannot go on.
    Fatal,
}

impl Class {
    pub const ALL: [Self; 3] = [Self::Retry, Self::Reject, Self::Fatal];

    /// The label value in metrics and dead letters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Reject => "reject",
            Self::Fatal => "fatal",
        }
    }
}

/// A failed piece of work: what was being done, why it failed, and what may be done about it.
#[derive(Debug)]
pub struct StageError {
    pub class: Class,
    /// The work in the words of an operator: `publish to gateway`.
    pub doing: Cow<'static, str>,
    pub source: Box<dyn StdError + Send + Sync>,
}

impl StageError {
    pub fn new(
        class: Class,
        doing: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { class, doing: doing.into(), source: source.into() }
    }

    pub fn retry(
        doing: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::new(Class::Retry, doing, source)
    }

    pub fn reject(
        doing: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::new(Class::Reject, doing, source)
    }

    pub fn fatal(
        doing: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::new(Class::Fatal, doing, source)
    }
}

/// `publish to gateway: connection refused: …`, the whole chain on one line.
impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.source)?;
        let mut cause = self.source.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl StdError for StageError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_shows_the_whole_chain() {
        let io = std::io::Error::other("connection refused");
        assert_eq!(
            StageError::retry("publish to gateway", io).to_string(),
            "publish to gateway: connection refused"
        );
    }
}
