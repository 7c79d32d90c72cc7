//! Graphviz' language.

use std::fmt::Write as _;

use courant_pipeline::config::Topology;
use courant_pipeline::spec::{Level, Mode, Role};

use super::surroundings::{Link, StageId, Surroundings};
use super::{answers_here, printable, subtitle, wire};

const HEAD: &str = r#"digraph courant {
  rankdir=LR
  bgcolor="transparent"
  node [fontname="Helvetica" fontsize=11 style="filled" fontcolor="white" color="white"]
  edge [fontname="Helvetica" fontsize=10 color="gray50" fontcolor="gray50"]
"#;

pub(super) fn draw(pipelines: &[Topology]) -> String {
    let mut graph = HEAD.to_owned();
    for (index, topology) in pipelines.iter().enumerate() {
        pipeline(index, topology, &mut graph);
    }
    surroundings(&Surroundings::of(pipelines), &mut graph);
    graph.push_str("}\n");
    graph
}

fn pipeline(pipeline: usize, topology: &Topology, graph: &mut String) {
    let title = quote(&[&topology.name, topology.plane.name()]);
    let _ = writeln!(graph, "  subgraph cluster_{pipeline} {{");
    let _ = writeln!(graph, "    label={title} fontname=\"Helvetica\" color=\"gray60\" fontcolor=\"gray50\"");
    for (stage, node) in topology.stages.iter().enumerate() {
        let subtitle = subtitle(node);
        let mut lines = vec![&*node.name, &subtitle];
        if answers_here(topology, stage) {
            lines.push("answers the client");
        }
        let (shape, fill) = match node.spec.role {
            Role::Source => ("oval", "#1f6feb"),
            Role::Transform => ("box", "#6e5494"),
            Role::Sink => ("box3d", "#1a7f5a"),
        };
        let (id, label) = (StageId { pipeline, stage }, quote(&lines));
        let _ = writeln!(graph, "    {id} [label={label} shape={shape} fillcolor=\"{fill}\"]");
    }
    for (stage, node) in topology.stages.iter().enumerate() {
        let Some(input) = node.input else { continue };
        let from = StageId { pipeline, stage: input.stage };
        let label = quote(&[&wire(topology, node)]);
        let _ = writeln!(graph, "    {from} -> {} [label={label}]", StageId { pipeline, stage });
    }
    graph.push_str("  }\n");
}

fn surroundings(around: &Surroundings<'_>, graph: &mut String) {
    for (index, (level, name)) in around.resources.iter().enumerate() {
        let shape = match level {
            Level::Store => "cylinder",
            Level::Log => "cds",
            Level::Live => "hexagon",
        };
        let label = quote(&[name, level.name()]);
        let _ = writeln!(graph, "  r{index} [label={label} shape={shape} fillcolor=\"#57606a\"]");
    }
    for (index, name) in around.queues.iter().enumerate() {
        let label = quote(&["dead letters", name]);
        let _ = writeln!(graph, "  d{index} [label={label} shape=invtrapezium fillcolor=\"#b54708\"]");
    }
    for (stage, link) in &around.links {
        let _ = match link {
            Link::Resource(index, Mode::Read | Mode::Scan | Mode::Stream) => {
                writeln!(graph, "  r{index} -> {stage} [style=dashed]")
            }
            Link::Resource(index, Mode::Write | Mode::Keep) => {
                writeln!(graph, "  {stage} -> r{index} [style=dashed]")
            }
            Link::Resource(index, Mode::Fill) => {
                writeln!(graph, "  {stage} -> r{index} [style=dashed label=\"fills\"]")
            }
            Link::Queue(index) => writeln!(graph, "  {stage} -> d{index} [style=dotted]"),
        };
    }
}

/// Lines as a quoted string. Backslashes are doubled, since Graphviz reads `\N` as the node's name.
fn quote(lines: &[&str]) -> String {
    let escape = |line: &&str| printable(line).replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", lines.iter().map(escape).collect::<Vec<_>>().join("\\n"))
}
