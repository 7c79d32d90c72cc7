//! A Mermaid flowchart. Ids are numbers of ours, so no name can collide with a keyword or break the syntax.

use std::fmt::Write as _;

use courant_pipeline::config::Topology;
use courant_pipeline::spec::{Level, Mode, Role};

use super::surroundings::{Link, StageId, Surroundings};
use super::{answers_here, subtitle, wire};

/// Fills are mid-tones with their own text colour, so that they read on light and dark pages.
const CLASSES: &str = "  classDef source fill:#1f6feb,stroke:#1f6feb,color:#fff
  classDef transform fill:#6e5494,stroke:#6e5494,color:#fff
  classDef sink fill:#1a7f5a,stroke:#1a7f5a,color:#fff
  classDef dead fill:#b54708,stroke:#b54708,color:#fff
";

pub(super) fn draw(pipelines: &[Topology]) -> String {
    let mut chart = String::from("flowchart LR\n");
    for (index, topology) in pipelines.iter().enumerate() {
        pipeline(index, topology, &mut chart);
    }
    surroundings(&Surroundings::of(pipelines), &mut chart);
    chart.push_str(CLASSES);
    chart
}

fn pipeline(pipeline: usize, topology: &Topology, chart: &mut String) {
    let title = format!("{} · {}", topology.name, topology.plane.name());
    let _ = writeln!(chart, "  subgraph p{pipeline}[\"{}\"]", escape(&title));
    for (stage, node) in topology.stages.iter().enumerate() {
        let answers = if answers_here(topology, stage) { "<br/>answers the client" } else { "" };
        let label = format!("{}<br/>{}{answers}", escape(&node.name), escape(&subtitle(node)));
        let (open, close) = match node.spec.role {
            Role::Source => ("([", "])"),
            Role::Transform => ("[", "]"),
            Role::Sink => ("[[", "]]"),
        };
        let (id, role) = (StageId { pipeline, stage }, node.spec.role.name());
        let _ = writeln!(chart, "    {id}{open}\"{label}\"{close}:::{role}");
    }
    for (stage, node) in topology.stages.iter().enumerate() {
        let Some(input) = node.input else { continue };
        let label = match wire(topology, node) {
            label if label.is_empty() => String::new(),
            label => format!("|\"{}\"|", escape(&label)),
        };
        let from = StageId { pipeline, stage: input.stage };
        let _ = writeln!(chart, "    {from} -->{label} {}", StageId { pipeline, stage });
    }
    chart.push_str("  end\n");
}

fn surroundings(around: &Surroundings<'_>, chart: &mut String) {
    for (index, (level, name)) in around.resources.iter().enumerate() {
        let (open, close) = match level {
            Level::Store => ("[(", ")]"),
            Level::Log => ("[/", "/]"),
            Level::Live => ("{{", "}}"),
        };
        let _ = writeln!(chart, "  r{index}{open}\"{}<br/>{}\"{close}", escape(name), level.name());
    }
    for (index, name) in around.queues.iter().enumerate() {
        let _ = writeln!(chart, "  d{index}[\\\"dead letters<br/>{}\"/]:::dead", escape(name));
    }
    for (stage, link) in &around.links {
        let _ = match link {
            Link::Resource(index, Mode::Read | Mode::Scan | Mode::Stream) => {
                writeln!(chart, "  r{index} -.-> {stage}")
            }
            Link::Resource(index, Mode::Write | Mode::Keep) => writeln!(chart, "  {stage} -.-> r{index}"),
            Link::Resource(index, Mode::Fill) => writeln!(chart, "  {stage} -.->|fills| r{index}"),
            Link::Queue(index) => writeln!(chart, "  {stage} -.-x d{index}"),
        };
    }
}

/// Everything but letters, digits and harmless signs as Mermaid's `#code;`.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control() => escaped.push('\u{fffd}'),
            c if c.is_alphanumeric() || !c.is_ascii() || " -_.,:/".contains(c) => escaped.push(c),
            c => {
                let _ = write!(escaped, "#{};", u32::from(c));
            }
        }
    }
    escaped
}
