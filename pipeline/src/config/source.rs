//! The files of a configuration: their text, their syntax tree with spans, and positions in them.
//!
//! figment merges values and forgets where they stood. Every file is therefore kept beside the merged value,
//! a [`Spot`] remembers a span in one of them, and a line and column are worked out only for what is
//! reported.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use toml_edit::{Document, Item, TableLike, Value};

use super::diagnostic::{Origin, Snippet};
use super::secret;

/// Index of a file in [`Sources`], in the order they were read.
pub(super) type FileId = usize;

/// Where a key or a value stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Spot {
    File(FileId, SpanStart, SpanEnd),
    Env(Arc<str>),
    Default,
}

type SpanStart = usize;
type SpanEnd = usize;

impl Spot {
    pub(super) fn file(file: FileId, span: Range<usize>) -> Self {
        Self::File(file, span.start, span.end)
    }
}

/// What a file is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileRole {
    Config,
    /// `NAME.test.toml`: `[[test]]` tables only.
    Tests,
}

pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    pub(super) role: FileRole,
    pub(super) text: Arc<str>,
    /// None if its syntax is broken.
    pub(super) document: Option<Document<Arc<str>>>,
    line_starts: Vec<usize>,
    /// Spans that must not be shown, in order.
    secrets: Vec<Range<usize>>,
}

impl SourceFile {
    /// Keeps a file and parses it; the error is the reason and the place.
    pub(super) fn parse(path: PathBuf, role: FileRole, text: &str) -> (Self, Option<(String, Range<usize>)>) {
        let text: Arc<str> = Arc::from(text);
        let (document, error) = match Document::parse(Arc::clone(&text)) {
            Ok(document) => (Some(document), None),
            Err(error) => (None, Some((error.message().to_owned(), error.span().unwrap_or(0..0)))),
        };
        let mut secrets = match &document {
            Some(document) => secret_spans(document.as_table()),
            None => secret::secret_lines(&text),
        };
        secrets.extend(secret::url_passwords(&text));
        let secrets = without_overlaps(secrets);
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        (Self { path, role, text, document, line_starts, secrets }, error)
    }

    fn origin(&self, span: Range<usize>) -> Origin {
        let start = self.char_boundary(span.start);
        let line = self.line_starts.partition_point(|line_start| *line_start <= start) - 1;
        let line_start = self.line_starts[line];
        let column = self.text[line_start..start].chars().count();
        Origin::File {
            path: self.path.clone(),
            line: line + 1,
            column: column + 1,
            // The very start stands for the file as a whole.
            snippet: match span {
                Range { start: 0, end: 0 } => Snippet::default(),
                span => self.snippet(line, start..self.char_boundary(span.end).max(start)),
            },
        }
    }

    fn char_boundary(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        (0..=offset).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }

    /// The line around a span that starts in it.
    fn snippet(&self, line: usize, span: Range<usize>) -> Snippet {
        let start = self.line_starts[line];
        let end = self.line_starts.get(line + 1).map_or(self.text.len(), |next| next - 1);
        let end = start + self.text[start..end].trim_end_matches('\r').len();
        let mark = span.start.min(end)..span.end.min(end);
        let from =
            if mark.start - start > CONTEXT { self.char_boundary(mark.start - CONTEXT) } else { start };
        let to = self.char_boundary(end.min(mark.start + 2 * CONTEXT));
        let mut snippet = Snippet::default();
        if from > start {
            snippet.text.push('…');
        }
        snippet.text.push_str(&self.shown(from..mark.start));
        snippet.start = snippet.text.chars().count();
        snippet.text.push_str(&self.shown(mark.start..mark.end.min(to)));
        snippet.width = snippet.text.chars().count() - snippet.start;
        snippet.text.push_str(&self.shown(mark.end.min(to)..to));
        if to < end {
            snippet.text.push('…');
        }
        snippet
    }

    /// Text as a terminal may show it: secrets masked, controls replaced, a tab as wide as any character.
    fn shown(&self, range: Range<usize>) -> String {
        let mut text = String::new();
        let mut at = range.start;
        let first = self.secrets.partition_point(|secret| secret.end <= range.start);
        for secret in self.secrets[first..].iter().take_while(|secret| secret.start < range.end) {
            text.push_str(&self.text[at..secret.start.max(at)]);
            text.push_str(secret::MASK);
            at = secret.end.clamp(at, range.end);
        }
        text.push_str(&self.text[at..range.end.max(at)]);
        text.chars().map(printable).collect()
    }
}

/// Bytes of a line shown before the marked part, and twice as many after it: a terminal's width.
const CONTEXT: usize = 80;

fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// A URL with a password inside a secret value is one span, so that it is masked once.
fn without_overlaps(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_by_key(|span| span.start);
    let mut apart: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        match apart.last_mut() {
            Some(last) if span.start < last.end => last.end = last.end.max(span.end),
            _ => apart.push(span),
        }
    }
    apart
}

fn secret_spans(root: &dyn TableLike) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    for (key, item) in root.iter() {
        collect_secrets(item, secret::is_secret(key), &mut spans);
    }
    spans
}

fn collect_secrets(item: &Item, secret: bool, spans: &mut Vec<Range<usize>>) {
    if let Some(table) = item.as_table_like() {
        for (key, item) in table.iter() {
            collect_secrets(item, secret || secret::is_secret(key), spans);
        }
    } else if let Some(tables) = item.as_array_of_tables() {
        for (key, item) in tables.iter().flat_map(toml_edit::Table::iter) {
            collect_secrets(item, secret || secret::is_secret(key), spans);
        }
    } else if let Some(value) = item.as_value() {
        collect_secret_values(value, secret, spans);
    }
}

fn collect_secret_values(value: &Value, secret: bool, spans: &mut Vec<Range<usize>>) {
    match value {
        Value::Array(array) if !secret => {
            for value in array {
                collect_secret_values(value, secret, spans);
            }
        }
        Value::InlineTable(table) if !secret => {
            for (key, value) in table {
                collect_secret_values(value, secret::is_secret(key), spans);
            }
        }
        value if secret => spans.extend(value.span()),
        _ => {}
    }
}

/// Every file of one load.
#[derive(Default)]
pub(super) struct Sources(pub(super) Vec<SourceFile>);

impl Sources {
    pub(super) fn origin(&self, spot: &Spot) -> Origin {
        match spot {
            Spot::File(file, start, end) => self.0[*file].origin(*start..*end),
            Spot::Env(variable) => Origin::Env { variable: variable.to_string() },
            Spot::Default => Origin::Default,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin_of(text: &str, marked: &str) -> (usize, usize, Snippet) {
        let (file, _) = SourceFile::parse("x.toml".into(), FileRole::Config, text);
        let start = text.find(marked).unwrap();
        match file.origin(start..start + marked.len()) {
            Origin::File { line, column, snippet, .. } => (line, column, snippet),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn columns_count_characters_and_lines_end_in_crlf() {
        let (line, column, snippet) = origin_of("a = 1\r\n\"ключ\" = \"日本\"\r\nb = 2\r\n", "\"日本\"");
        assert_eq!((line, column), (2, 10));
        assert_eq!(snippet.text, "\"ключ\" = \"日本\"");
        assert_eq!((snippet.start, snippet.width), (9, 4));
    }

    #[test]
    fn secrets_are_not_in_the_snippet() {
        let (_, _, snippet) = origin_of("auth = { secret = \"hunter2\", algo = 1 }", "algo");
        assert_eq!(snippet.text, "auth = { secret = ***, algo = 1 }");
        assert_eq!(&snippet.text[snippet.start..snippet.start + snippet.width], "algo");
        let (_, _, snippet) = origin_of("[secrets]\njwt = \"hunter2\"", "\"hunter2\"");
        assert_eq!((snippet.text.as_str(), snippet.start, snippet.width), ("jwt = ***", 6, 3));
    }

    #[test]
    fn long_lines_are_cut_around_the_mark() {
        let text = format!(
            "a = \"{}\"\nb = [{}7, {}]",
            "x".repeat(1 << 20),
            "1, ".repeat(99999),
            "1, ".repeat(99999)
        );
        let (line, _, snippet) = origin_of(&text, "7");
        assert_eq!(line, 2);
        assert!(snippet.text.len() < 400, "{}", snippet.text.len());
        assert_eq!(snippet.text.chars().nth(snippet.start), Some('7'));
    }
}
