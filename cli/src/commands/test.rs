//! `courant test`: runs the tests written beside the pipelines.

use std::path::Path;

use anyhow::bail;

use super::say;
use crate::exit::Exit;
use crate::testing::{self, Outcome};
use crate::{args, settings};

pub(super) async fn run(file: &Path, options: &args::Test) -> anyhow::Result<()> {
    let loaded = settings::load(file)?;
    let wanted = |name: &str| options.name.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let (mut passed, mut failed, mut others) = (0, 0, Vec::new());
    for table in &loaded.tests {
        let test: testing::TestEntry = serde_json::from_value(table.value.clone())?;
        if !wanted(&test.name) {
            others.push(format!("`{}`", test.name));
            continue;
        }
        match testing::run(&test, &loaded.topologies, options.timeout.0).await {
            Outcome::Passed => {
                passed += 1;
                say(&format!("ok      {}", test.name))?;
            }
            Outcome::Failed(why) => {
                failed += 1;
                say(&format!("FAILED  {} ({})\n{}", test.name, place(&table.origin), indent(&why)))?;
            }
        }
    }
    match &options.name {
        _ if passed + failed > 0 => {}
        Some(part) if !others.is_empty() => {
            bail!("no test's name contains `{part}`; there are: {}", others.join(", "));
        }
        _ => bail!("no test to run; write a `[[test]]` in the file, or in {} beside it", beside(file)),
    }
    say(&format!("\n{passed} passed, {failed} failed"))?;
    if failed > 0 { Err(Exit::TestsFailed.into()) } else { Ok(()) }
}

fn place(origin: &courant_pipeline::config::Origin) -> String {
    match origin {
        courant_pipeline::config::Origin::File { path, line, .. } => format!("{}:{line}", path.display()),
        _ => "given by the environment".to_owned(),
    }
}

fn beside(file: &Path) -> String {
    file.with_extension("test.toml").display().to_string()
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("        {line}\n")).collect()
}
