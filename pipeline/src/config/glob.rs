//! `include` patterns: `*` and `?` within one level of folders.
//!
//! A crate would bring `**`, classes and its own error type for what is a loop over a folder's entries.

use std::io;
use std::path::{Path, PathBuf};

pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Files that match, sorted. Test files are left out: they come with the file they test.
pub(super) fn expand(base: &Path, pattern: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![base.to_owned()];
    let mut levels = Path::new(pattern).components().peekable();
    while let Some(level) = levels.next() {
        let name = level.as_os_str().to_string_lossy();
        let last = levels.peek().is_none();
        let mut below = Vec::new();
        for folder in &found {
            if is_pattern(&name) {
                below.extend(entries(folder, &name, last)?);
            } else {
                below.push(folder.join(&*name));
            }
        }
        found = below;
    }
    found.retain(|path| path.is_file());
    found.sort();
    Ok(found)
}

fn entries(folder: &Path, pattern: &str, last: bool) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        // A folder that is not there holds nothing that matches.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(found);
        }
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let hidden = name.starts_with('.') || (last && name.ends_with(".test.toml"));
        if !hidden && matches(pattern, &name) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Linear: a mismatch after a `*` only moves that star one character on.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        assert!(matches("*.toml", "a.toml"));
        assert!(matches("a*b*c", "aXbYbZc"));
        assert!(matches("flow-?.toml", "flow-1.toml"));
        assert!(!matches("*.toml", "a.toml.bak"));
        assert!(!matches("?", ""));
        assert!(!matches(&"a*".repeat(50), &"a".repeat(49)));
    }
}
