//! The reference page, `docs/stages.md`.

use std::fmt::Write as _;

use courant_pipeline::StageSpec;
use courant_pipeline::config::StageEntry;

use super::fields::{Field, fields};
use super::{by_role, effect, gives, takes};

const HEAD: &str = "# Stage kinds

Made from the stages' own declarations by `courant stages --markdown`; a test compares them.
";

/// Every kind, and the keys that all of them accept, as Markdown.
pub fn reference(specs: &[&'static StageSpec]) -> String {
    let mut page = HEAD.to_owned();
    let groups = by_role(specs);
    page.push_str("\n| kind | role | takes | gives | |\n|---|---|---|---|---|\n");
    for spec in groups.iter().flat_map(|(_, members)| members) {
        let (role, takes, gives) = (spec.role.name(), takes(spec), gives(spec));
        let _ = writeln!(page, "| `{}` | {role} | {takes} | {gives} | {} |", spec.kind, cell(spec.summary));
    }
    page.push_str("\n## Keys every stage accepts\n\n");
    let mut keys = fields(schemars::schema_for!(StageEntry).as_value());
    keys.retain(|field| field.key != "kind" && field.key != "params");
    table(&keys, &mut page);
    for (heading, members) in groups {
        let _ = writeln!(page, "\n## {}{}", heading[..1].to_uppercase(), &heading[1..]);
        for spec in members {
            section(spec, &mut page);
        }
    }
    page
}

fn section(spec: &StageSpec, page: &mut String) {
    let _ = writeln!(page, "\n### `{}` ({})\n", spec.kind, spec.role.name());
    let _ = writeln!(page, "{}\n", spec.summary);
    let _ = writeln!(page, "Takes {}, gives {}. Effect: {}.\n", takes(spec), gives(spec), effect(spec));
    let fields = fields((spec.schema)().as_value());
    if fields.is_empty() {
        page.push_str("No params.\n");
    } else {
        table(&fields, page);
    }
    if !spec.example.trim().is_empty() {
        let _ = writeln!(page, "\n```toml\n{}\n```", spec.example.trim());
    }
}

fn table(fields: &[Field], page: &mut String) {
    page.push_str("| key | type | default | |\n|---|---|---|---|\n");
    for field in fields {
        let default = match (&field.default, field.required) {
            (Some(default), _) => format!("`{}`", code(default)),
            (None, true) => "required".to_owned(),
            (None, false) => String::new(),
        };
        let mut docs = cell(&field.docs);
        for (value, meaning) in &field.choices {
            let _ = write!(docs, "<br>`{}`: {}", code(value), cell(meaning));
        }
        let _ = writeln!(page, "| `{}` | {} | {default} | {docs} |", code(&field.key), cell(&field.kind));
    }
}

/// Text in a table: one line, no cell borders, no HTML of its own. Code spans show what they hold as it is.
fn cell(text: &str) -> String {
    let line = text.replace('|', "\\|").replace('\n', " ");
    let part = |(index, part): (usize, &str)| match index % 2 {
        0 => part.replace('<', "&lt;"),
        _ => part.to_owned(),
    };
    line.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
}

/// A code span in a table: only borders and ticks matter.
fn code(text: &str) -> String {
    text.replace('|', "\\|").replace('`', "'")
}
