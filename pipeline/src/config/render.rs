//! Diagnostics as text, in the form rustc made familiar.

use std::fmt::Write as _;

use super::diagnostic::{Diagnostic, Origin, Severity, Snippet};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Ansi,
}

const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[1;33m";
const BLUE: &str = "\x1b[1;34m";
const BOLD: &str = "\x1b[1m";
const RESET: &str = "\x1b[0m";

impl Style {
    fn paint(self, colour: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Ansi => format!("{colour}{text}{RESET}"),
        }
    }
}

/// One diagnostic, ending in a newline.
pub fn render(found: &Diagnostic, style: Style) -> String {
    let colour = match found.severity {
        Severity::Error => RED,
        Severity::Warning => YELLOW,
    };
    let severity = style.paint(colour, found.severity.name());
    let mut text = format!("{severity}{}\n", style.paint(BOLD, &format!(": {}", found.message)));
    let gutter = gutter_width(&found.origin);
    render_place(&mut text, found, gutter, style);
    if let Origin::File { line, snippet, .. } = &found.origin
        && !snippet.text.is_empty()
    {
        render_snippet(&mut text, *line, snippet, (gutter, colour, style));
    }
    if let Some(help) = &found.help {
        let _ = writeln!(text, "{:gutter$} {} help: {help}", "", style.paint(BLUE, "="));
    }
    text
}

fn gutter_width(origin: &Origin) -> usize {
    match origin {
        Origin::File { line, .. } => line.to_string().len(),
        Origin::Env { .. } | Origin::Default => 1,
    }
}

fn render_place(text: &mut String, found: &Diagnostic, gutter: usize, style: Style) {
    let place = found.origin.to_string();
    let _ = write!(text, "{:gutter$}{} {place}", "", style.paint(BLUE, "-->"));
    if !found.path.is_empty() {
        let _ = write!(text, " ({})", found.path);
    }
    text.push('\n');
}

fn render_snippet(
    text: &mut String,
    line: usize,
    snippet: &Snippet,
    (gutter, colour, style): (usize, &str, Style),
) {
    let bar = style.paint(BLUE, "|");
    let number = style.paint(BLUE, &line.to_string());
    let marks = style.paint(colour, &"^".repeat(snippet.width.max(1)));
    let _ = writeln!(text, "{:gutter$} {bar}", "");
    let _ = writeln!(text, "{number} {bar} {}", snippet.text);
    let _ = writeln!(text, "{:gutter$} {bar} {:start$}{marks}", "", "", start = snippet.start);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown_key() -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            origin: Origin::File {
                path: "pipelines.toml".into(),
                line: 12,
                column: 3,
                snippet: Snippet { text: "  topc = \"x\"".into(), start: 2, width: 4 },
            },
            path: "pipeline.ingest.stage[2].params.topc".into(),
            message: "unknown key `topc`".into(),
            help: Some("did you mean `topic`?".into()),
        }
    }

    #[test]
    fn plain_text_marks_the_place() {
        let expected = "\
error: unknown key `topc`
  --> pipelines.toml:12:3 (pipeline.ingest.stage[2].params.topc)
   |
12 |   topc = \"x\"
   |   ^^^^
   = help: did you mean `topic`?
";
        assert_eq!(render(&unknown_key(), Style::Plain), expected);
    }

    #[test]
    fn colours_only_add_escapes() {
        let mut coloured = render(&unknown_key(), Style::Ansi);
        assert!(coloured.starts_with("\x1b[1;31merror\x1b[0m"), "{coloured:?}");
        for code in [RED, BLUE, BOLD, RESET] {
            coloured = coloured.replace(code, "");
        }
        assert_eq!(coloured, render(&unknown_key(), Style::Plain));
    }

    #[test]
    fn editors_get_the_position_as_numbers() {
        let json = serde_json::to_value(unknown_key()).unwrap();
        assert_eq!(json["severity"], "error");
        assert_eq!(json["origin"]["from"], "file");
        assert_eq!(json["origin"]["line"], 12);
        assert_eq!(json["origin"]["snippet"]["width"], 4);
    }
}
