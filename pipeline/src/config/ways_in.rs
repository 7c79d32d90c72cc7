//! Which pipeline takes a command. Each has one: which of two would get a request is anyone's guess.

use std::collections::BTreeMap;

use super::draft::Draft;
use super::report::Report;
use super::suggest::quote;
use crate::intake::WayIn;

/// Of the pipelines looked at so far, by what they take.
#[derive(Default)]
pub(super) struct WaysIn<'n>(BTreeMap<WayIn, &'n str>);

impl<'n> WaysIn<'n> {
    /// Notes what this pipeline takes, and refuses what another does already.
    pub(super) fn check(&mut self, draft: &Draft<'n>, report: &mut Report) {
        let Some(source) = draft.stages.first() else { return };
        for way in source.built.iter().flat_map(|built| &built.serves) {
            let Some(first) = self.0.get(way) else {
                self.0.insert(way.clone(), draft.name.unwrap_or("?"));
                continue;
            };
            let (command, first) = (quote(&way.command), quote(first));
            let message = format!("the pipeline {first} takes {command} from `{}` already", way.door);
            report.error(source.spot(), &source.at.path, message, Some(HELP.to_owned()));
        }
    }
}

const HELP: &str = "a command has one way in: name it in one of them only";
