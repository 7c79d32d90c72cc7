//! Where everything stands in the picture: depth to the right, branches below each other.
//!
//! A stage stands level with its first child, so an unbranched pipeline is a straight line. Text is set in a
//! monospaced font, whose width is known without measuring it.

use courant_pipeline::config::{StageNode, Topology};
use courant_pipeline::spec::Level;

use super::{answers_here, printable, refused, subtitle, touches, wire};

/// Width of a character at the text size of 12.
pub(super) const CHARACTER: f64 = 7.25;
/// From one line of text to the next.
pub(super) const LINE: f64 = 18.0;
/// Where wires enter and leave a box, from its top: beside its name.
pub(super) const PORT: f64 = 22.0;
/// Height of a box's name and subtitle.
pub(super) const TITLE: f64 = 50.0;
/// Left of text in a box.
pub(super) const INDENT: f64 = 16.0;
/// Room for the shape before a detail.
pub(super) const ICON: f64 = 20.0;
const BELOW_TEXT: f64 = 8.0;
const COLUMN_GAP: f64 = 48.0;
const ROW_GAP: f64 = 18.0;
/// Longer lines are cut; the full text is the tooltip.
const MAX_CHARACTERS: usize = 40;

/// What stands before a detail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Icon {
    Level(Level),
    Refused,
    Answer,
}

pub(super) struct Detail {
    pub(super) icon: Icon,
    pub(super) text: String,
}

/// A stage's box.
pub(super) struct Block {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) name: String,
    pub(super) subtitle: String,
    pub(super) details: Vec<Detail>,
    /// Label of the wire into it.
    pub(super) wire: String,
}

/// A pipeline's boxes, in the order of its stages, from the corner (0, 0).
pub(super) struct Layout {
    pub(super) blocks: Vec<Block>,
    pub(super) width: f64,
    pub(super) height: f64,
}

pub(super) fn lay_out(topology: &Topology) -> Layout {
    let mut blocks: Vec<Block> =
        topology.stages.iter().enumerate().map(|(stage, node)| block(topology, stage, node)).collect();
    let depths = depths(topology);
    let columns = column_positions(&blocks, &depths);
    let height = stack(topology, 0, 0.0, &mut blocks);
    for (block, depth) in blocks.iter_mut().zip(&depths) {
        (block.x, block.width) = columns[*depth];
    }
    let width = columns.last().map_or(0.0, |(x, width)| x + width);
    Layout { blocks, width, height }
}

fn block(topology: &Topology, stage: usize, node: &StageNode) -> Block {
    let mut details: Vec<Detail> = touches(node)
        .into_iter()
        .map(|touch| Detail {
            icon: Icon::Level(touch.level),
            text: printable(&format!("{} {}", touch.mode.name(), touch.names.join(", "))),
        })
        .collect();
    if answers_here(topology, stage) {
        details.push(Detail { icon: Icon::Answer, text: "answers the client".to_owned() });
    }
    details.extend(refused(node).map(|text| Detail { icon: Icon::Refused, text: printable(&text) }));
    let (name, subtitle) = (printable(&node.name), printable(&subtitle(node)));
    let text = [&name, &subtitle].into_iter().map(|text| width_of(text));
    let detail = details.iter().map(|detail| ICON + width_of(&detail.text));
    let width = text.chain(detail).fold(0.0, f64::max) + 2.0 * INDENT;
    let height = TITLE + details.len() as f64 * LINE + if details.is_empty() { 0.0 } else { BELOW_TEXT };
    Block { x: 0.0, y: 0.0, width, height, name, subtitle, details, wire: printable(&wire(topology, node)) }
}

pub(super) fn width_of(text: &str) -> f64 {
    text.chars().count().min(MAX_CHARACTERS) as f64 * CHARACTER
}

pub(super) fn cut(text: &str) -> String {
    if text.chars().count() <= MAX_CHARACTERS {
        return text.to_owned();
    }
    text.chars().take(MAX_CHARACTERS - 1).chain(['…']).collect()
}

/// Steps from the source. Every stage stands after the one it takes its input from.
fn depths(topology: &Topology) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::with_capacity(topology.stages.len());
    for node in &topology.stages {
        depths.push(node.input.map_or(0, |input| depths[input.stage] + 1));
    }
    depths
}

/// Each column's left edge and width: as wide as its widest box, with room for the labels of the wires.
fn column_positions(blocks: &[Block], depths: &[usize]) -> Vec<(f64, f64)> {
    let count = depths.iter().max().map_or(0, |deepest| deepest + 1);
    let mut columns = Vec::with_capacity(count);
    let mut left = 0.0;
    for column in 0..count {
        let members =
            || blocks.iter().zip(depths).filter(|(_, depth)| **depth == column).map(|(block, _)| block);
        let labels = members().map(|block| width_of(&block.wire)).fold(0.0, f64::max);
        let width = members().map(|block| block.width).fold(0.0, f64::max);
        if column > 0 {
            left += COLUMN_GAP + labels;
        }
        columns.push((left, width));
        left += width;
    }
    columns
}

/// Puts a stage at `top` and its branches to its right; the height they take together.
fn stack(topology: &Topology, stage: usize, top: f64, blocks: &mut [Block]) -> f64 {
    blocks[stage].y = top;
    let mut below = top;
    for (child, _) in topology.children(stage) {
        below += stack(topology, child, below, blocks) + ROW_GAP;
    }
    let branches = (below - top - ROW_GAP).max(0.0);
    blocks[stage].height.max(branches)
}
