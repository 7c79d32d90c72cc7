//! One kind for the terminal.

use std::fmt::Write as _;

use courant_pipeline::StageSpec;

use super::fields::{Field, fields};
use super::{effect, gives, takes};

/// Lines stay readable in a terminal of 80 columns.
const WIDTH: usize = 78;

pub(super) fn write(spec: &StageSpec) -> String {
    let mut page = format!("{} ({})\n", spec.kind, spec.role.name());
    if !spec.summary.is_empty() {
        let _ = writeln!(page, "\n{}", wrap(spec.summary, 0));
    }
    let _ = writeln!(page, "\ntakes   {}\ngives   {}\neffect  {}", takes(spec), gives(spec), effect(spec));
    let fields = fields((spec.schema)().as_value());
    page.push_str("\nparams\n");
    if fields.is_empty() {
        page.push_str("  none\n");
    }
    for field in &fields {
        write_field(field, &mut page);
    }
    if !spec.example.trim().is_empty() {
        page.push_str("\nexample\n");
        for line in spec.example.trim().lines() {
            let _ = writeln!(page, "  {line}");
        }
    }
    page
}

fn write_field(field: &Field, page: &mut String) {
    let default = match (&field.default, field.required) {
        (Some(default), _) => format!(", default {default}"),
        (None, true) => ", required".to_owned(),
        (None, false) => String::new(),
    };
    let _ = writeln!(page, "  {}  {}{default}", field.key, field.kind);
    if !field.docs.is_empty() {
        let _ = writeln!(page, "{}", wrap(&field.docs, 6));
    }
    for (value, docs) in &field.choices {
        let _ = writeln!(page, "{}", wrap(&format!("{value}: {docs}"), 8));
    }
}

/// Breaks lines between words, each behind `indent` spaces.
fn wrap(text: &str, indent: usize) -> String {
    let margin = " ".repeat(indent);
    let mut lines = vec![margin.clone()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        let started = line.len() > indent;
        if started && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{margin}{word}"));
        } else {
            line.push_str(if started { " " } else { "" });
            line.push_str(word);
        }
    }
    lines.join("\n")
}
