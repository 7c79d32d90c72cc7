//! Pipelines as pictures: for the terminal, for Markdown pages, for Graphviz and for the browser.
//!
//! All four show the same facts of a [`Topology`]: stages with their kind and role, who feeds whom by which
//! output, buffers (⇥), lanes (×), what a stage reads and writes, and where its refused records go. Names come
//! from a file that people edit, so every drawing escapes them.

mod dot;
mod mermaid;
mod surroundings;
mod svg;
mod svg_layout;
mod terminal;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::ValueEnum;
use courant_pipeline::config::{OnError, StageNode, Topology};
use courant_pipeline::spec::{Level, Mode, Role};

/// How to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// A tree of text.
    #[default]
    Terminal,
    /// A flowchart that GitHub, GitLab and many editors draw.
    Mermaid,
    /// For Graphviz: `courant graph --format dot | dot -Tpng`.
    Dot,
    /// A picture that needs no other program.
    Svg,
}

/// The pipelines, drawn.
pub fn draw(format: Format, pipelines: &[Topology]) -> String {
    match format {
        Format::Terminal => terminal::draw(pipelines),
        Format::Mermaid => mermaid::draw(pipelines),
        Format::Dot => dot::draw(pipelines),
        Format::Svg => svg::draw(pipelines),
    }
}

/// What a stage does to one level: `writes store messages, chats`.
struct Touch<'a> {
    mode: Mode,
    level: Level,
    names: Vec<&'a str>,
}

/// What a stage touches, grouped; a list of every table would hide the picture.
fn touches(node: &StageNode) -> Vec<Touch<'_>> {
    let mut groups: BTreeMap<(Mode, Level), Vec<&str>> = BTreeMap::new();
    for access in &node.access {
        let names = groups.entry((access.mode, access.level)).or_default();
        if !names.contains(&access.name.as_str()) {
            names.push(&access.name);
        }
    }
    groups.into_iter().map(|((mode, level), names)| Touch { mode, level, names }).collect()
}

/// The queue of a stage's dead letters. Sources refuse nothing.
fn dead_letter_queue(node: &StageNode) -> Option<&str> {
    let keeps = node.spec.role != Role::Source && node.policy.on_error == OnError::DeadLetter;
    keeps.then_some(&*node.policy.dead_letter_queue)
}

/// What happens to records a stage refuses.
fn refused(node: &StageNode) -> Option<String> {
    if node.spec.role == Role::Source {
        return None;
    }
    Some(match node.policy.on_error {
        OnError::DeadLetter => format!("dead letters → {}", node.policy.dead_letter_queue),
        OnError::Drop => "drops what it refuses".to_owned(),
        OnError::Retry => "retries for ever".to_owned(),
        OnError::Stop => "stops on errors".to_owned(),
    })
}

/// Role, and kind if the name does not tell it: `transform · filter ×4`.
fn subtitle(node: &StageNode) -> String {
    let mut text = node.spec.role.name().to_owned();
    if &*node.name != node.spec.kind {
        let _ = write!(text, " · {}", node.spec.kind);
    }
    if let Some(lanes) = node.policy.lanes {
        let _ = write!(text, " ×{lanes}");
    }
    text
}

/// What stands at the wire into a stage: the output it takes, the buffer in front of it.
fn wire(topology: &Topology, node: &StageNode) -> String {
    let output = node.input.and_then(|input| {
        let outputs = &topology.stages[input.stage].outputs;
        outputs.get(usize::from(input.output)).filter(|_| outputs.len() > 1)
    });
    let buffer = node.policy.buffer.map(|records| format!("⇥{records}"));
    output.cloned().into_iter().chain(buffer).collect::<Vec<_>>().join(" ")
}

/// Where clients are answered, if anybody but the end of the pipeline decides that.
fn answers_here(topology: &Topology, stage: usize) -> bool {
    topology.reply_after == Some(stage)
}

/// Control characters could move a cursor or break a line.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
