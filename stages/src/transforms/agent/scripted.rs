//! Answers by rules, for development and tests: no server is asked.

use std::time::Duration;

use courant_pipeline::StageError;
use tokio::time::sleep;

use super::config::Rule;
use super::draft::{Draft, Room};

/// What stands for the message in an answer.
const CONTENT: &str = "{content}";

pub(super) struct Script {
    rules: Vec<Rule>,
    /// For each word.
    pace: Duration,
}

impl Script {
    /// Says what it was told if there are no rules.
    pub(super) fn new(rules: Vec<Rule>, pace: Duration) -> Self {
        let echo = || vec![Rule { contains: None, say: CONTENT.to_owned() }];
        Self { rules: if rules.is_empty() { echo() } else { rules }, pace }
    }

    pub(super) async fn answer(&self, content: &str, draft: &mut Draft) -> Result<(), StageError> {
        let Some(rule) = self.rules.iter().find(|rule| rule.fits(content)) else {
            return Err(StageError::reject(
                "answer by the script",
                "no rule fits; add one without `contains`",
            ));
        };
        let said = rule.say.replace(CONTENT, content);
        for word in said.split_inclusive(' ') {
            if !self.pace.is_zero() {
                sleep(self.pace).await;
            }
            if draft.push(word).await == Room::Full {
                break;
            }
        }
        Ok(())
    }
}

impl Rule {
    fn fits(&self, content: &str) -> bool {
        let contains = |part: &String| content.to_lowercase().contains(&part.to_lowercase());
        self.contains.as_ref().is_none_or(contains)
    }
}
