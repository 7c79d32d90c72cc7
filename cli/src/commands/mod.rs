//! One file per command: arguments in, library calls out.

mod bench;
mod check;
mod counters;
mod data;
mod dead_letters;
mod iam;
mod inventory;
mod plan;
mod positions;
mod progress;
mod reach;
mod reconcile;
mod replay;
mod table;
mod tables;
mod tap;
mod test;
mod topics;
mod verify;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::CommandFactory as _;
use courant_edge::admin::AdminClient;
use courant_pipeline::config::Topology;

use crate::args::{self, Cli, Command};
use crate::settings;
use crate::{app, describe, graph, top};

/// Does what the command line says.
pub fn execute(cli: Cli) -> anyhow::Result<()> {
    let command = cli.command.unwrap_or(Command::Run(args::Run::default()));
    if let Command::Bench(command) = &command {
        return bench::run(&cli.config, command); // with runtimes of its own, of one core and of two
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(execute_on(cli.config, command))
}

async fn execute_on(file: PathBuf, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(options) => {
            let loaded = load_to_run(&file)?;
            app::run(file, loaded, options).await
        }
        Command::Check(options) => check::run(&file, &options),
        Command::Plan(options) => plan::run(&file, &options).await,
        Command::Graph(options) => draw(&file, &options),
        Command::Stages(options) => stages(&options),
        Command::Schema => schema(),
        Command::Test(options) => test::run(&file, &options).await,
        Command::Tap(options) => tap::run(&admin(&file)?, &options).await,
        Command::Top(options) if options.once => say(&top::once(&admin(&file)?, options.every.0).await?),
        Command::Top(options) => top::run(admin(&file)?, options.every.0).await,
        Command::DeadLetters(command) => dead_letters::run(&file, command).await,
        Command::Positions(command) => positions::run(&file, command).await,
        Command::Tables(command) => tables::run(&file, command).await,
        Command::Topics(command) => topics::run(&file, command).await,
        Command::Iam(options) => iam::run(&file, &options),
        Command::Data(command) => data::run(&file, command).await,
        Command::Verify(options) => verify::run(&file, options).await,
        Command::Replay(options) => replay::run(&file, options).await,
        Command::Table(options) => table::run(&file, options).await,
        Command::Reconcile(options) => reconcile::run(&file, options).await,
        Command::Counters(command) => counters::run(&file, command).await,
        Command::Reload => reload(&admin(&file)?).await,
        Command::Stop => Ok(admin(&file)?.stop().await?),
        Command::Bench(_) => unreachable!("has runtimes of its own"),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "courant", &mut script);
            say(&String::from_utf8_lossy(&script))
        }
    }
}

fn load_to_run(file: &Path) -> anyhow::Result<courant_pipeline::config::Loaded> {
    if !file.exists() {
        bail!(
            "there is no `{}` here; name another file with --config, or write a first pipeline:\n\n{}",
            file.display(),
            FIRST_PIPELINE
        );
    }
    Ok(settings::load(file)?)
}

const FIRST_PIPELINE: &str = r#"  [[pipeline]]
  name = "hello"
  stage = [
    { kind = "generate", params = { rate = 1, payload = '{hello: $n}' } },
    { kind = "stdout" },
  ]"#;

/// The running process of a configuration, found by its data folder.
fn admin(file: &Path) -> anyhow::Result<AdminClient> {
    Ok(AdminClient::new(settings::runtime_config(file)?.admin_socket()))
}

fn draw(file: &Path, options: &args::Graph) -> anyhow::Result<()> {
    let topologies = named(settings::load(file)?.topologies, &options.pipelines)?;
    say(&graph::draw(options.format, &topologies))
}

/// The pipelines of these names; all if none is named.
fn named(mut topologies: Vec<Topology>, wanted: &[String]) -> anyhow::Result<Vec<Topology>> {
    let names: Vec<String> = topologies.iter().map(|topology| topology.name.to_string()).collect();
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(name)) {
        bail!("the file declares no pipeline `{unknown}`; it declares: {}", names.join(", "));
    }
    if !wanted.is_empty() {
        topologies.retain(|topology| wanted.iter().any(|name| **name == *topology.name));
    }
    Ok(topologies)
}

fn stages(options: &args::Stages) -> anyhow::Result<()> {
    let text = match &options.kind {
        Some(kind) => describe::page(courant_stages::STAGES, kind)?,
        None if options.markdown => describe::reference(courant_stages::STAGES),
        None => describe::list(courant_stages::STAGES),
    };
    say(&text)
}

fn schema() -> anyhow::Result<()> {
    say(&serde_json::to_string_pretty(settings::loader().schema().as_value())?)
}

async fn reload(admin: &AdminClient) -> anyhow::Result<()> {
    let report = admin.reload().await?;
    let line = |what: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!("{what:<10} {}\n", names.join(", ")),
    };
    let text = line("started", &report.started)
        + &line("restarted", &report.restarted)
        + &line("stopped", &report.stopped)
        + &line("unchanged", &report.unchanged);
    say(text.trim_end())
}

/// Prints to standard output. A reader that has gone away is no error of ours.
fn say(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{}", text.trim_end_matches('\n')) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        said => Ok(said?),
    }
}
