//! A picture for the browser: one panel per pipeline, colours by role, shapes by level.
//!
//! Light and dark follow the reader's settings. Where those are unknown the light colours stand on a ground of
//! their own, so the picture reads on any page.

use std::fmt::Write as _;

use courant_pipeline::config::Topology;
use courant_pipeline::spec::{Level, Role};

use super::printable;
use super::svg_layout::{Block, CHARACTER, ICON, INDENT, Icon, LINE, Layout, PORT, TITLE, cut, lay_out};

const MARGIN: f64 = 20.0;
/// Around the boxes in a panel.
const PADDING: f64 = 20.0;
/// Height of a panel's title.
const HEADING: f64 = 40.0;
const PANEL_GAP: f64 = 18.0;
const LEGEND: f64 = 36.0;
const LEGEND_STEP: f64 = 102.0;

const STYLE: &str = "
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2328}
.ground{fill:#fff}.panel{fill:#f6f8fa;stroke:#d1d9e0}.box{fill:#fff;stroke:#d1d9e0}
.heading{font-size:15px;font-weight:600}.name{font-weight:600}.soft{fill:#59636e}
.wire{fill:none;stroke:#818b98;stroke-width:1.5}.tip{fill:#818b98}
.source{fill:#1f6feb}.transform{fill:#8250df}.sink{fill:#1a7f37}
.icon{fill:none;stroke:#59636e;stroke-width:1.3}.bad{stroke:#cf222e}
@media (prefers-color-scheme:dark){
text{fill:#f0f6fc}.ground{fill:#0d1117}.panel{fill:#151b23;stroke:#3d444d}.box{fill:#0d1117;stroke:#3d444d}
.soft{fill:#9198a1}.wire{stroke:#656c76}.tip{fill:#656c76}
.source{fill:#4493f8}.transform{fill:#ab7df8}.sink{fill:#3fb950}.icon{stroke:#9198a1}.bad{stroke:#f85149}}
";

pub(super) fn draw(pipelines: &[Topology]) -> String {
    let layouts: Vec<Layout> = pipelines.iter().map(lay_out).collect();
    let legend = LEGEND_STEP * 6.0;
    let inner = pipelines
        .iter()
        .zip(&layouts)
        .map(|(topology, layout)| layout.width.max(heading(topology).chars().count() as f64 * 9.0))
        .fold(legend, f64::max)
        + 2.0 * PADDING;
    let mut body = String::new();
    let mut top = MARGIN;
    for (topology, layout) in pipelines.iter().zip(&layouts) {
        let height = HEADING + layout.height + PADDING;
        panel(topology, layout, (top, inner, height), &mut body);
        top += height + PANEL_GAP;
    }
    draw_legend(top, &mut body);
    let (width, height) = (inner + 2.0 * MARGIN, top + LEGEND);
    let open = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img">"#
    );
    format!(
        "{open}\n<title>pipelines</title>\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
    )
}

fn heading(topology: &Topology) -> String {
    format!("{}  {} plane", printable(&topology.name), topology.plane.name())
}

fn panel(topology: &Topology, layout: &Layout, (top, width, height): (f64, f64, f64), body: &mut String) {
    let _ = writeln!(
        body,
        r#"<g transform="translate({MARGIN:.1} {top:.1})"><rect class="panel" width="{width:.1}" height="{height:.1}" rx="8"/>"#
    );
    let _ = writeln!(
        body,
        r#"<text class="heading" x="{PADDING}" y="26">{}<tspan class="soft" dx="10" style="font-weight:400;font-size:12px">{} plane</tspan></text>"#,
        escape(&printable(&topology.name)),
        topology.plane.name()
    );
    let _ = writeln!(body, r#"<g transform="translate({PADDING:.1} {HEADING:.1})">"#);
    for (node, to) in topology.stages.iter().zip(&layout.blocks) {
        if let Some(input) = node.input {
            draw_wire(&layout.blocks[input.stage], to, body);
        }
    }
    for (node, block) in topology.stages.iter().zip(&layout.blocks) {
        draw_block(block, node.spec.role, body);
    }
    body.push_str("</g></g>\n");
}

fn draw_wire(from: &Block, to: &Block, body: &mut String) {
    let (x1, y1) = (from.x + from.width, from.y + PORT);
    let (x2, y2) = (to.x - 6.0, to.y + PORT);
    // The turn lies right behind the box, so that labels have the straight part for themselves.
    let turn = x1 + 20.0;
    let path = if (y2 - y1).abs() < f64::EPSILON {
        format!("M{x1:.1} {y1:.1}H{x2:.1}")
    } else {
        let (before, after) = (y2 - 8.0, turn + 8.0);
        format!("M{x1:.1} {y1:.1}H{turn:.1}V{before:.1}Q{turn:.1} {y2:.1} {after:.1} {y2:.1}H{x2:.1}")
    };
    let _ = writeln!(body, r#"<path class="wire" d="{path}"/>"#);
    let _ = writeln!(body, r#"<path class="tip" d="M{:.1} {y2:.1}l-7 -4v8z"/>"#, to.x - 1.0);
    if !to.wire.is_empty() {
        let x = x2 - 6.0;
        let _ = writeln!(
            body,
            r#"<text class="soft" x="{x:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            y2 - 6.0,
            escape(&cut(&to.wire))
        );
    }
}

fn draw_block(block: &Block, role: Role, body: &mut String) {
    let Block { x, y, width, height, name, subtitle, details, .. } = block;
    let tip: Vec<&str> =
        [name.as_str(), subtitle].into_iter().chain(details.iter().map(|d| d.text.as_str())).collect();
    let _ = writeln!(
        body,
        r#"<g transform="translate({x:.1} {y:.1})"><title>{}</title><rect class="box" width="{width:.1}" height="{height:.1}" rx="6"/>"#,
        escape(&tip.join("\n"))
    );
    let _ = writeln!(
        body,
        r#"<path class="{}" d="M6 0h-0a6 6 0 0 0-6 6v{:.1}a6 6 0 0 0 6 6z"/>"#,
        role.name(),
        height - 12.0
    );
    let _ = writeln!(body, r#"<text class="name" x="{INDENT}" y="21">{}</text>"#, escape(&cut(name)));
    let _ = writeln!(body, r#"<text class="soft" x="{INDENT}" y="39">{}</text>"#, escape(&cut(subtitle)));
    for (row, detail) in details.iter().enumerate() {
        let y = TITLE + row as f64 * LINE;
        icon(detail.icon, INDENT, y + 2.0, body);
        let (x, y) = (INDENT + ICON, y + 12.0);
        let _ = writeln!(body, r#"<text x="{x}" y="{y:.1}">{}</text>"#, escape(&cut(&detail.text)));
    }
    body.push_str("</g>\n");
}

/// A shape of 12 by 12: a drum for the store, an arrow of entries for the log, a hexagon for live state.
fn icon(icon: Icon, x: f64, y: f64, body: &mut String) {
    let (class, path) = match icon {
        Icon::Level(Level::Store) => ("icon", "M1 2.5a5 2 0 0 1 10 0v7a5 2 0 0 1-10 0zM1 2.5a5 2 0 0 0 10 0"),
        Icon::Level(Level::Log) => ("icon", "M.5 2.5h8l3 3.5-3 3.5h-8zM3.5 2.5v7M6.5 2.5v7"),
        Icon::Level(Level::Live) => ("icon", "M3.2 1h5.6L11.6 6 8.8 11H3.2L.4 6z"),
        Icon::Refused => ("icon bad", "M2.5 2.5l7 7M9.5 2.5l-7 7"),
        Icon::Answer => ("icon", "M10.5 2v4.5h-9M4.5 3.5l-3 3 3 3"),
    };
    let _ = write!(body, r#"<path class="{class}" transform="translate({x:.1} {y:.1})" d="{path}"/>"#);
}

fn draw_legend(top: f64, body: &mut String) {
    let _ = write!(body, r#"<g transform="translate({:.1} {top:.1})">"#, MARGIN + PADDING);
    let mut x = 0.0;
    for role in [Role::Source, Role::Transform, Role::Sink] {
        let _ = write!(body, r#"<rect class="{}" x="{x}" y="1" width="5" height="12" rx="2"/>"#, role.name());
        let _ = write!(body, r#"<text class="soft" x="{}" y="11">{}</text>"#, x + 12.0, role.name());
        x += LEGEND_STEP;
    }
    for level in [Level::Store, Level::Log, Level::Live] {
        icon(Icon::Level(level), x, 1.0, body);
        let _ = write!(body, r#"<text class="soft" x="{}" y="11">{}</text>"#, x + ICON, level.name());
        x += CHARACTER * level.name().len() as f64 + 50.0;
    }
    body.push_str("</g>\n");
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML has no way to write these.
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
