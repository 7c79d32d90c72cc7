//! From a stage's [`Problem`] to the place in the file.
//!
//! A stage knows its parameters as values and names a key and a byte inside a string. The key is looked up in
//! the tree; the byte is found by reading the string as TOML wrote it, so that an error in a multi-line `jq`
//! expression points into the line it is in.

use std::ops::Range;

use super::report::Report;
use super::secret;
use super::source::{Sources, Spot};
use super::tree::{Node, Value};
use super::walk::At;
use crate::spec::Problem;

/// Reports problems that a table's owner found, at the places they speak of.
pub(super) fn report_all(
    problems: Vec<Problem>,
    table: &Node,
    at: &At,
    sources: &Sources,
    report: &mut Report,
) {
    for problem in problems {
        let (node, below) = find(table, &problem.key, at);
        let spot = problem.offset.and_then(|offset| spot_inside(node, offset, sources));
        let message = without_secrets(problem.message, table);
        let help = problem.help.map(|help| without_secrets(help, table));
        report.error(&spot.unwrap_or_else(|| node.at.clone()), &below.path, message, help);
    }
}

/// The node a key path leads to, or the last one on the way; the path is the whole one.
fn find<'n>(node: &'n Node, key: &str, at: &At) -> (&'n Node, At) {
    let key = key.trim_start_matches('.');
    if key.is_empty() {
        return (node, at.clone());
    }
    if let Value::Array(nodes) = &node.value
        && let Some((index, rest)) = leading_index(key)
    {
        let below = at.index(index);
        return match nodes.get(index) {
            Some(element) => find(element, rest, &below),
            None => (node, below),
        };
    }
    // A name may itself contain dots, so the longest field that fits is meant.
    let fits = |name: &str| {
        key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let field = node.fields().iter().filter(|field| fits(&field.name)).max_by_key(|field| field.name.len());
    match field {
        Some(field) => find(&field.node, &key[field.name.len()..], &at.key(&field.name)),
        None => (node, key.split('.').fold(at.clone(), |at, key| at.key(key))),
    }
}

/// `[2].x` or `2.x` as 2 and the rest.
fn leading_index(key: &str) -> Option<(usize, &str)> {
    let digits = key.strip_prefix('[').unwrap_or(key);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let rest = &digits[end..];
    Some((digits[..end].parse().ok()?, rest.strip_prefix(']').unwrap_or(rest)))
}

fn spot_inside(node: &Node, offset: usize, sources: &Sources) -> Option<Spot> {
    let Spot::File(file, start, end) = node.at else { return None };
    let raw = sources.0.get(file)?.text.get(start..end)?;
    let inside = raw_range(raw, offset)?;
    Some(Spot::file(file, start + inside.start..start + inside.end))
}

/// Where the character at a byte of a string's value stands in the string as written, quotes included.
fn raw_range(raw: &str, offset: usize) -> Option<Range<usize>> {
    let quote = raw.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let multi_line = raw.len() >= 6 && raw.chars().take(3).all(|c| c == quote);
    let delimiter = if multi_line { 3 } else { 1 };
    let end = raw.len().checked_sub(delimiter)?;
    let mut at = delimiter;
    if multi_line {
        // A newline right after the quotes is not part of the value.
        at += if raw[at..].starts_with("\r\n") { 2 } else { usize::from(raw[at..].starts_with('\n')) };
    }
    let mut decoded = 0;
    while at < end {
        let (written, value) = next_piece(&raw[at..end], quote)?;
        if decoded + value > offset {
            return Some(at..at + written);
        }
        (at, decoded) = (at + written, decoded + value);
    }
    Some(end..end)
}

/// Bytes of the next character as written, and in the value.
fn next_piece(raw: &str, quote: char) -> Option<(usize, usize)> {
    let first = raw.chars().next()?;
    if quote == '\'' || first != '\\' {
        return Some((first.len_utf8(), first.len_utf8()));
    }
    let escape = raw[1..].chars().next()?;
    let digits = match escape {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        // A backslash at the end of a line takes the line break and the indentation with it.
        c if c.is_whitespace() => {
            let rest = raw[1..].trim_start();
            return Some((raw.len() - rest.len(), 0));
        }
        _ => return Some((1 + escape.len_utf8(), 1)),
    };
    let code = u32::from_str_radix(raw.get(2..2 + digits)?, 16).ok()?;
    Some((2 + digits, char::from_u32(code)?.len_utf8()))
}

/// A stage's message may quote its parameters; secrets among them are masked.
pub(super) fn without_secrets(message: String, table: &Node) -> String {
    let mut secrets = Vec::new();
    collect_secrets(table, false, &mut secrets);
    let masked = secrets.into_iter().fold(message, |message, secret| message.replace(secret, secret::MASK));
    secret::without_url_passwords(&masked)
}

fn collect_secrets<'n>(node: &'n Node, secret: bool, secrets: &mut Vec<&'n str>) {
    match &node.value {
        Value::Text(text) if secret && !text.is_empty() => secrets.push(text),
        Value::Table(fields) => fields.iter().for_each(|field| {
            collect_secrets(&field.node, secret || secret::is_secret(&field.name), secrets);
        }),
        Value::Array(nodes) => nodes.iter().for_each(|node| collect_secrets(node, secret, secrets)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every character of the value: the written piece it was found at.
    fn pieces(raw: &str) -> Vec<String> {
        let value: toml_edit::Value = raw.parse().unwrap();
        let value = value.as_str().unwrap();
        value.char_indices().map(|(at, _)| raw[raw_range(raw, at).unwrap()].to_owned()).collect()
    }

    #[test]
    fn offsets_follow_escapes_and_line_breaks() {
        assert_eq!(pieces("'a\\b'"), ["a", "\\", "b"]);
        assert_eq!(pieces(r#""a\t\u00e9é\\""#), ["a", "\\t", "\\u00e9", "é", "\\\\"]);
        assert_eq!(pieces("'''\nab\ncd'''"), ["a", "b", "\n", "c", "d"]);
        assert_eq!(pieces("\"\"\"a \\\n   b\"\"\""), ["a", " ", "b"]);
    }

    #[test]
    fn an_offset_at_the_end_is_the_closing_quote() {
        assert_eq!(raw_range("'ab'", 2), Some(3..3));
        assert_eq!(raw_range("12", 0), None);
    }
}
