//! The `courant` command.

use std::process::ExitCode;

use clap::Parser as _;
use courant::args::Cli;
use courant::{commands, exit};

/// Batches are allocated and freed together, often by another thread: glibc's allocator takes twice the time for
/// that (`docs/performance.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match runtime(&cli).and_then(|runtime| runtime.block_on(commands::execute(cli))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::code_for(&error),
    }
}

/// A worker per core for the process that runs pipelines; benchmarks make their own.
fn runtime(_: &Cli) -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
