//! Where dead letters go: the queues' names, and that none leads back to where it came from.

use super::draft::{Draft, DraftStage, NAME_HELP, is_name};
use super::report::Report;
use super::suggest::{list, quote};
use super::tree::Node;

pub(super) fn check(draft: &Draft<'_>, report: &mut Report) {
    for stage in &draft.stages {
        refuse_name(stage, report);
    }
    refuse_own_letters(draft, report);
}

/// A queue is a file, like a pipeline's positions, and is typed in commands.
fn refuse_name(stage: &DraftStage<'_>, report: &mut Report) {
    let Some(written) = stage.node.get("dead_letter") else { return };
    if let Some(name) = written.text().filter(|name| !is_name(name)) {
        let message = format!("{} cannot be the name of a dead-letter queue", quote(name));
        let path = stage.at.key("dead_letter").path;
        report.error(&written.at, &path, message, Some(NAME_HELP.to_owned()));
    }
}

/// A source that reads a queue to its end never gets there if what fails again goes to the same queue.
fn refuse_own_letters(draft: &Draft<'_>, report: &mut Report) {
    let Some((source, stages)) = draft.stages.split_first() else { return };
    let Some(queue) = source.built.as_ref().and_then(|built| built.drains.as_deref()) else { return };
    let writers: Vec<&str> = stages
        .iter()
        .filter(|stage| queue_of(stage, draft) == Some(queue))
        .map(|stage| stage.name.as_str())
        .collect();
    if writers.is_empty() {
        return;
    }
    let message = format!(
        "letters of {} go to the queue {} that this pipeline reads, and would come back for ever",
        list(&writers, "and"),
        quote(queue)
    );
    let help = format!("give them another queue, such as `dead_letter = \"{queue}-again\"`");
    let written = source.node.get("params").and_then(|params| params.get("queue"));
    let spot = written.map_or(source.spot(), |queue| &queue.at);
    report.error(spot, &source.at.key("params").key("queue").path, message, Some(help));
}

/// The queue a stage's letters go to, if it writes any.
fn queue_of<'d>(stage: &'d DraftStage<'_>, draft: &'d Draft<'_>) -> Option<&'d str> {
    let written = |key| stage.node.get(key).and_then(Node::text);
    match written("on_error") {
        None | Some("dead-letter") => written("dead_letter").or(draft.name),
        Some(_) => None,
    }
}
