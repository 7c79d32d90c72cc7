//! Runbooks as somebody follows them: the commands of a page, run in its order, say what the page shows.
//!
//! A block of commands is marked ```` ```sh run ````, or `run=6` if it ends with that code; a block ```` ```text says ````
//! after it has what must be in the output. Everything before the first `##` and between is for people.

use std::path::PathBuf;

use crate::{Ended, Home, LIMIT, repository, until};

/// A page, and how far it was followed.
pub struct Runbook {
    name: String,
    sections: Vec<Section>,
}

struct Section {
    heading: String,
    blocks: Vec<Block>,
    is_followed: bool,
}

#[derive(Debug)]
struct Block {
    line: usize,
    code: i32,
    script: String,
    says: Vec<String>,
}

/// Whether what a section shows comes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comes {
    /// Its commands change something: each is run once.
    AtOnce,
    /// Its commands look: they are run again until they say what they should.
    InTime,
}

impl Runbook {
    /// A page of `docs/runbooks`.
    ///
    /// # Panics
    /// If it is not there, or not written as a runbook.
    pub fn open(name: &str) -> Self {
        let page = repository().join("docs/runbooks").join(name);
        let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name: name.to_owned(), sections: parse(name, &text) }
    }

    pub fn headings(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().map(|section| section.heading.as_str())
    }

    /// Runs the commands of a section in `home`, with these variables.
    ///
    /// # Panics
    /// If one of them does not say what the page shows.
    #[track_caller]
    pub fn follow(&mut self, home: &Home, heading: &str, comes: Comes, variables: &[(&str, &str)]) {
        let section = self.sections.iter_mut().find(|section| section.heading == heading);
        let section = section.unwrap_or_else(|| panic!("{} has no section `{heading}`", self.name));
        section.is_followed = true;
        for block in &section.blocks {
            let place = format!("docs/runbooks/{}:{}", self.name, block.line);
            let says_so = || {
                let ended = run(home, &block.script, variables);
                let is_met = block.is_met_by(&ended);
                if !is_met {
                    eprintln!("{place}: {block:?}, and it was {ended:?}");
                }
                is_met
            };
            match comes {
                Comes::AtOnce => assert!(says_so(), "{place}: it does not say what it should"),
                Comes::InTime => until(&place, LIMIT, || says_so().then_some(())),
            }
        }
    }

    /// Fails unless every section with commands was followed.
    ///
    /// # Panics
    /// If one was not.
    #[track_caller]
    pub fn end(self) {
        let left = self.sections.iter().filter(|section| !section.is_followed && !section.blocks.is_empty());
        let left: Vec<&str> = left.map(|section| section.heading.as_str()).collect();
        assert!(left.is_empty(), "{}: nobody followed {left:?}", self.name);
    }
}

impl Block {
    fn is_met_by(&self, ended: &Ended) -> bool {
        let said = format!("{}{}", ended.stdout, ended.stderr);
        ended.code == Some(self.code) && self.says.iter().all(|line| said.contains(line.as_str()))
    }
}

/// By a shell that ends at the first command that fails, with `courant` in its path.
fn run(home: &Home, script: &str, variables: &[(&str, &str)]) -> Ended {
    let mut folders = vec![home.path("bin")];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    std::fs::create_dir_all(&folders[0]).expect("the test's folder can be written to");
    let courant = folders[0].join("courant");
    if !courant.exists() {
        std::os::unix::fs::symlink(PathBuf::from(home.binary()), &courant).expect("a link can be made");
    }
    let mut command = home.prepare("sh", &["-eu", "-c", script]);
    command.env("PATH", std::env::join_paths(folders).expect("folders of a path have no colon"));
    command.envs(variables.iter().copied());
    home.finish(command)
}

fn parse(name: &str, text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut open: Option<(&str, usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => open = Some((kind, number + 1, String::new())),
            (Some((kind, at, body)), Some("")) => {
                let blocks = sections.last_mut().map(|section| &mut section.blocks);
                add(blocks, kind, *at, body).unwrap_or_else(|problem| panic!("{name}:{number}: {problem}"));
                open = None;
            }
            (Some((.., body)), _) => *body += &format!("{line}\n"),
            (None, None) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    let (heading, blocks) = (heading.to_owned(), Vec::new());
                    sections.push(Section { heading, blocks, is_followed: false });
                }
            }
        }
    }
    assert!(open.is_none(), "{name}: a block is not closed");
    sections
}

/// A block of another kind would be a command that nobody tries.
fn add(blocks: Option<&mut Vec<Block>>, kind: &str, line: usize, body: &str) -> Result<(), String> {
    let blocks = blocks.ok_or("a block before the first section")?;
    match kind.split_once(' ') {
        Some(("sh", run)) => {
            let code = match run.strip_prefix("run") {
                Some("") => 0,
                Some(code) => code.trim_start_matches('=').parse().map_err(|_| format!("`{kind}`"))?,
                None => return Err(format!("`{kind}` is no block that can be run")),
            };
            blocks.push(Block { line, code, script: body.to_owned(), says: Vec::new() });
        }
        Some(("text", "says")) => {
            let block = blocks.last_mut().ok_or("nothing is run before it")?;
            block.says = body.lines().map(str::to_owned).collect();
        }
        _ => return Err(format!("`{kind}` is neither `sh run` nor `text says`")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_what_they_say() {
        let page =
            "# P\n## Be sure\n```sh run=6\na\nb\n```\n```text says\nx\n```\ntext\n## Do\n```sh run\nc\n```\n";
        let sections = parse("page", page);
        let [sure, act] = &sections[..] else { panic!("two sections") };
        assert_eq!((sure.heading.as_str(), act.heading.as_str()), ("Be sure", "Do"));
        let block = &sure.blocks[0];
        assert_eq!((block.line, block.code, block.script.as_str()), (4, 6, "a\nb\n"));
        assert_eq!(block.says, ["x"]);
        assert_eq!((act.blocks[0].code, act.blocks[0].says.len()), (0, 0));
        let ended =
            |code, stdout: &str| Ended { code: Some(code), stdout: stdout.to_owned(), stderr: String::new() };
        assert!(block.is_met_by(&ended(6, "1 x 2")) && !block.is_met_by(&ended(0, "x")));
        assert!(!block.is_met_by(&ended(6, "y")));
    }

    #[test]
    fn a_command_that_nobody_tries_is_refused() {
        let mut blocks = Vec::new();
        assert!(add(Some(&mut blocks), "sh", 1, "ls").is_err());
        assert!(add(Some(&mut blocks), "text says", 1, "x").is_err());
        assert!(add(None, "sh run", 1, "ls").is_err());
    }
}
