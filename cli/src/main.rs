//! The `courant` command.

use std::process::ExitCode;

use clap::Parser as _;
use courant::args::Cli;
use courant::{commands, exit};

/// Batches are allocated and freed together: with glibc's allocator the same pipeline runs at 0.6 of the rate
/// (`docs/performance.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match commands::execute(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::code_for(&error),
    }
}
