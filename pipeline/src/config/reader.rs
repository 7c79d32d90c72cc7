//! Reads the file, what it includes and the tests beside them.
//!
//! Each file is read once, however many patterns match it. A file that cannot be read or parsed is reported
//! and the others are still read, so that all mistakes show at once. Only plain files of a sensible size are
//! opened: an include of a device or a pipe must not hang the check.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use toml_edit::Item;

use super::glob;
use super::report::Report;
use super::source::{FileId, FileRole, SourceFile, Sources, Spot};
use super::suggest::quote;

/// A hand-written file has kilobytes; more is a mistake, such as an include of the data folder.
const LARGEST_FILE: u64 = 16 << 20;
/// Chains of includes longer than this are generated or wrong.
const DEEPEST_INCLUDE: usize = 32;
const MOST_FILES: usize = 1000;

/// Whether the `NAME.test.toml` beside each file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tests {
    Read,
    Leave,
}

pub(super) struct Reader<'r> {
    pub(super) sources: Sources,
    /// A file could not be read or parsed.
    pub(super) incomplete: bool,
    tests: Tests,
    report: &'r mut Report,
    /// Of every file that was asked for: its name, and its content or that it could not be read.
    asked: DefaultHasher,
    seen: BTreeSet<PathBuf>,
    /// The files whose includes are being read, outermost first.
    open: Vec<PathBuf>,
}

impl<'r> Reader<'r> {
    pub(super) fn new(tests: Tests, report: &'r mut Report) -> Self {
        Self {
            sources: Sources::default(),
            incomplete: false,
            tests,
            report,
            asked: DefaultHasher::new(),
            seen: BTreeSet::new(),
            open: Vec::new(),
        }
    }

    /// The same as long as reading again would find the same.
    pub(super) fn fingerprint(&self) -> u64 {
        self.asked.finish()
    }

    fn fetch(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let content = read_bounded(path);
        path.hash(&mut self.asked);
        content.as_deref().ok().hash(&mut self.asked);
        content
    }

    pub(super) fn read_file(&mut self, path: &Path) {
        match self.fetch(path) {
            Ok(bytes) => self.read_bytes(path, &bytes),
            Err(error) => {
                let file = self.keep(path, FileRole::Config, "");
                self.fail(
                    &Spot::file(file, 0..0),
                    format!("cannot read {}: {error}", quote_path(path)),
                    None,
                );
            }
        }
    }

    /// Goes on with a file's content, its includes and its tests.
    pub(super) fn read_bytes(&mut self, path: &Path, bytes: &[u8]) {
        let identity = identity_of(path);
        self.seen.insert(identity.clone());
        let file = self.keep_bytes(path, FileRole::Config, bytes);
        self.open.push(identity);
        self.read_includes(file);
        self.open.pop();
        if self.tests == Tests::Read {
            self.read_tests(path);
        }
    }

    fn keep_bytes(&mut self, path: &Path, role: FileRole, bytes: &[u8]) -> FileId {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.keep(path, role, text.strip_prefix('\u{feff}').unwrap_or(text)),
            Err(error) => {
                // Nothing of it can be trusted, so only the line is shown.
                let text = String::from_utf8_lossy(bytes);
                let (mut source, _) = SourceFile::parse(path.to_owned(), role, &text);
                source.document = None;
                let file = self.sources.0.len();
                self.sources.0.push(source);
                let at = error.valid_up_to();
                self.fail(&Spot::file(file, at..at + 1), "the file is not UTF-8".to_owned(), None);
                file
            }
        }
    }

    fn keep(&mut self, path: &Path, role: FileRole, text: &str) -> FileId {
        let (source, error) = SourceFile::parse(path.to_owned(), role, text);
        let file = self.sources.0.len();
        self.sources.0.push(source);
        if let Some((message, span)) = error {
            self.fail(&Spot::file(file, span), message, None);
        }
        file
    }

    fn fail(&mut self, spot: &Spot, message: String, help: Option<String>) {
        self.incomplete = true;
        self.report.error(spot, "", message, help);
    }

    fn read_includes(&mut self, file: FileId) {
        for (pattern, spot) in self.patterns_of(file) {
            let path = self.sources.0[file].path.clone();
            let base = path.parent().unwrap_or(Path::new(""));
            if !glob::is_pattern(&pattern) {
                self.include(&base.join(&pattern), &spot);
                continue;
            }
            match glob::expand(base, &pattern) {
                Ok(found) if found.is_empty() => {
                    let message = format!("{} matches no file", quote(&pattern));
                    self.report.warning(&spot, "include", message, None);
                }
                // A pattern that matches the file it stands in means the others.
                Ok(found) => found
                    .iter()
                    .filter(|found| identity_of(found) != identity_of(&path))
                    .for_each(|found| self.include(found, &spot)),
                Err(error) => self.fail(&spot, format!("cannot list {}: {error}", quote(&pattern)), None),
            }
        }
    }

    /// The `include` of a file as patterns with their places.
    fn patterns_of(&mut self, file: FileId) -> Vec<(String, Spot)> {
        let Some(item) = self.sources.0[file].document.as_ref().and_then(|document| document.get("include"))
        else {
            return Vec::new();
        };
        let spot_of = |span: Option<std::ops::Range<usize>>| Spot::file(file, span.unwrap_or(0..0));
        let mut patterns = Vec::new();
        let mut wrong = Vec::new();
        match item.as_array() {
            None => wrong.push(spot_of(item.span())),
            Some(array) => {
                for value in array {
                    match value.as_str() {
                        Some(pattern) => patterns.push((pattern.to_owned(), spot_of(value.span()))),
                        None => wrong.push(spot_of(value.span())),
                    }
                }
            }
        }
        for spot in wrong {
            let help = Some("write it like `include = [\"flows/*.toml\"]`".to_owned());
            self.report.error(&spot, "include", "`include` must be an array of file names".to_owned(), help);
        }
        patterns
    }

    fn include(&mut self, path: &Path, spot: &Spot) {
        let identity = identity_of(path);
        if self.open.contains(&identity) {
            let message = format!("{} includes itself, directly or through other files", quote_path(path));
            self.report.error(spot, "include", message, None);
        } else if self.open.len() >= DEEPEST_INCLUDE || self.sources.0.len() >= MOST_FILES {
            let message = format!("too many includes: at most {DEEPEST_INCLUDE} deep and {MOST_FILES} files");
            self.report.error(spot, "include", message, None);
        } else if !self.seen.contains(&identity) {
            match self.fetch(path) {
                Ok(bytes) => self.read_bytes(path, &bytes),
                Err(error) => {
                    self.incomplete = true;
                    let message = format!("cannot read {}: {error}", quote_path(path));
                    self.report.error(spot, "include", message, None);
                }
            }
        }
    }

    fn read_tests(&mut self, path: &Path) {
        let path = path.with_extension("test.toml");
        if !path.is_file() || !self.seen.insert(identity_of(&path)) {
            return;
        }
        match self.fetch(&path) {
            Ok(bytes) => {
                let file = self.keep_bytes(&path, FileRole::Tests, &bytes);
                self.refuse_other_than_tests(file);
            }
            Err(error) => {
                let file = self.keep(&path, FileRole::Tests, "");
                self.fail(
                    &Spot::file(file, 0..0),
                    format!("cannot read {}: {error}", quote_path(&path)),
                    None,
                );
            }
        }
    }

    fn refuse_other_than_tests(&mut self, file: FileId) {
        let Some(document) = &self.sources.0[file].document else { return };
        for (key, item) in document.iter().filter(|(key, _)| *key != "test") {
            let span = document.key(key).and_then(toml_edit::Key::span).or_else(|| Item::span(item));
            let message = format!("{} does not belong in a file of tests", quote(key));
            let help = Some("such a file holds `[[test]]` tables only".to_owned());
            self.report.error(&Spot::file(file, span.unwrap_or(0..0)), key, message, help);
        }
    }
}

fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

/// The same for two ways to write one path; links are followed where the file exists.
fn identity_of(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let about = std::fs::metadata(path)?;
    if !about.is_file() {
        return Err(io::Error::other("not a plain file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(io::Error::other(format!("larger than {} MiB", LARGEST_FILE >> 20)));
    }
    Ok(bytes)
}
