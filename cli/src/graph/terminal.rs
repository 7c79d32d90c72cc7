//! A tree of text, one pipeline after the other.

use std::fmt::Write as _;

use courant_pipeline::config::{StageNode, Topology};

use super::{answers_here, printable, refused, subtitle, touches, wire};

pub(super) fn draw(pipelines: &[Topology]) -> String {
    let mut drawing = String::new();
    for (index, topology) in pipelines.iter().enumerate() {
        if index > 0 {
            drawing.push('\n');
        }
        let _ = writeln!(drawing, "{}  {} plane", printable(&topology.name), topology.plane.name());
        branch(topology, 0, &Place { own: "  ".to_owned(), below: "  ".to_owned() }, &mut drawing);
    }
    drawing
}

/// What stands to the left of a stage, and of everything that belongs to it.
struct Place {
    own: String,
    below: String,
}

fn branch(topology: &Topology, stage: usize, place: &Place, drawing: &mut String) {
    let node = &topology.stages[stage];
    let children: Vec<usize> = topology.children(stage).map(|(child, _)| child).collect();
    let _ = writeln!(drawing, "{}{}  {}", place.own, printable(&node.name), printable(&subtitle(node)));
    let rail = if children.is_empty() { "    " } else { "│   " };
    for line in details(topology, stage, node) {
        let _ = writeln!(drawing, "{}{rail}{}", place.below, printable(&line));
    }
    for (index, &child) in children.iter().enumerate() {
        let (corner, rail) =
            if index + 1 == children.len() { ("└─", "   ") } else { ("├─", "│  ") };
        let label = match wire(topology, &topology.stages[child]) {
            label if label.is_empty() => String::new(),
            label => format!("{} ─", printable(&label)),
        };
        let below = Place {
            own: format!("{}{corner}{label}▸ ", place.below),
            below: format!("{}{rail}", place.below),
        };
        branch(topology, child, &below, drawing);
    }
}

fn details(topology: &Topology, stage: usize, node: &StageNode) -> Vec<String> {
    let mut lines: Vec<String> = touches(node)
        .into_iter()
        .map(|touch| format!("{} {} {}", touch.mode.name(), touch.level.name(), touch.names.join(", ")))
        .collect();
    if answers_here(topology, stage) {
        lines.push("answers the client".to_owned());
    }
    lines.extend(refused(node).map(|what| format!("✗ {what}")));
    lines
}
