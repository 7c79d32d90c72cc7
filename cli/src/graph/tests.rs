//! One small tree with a branch, and one name that tries to break every format.

use std::sync::Arc;

use courant_pipeline::StageSpec;
use courant_pipeline::config::{Input, OnError, PipelineEntry, Plane, Policy, StageNode, Topology};
use courant_pipeline::spec::{
    Access, BuildContext, Built, Gives, JSON, Level, Mode, Problem, StageConfig, Takes,
};

use super::{Format, draw};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

impl StageConfig for Nothing {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Err(Vec::new())
    }
}

static CONSUME: StageSpec = StageSpec::source::<Nothing>("kafka-consume", JSON);
static ROUTE: StageSpec = StageSpec::transform::<Nothing>("route", Takes::Any, Gives::Same);
static PERSIST: StageSpec = StageSpec::transform::<Nothing>("dynamo-persist", Takes::Any, Gives::Same);
static DELIVER: StageSpec = StageSpec::sink::<Nothing>("redis-deliver", Takes::Any);

const NASTY: &str = "a\"]<b>&amp;\\N|end;{}\n`#";

fn node(name: &str, spec: &'static StageSpec, input: Option<(usize, u16)>) -> StageNode {
    let policy = Policy {
        lanes: None,
        batch: courant_pipeline::config::BatchLimits::default(),
        buffer: None,
        retry: courant_pipeline::config::RetryPolicy::default(),
        on_error: OnError::DeadLetter,
        dead_letter_queue: Arc::from("letters"),
    };
    StageNode {
        name: Arc::from(name),
        spec,
        params: serde_json::json!({}),
        input: input.map(|(stage, output)| Input { stage, output }),
        outputs: Vec::new(),
        access: Vec::new(),
        rekeys: false,
        policy,
    }
}

fn access(level: Level, mode: Mode, name: &str) -> Access {
    Access { level, mode, name: name.to_owned() }
}

fn topology(name: &str, plane: Plane, stages: Vec<StageNode>) -> Topology {
    let entry: PipelineEntry =
        serde_json::from_value(serde_json::json!({"name": name, "stage": []})).unwrap();
    let (name, entry) = (Arc::from(name), Arc::new(entry));
    Topology { name, plane, reply_after: None, stages, serves: Vec::new(), entry }
}

pub(super) fn pipelines() -> Vec<Topology> {
    let mut consume = node("kafka-consume", &CONSUME, None);
    consume.access.push(access(Level::Log, Mode::Read, "messages.persisted"));
    let mut route = node("split", &ROUTE, Some((0, 0)));
    route.outputs = vec!["urgent".to_owned(), "rest".to_owned()];
    route.policy.on_error = OnError::Drop;
    let mut persist = node("dynamo-persist", &PERSIST, Some((1, 0)));
    persist.policy.buffer = Some(1024);
    persist.policy.lanes = Some(4);
    persist.access = ["messages", "chat_counters", "messages"]
        .map(|table| access(Level::Store, Mode::Write, table))
        .to_vec();
    let mut deliver = node("redis-deliver", &DELIVER, Some((2, 0)));
    deliver.access.push(access(Level::Live, Mode::Fill, "gateway:*:deliver"));
    let mut rest = node(NASTY, &DELIVER, Some((1, 1)));
    rest.policy.dead_letter_queue = Arc::from(NASTY);
    let mut first = topology("ingest", Plane::Durability, vec![consume, route, persist, deliver, rest]);
    first.reply_after = Some(2);

    let mut again = node("kafka-consume", &CONSUME, None);
    again.access.push(access(Level::Log, Mode::Read, "messages.persisted"));
    vec![first, topology(NASTY, Plane::Fanout, vec![again, node("redis-deliver", &DELIVER, Some((0, 0)))])]
}

#[test]
fn the_terminal_shows_the_tree() {
    let drawing = draw(Format::Terminal, &pipelines());
    let first: Vec<&str> = drawing.lines().take(15).collect();
    assert_eq!(
        first,
        [
            "ingest  durability plane",
            "  kafka-consume  source",
            "  │   reads log messages.persisted",
            "  └─▸ split  transform · route",
            "     │   ✗ drops what it refuses",
            "     ├─urgent ⇥1024 ─▸ dynamo-persist  transform ×4",
            "     │  │   writes store messages, chat_counters",
            "     │  │   answers the client",
            "     │  │   ✗ dead letters → letters",
            "     │  └─▸ redis-deliver  sink",
            "     │         fills live gateway:*:deliver",
            "     │         ✗ dead letters → letters",
            "     └─rest ─▸ a\"]<b>&amp;\\N|end;{}�`#  sink · redis-deliver",
            "            ✗ dead letters → a\"]<b>&amp;\\N|end;{}�`#",
            "",
        ]
    );
}

/// Whether text outside of quotes, and whether quotes, are balanced.
fn balanced(text: &str, open: char, close: char) -> bool {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            c if c == open && !quoted => depth += 1,
            c if c == close && !quoted => depth -= 1,
            _ => {}
        }
    }
    depth == 0 && !quoted
}

#[test]
fn dot_has_every_edge_and_closes_what_it_opens() {
    let graph = draw(Format::Dot, &pipelines());
    assert!(balanced(&graph, '{', '}') && balanced(&graph, '[', ']'), "{graph}");
    for edge in [
        "p0s0 -> p0s1 [label=\"\"]",
        "p0s1 -> p0s2 [label=\"urgent ⇥1024\"]",
        "p0s1 -> p0s4 [label=\"rest\"]",
        "p0s2 -> r1 [style=dashed]",
        "p0s3 -> r3 [style=dashed label=\"fills\"]",
        "r0 -> p0s0",
        "r0 -> p1s0",
        "p0s3 -> d0",
        "p0s4 -> d1",
    ] {
        assert_eq!(graph.matches(edge).count(), 1, "{edge}\n{graph}");
    }
    assert!(!graph.contains("p0s1 -> d"), "a stage that drops has no queue");
    assert!(graph.contains("<b>&amp;\\\\N"), "{graph}");
}

#[test]
fn mermaid_labels_cannot_break_out() {
    let chart = draw(Format::Mermaid, &pipelines());
    assert!(chart.starts_with("flowchart LR\n"));
    for line in chart.lines() {
        assert!(line.matches('"').count() % 2 == 0, "{line}");
        let label = line.split('"').nth(1).unwrap_or_default().replace("<br/>", "");
        assert!(!label.contains(['<', '>', '"', '[', '{', '`', '|', '\\']), "{line}");
    }
    for edge in ["p0s0 --> p0s1", "p0s1 -->|\"rest\"| p0s4", "p0s2 -.-> r1", "r0 -.-> p1s0", "p0s4 -.-x d1"] {
        assert!(chart.lines().any(|line| line.trim() == edge), "{edge}\n{chart}");
    }
    assert_eq!(chart.matches("subgraph").count(), chart.lines().filter(|line| line.trim() == "end").count());
}

#[test]
fn svg_is_xml_and_shows_every_stage() {
    let picture = draw(Format::Svg, &pipelines());
    let document = roxmltree::Document::parse(&picture).expect("well-formed XML");
    let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
    for expected in ["kafka-consume", "split", "urgent ⇥1024", "a\"]<b>&amp;\\N|end;{}\u{fffd}`#"] {
        assert!(texts.contains(&expected), "{expected} in {texts:?}");
    }
    let wires = document.descendants().filter(|node| node.attribute("class") == Some("wire")).count();
    assert_eq!(wires, 5);
}

#[test]
fn svg_boxes_do_not_overlap() {
    for topology in pipelines() {
        let blocks = super::svg_layout::lay_out(&topology).blocks;
        for (index, one) in blocks.iter().enumerate() {
            for two in &blocks[index + 1..] {
                let apart_x = one.x + one.width <= two.x || two.x + two.width <= one.x;
                let apart_y = one.y + one.height <= two.y || two.y + two.height <= one.y;
                assert!(apart_x || apart_y, "{} and {}", one.name, two.name);
            }
        }
    }
}

#[test]
fn nothing_to_draw_is_still_a_drawing() {
    assert_eq!(draw(Format::Terminal, &[]), "");
    assert!(roxmltree::Document::parse(&draw(Format::Svg, &[])).is_ok());
}
