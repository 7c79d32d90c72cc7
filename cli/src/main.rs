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
    match commands::execute(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::code_for(&error),
    }
}
