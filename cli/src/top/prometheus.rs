//! Prometheus' text format, as far as counters, gauges and histograms of one exporter need it.
//!
//! A line that makes no sense is left out rather than failing the view. The crate for this format brings a date
//! library and regular expressions for what are forty lines.

/// One line: a name, its labels and a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    pub(super) labels: Vec<(&'a str, String)>,
    pub(super) value: f64,
}

impl Line<'_> {
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.as_str())
    }
}

pub(super) fn parse(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(parse_line)
}

fn parse_line(line: &str) -> Option<Line<'_>> {
    let name_end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A timestamp may follow the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some(Line { name, labels, value })
}

/// Labels up to the closing brace, and what follows it.
fn parse_labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = parse_quoted(after.trim_start())?;
        labels.push((name.trim(), value));
        rest = after;
    }
}

/// A quoted value without its escapes, and what follows it.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('"')?;
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_nonsense_left_out() {
        let text = "# HELP x y\n# TYPE x counter\n\nx 1\nx{} 2 1700000000\n\
                    x{a=\"b c\", d = \"q\\\"\\\\\\n}\",} 3e2\n  y{le=\"+Inf\"} +Inf\nz NaN\n\
                    bad\nbad{a=\"b} 1\nbad{a} 1\nbad{a=\"b\"}\n{a=\"b\"} 1\nbad one\n";
        let lines: Vec<Line> = parse(text).collect();
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert_eq!((lines[0].name, lines[0].value), ("x", 1.0));
        assert_eq!((lines[1].labels.len(), lines[1].value), (0, 2.0));
        assert_eq!(lines[2].label("a"), Some("b c"));
        assert_eq!(lines[2].label("d"), Some("q\"\\\n}"));
        assert_eq!((lines[2].value, lines[2].label("e")), (300.0, None));
        assert!(lines[3].value.is_infinite() && lines[4].value.is_nan());
    }
}
