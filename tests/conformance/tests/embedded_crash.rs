//! The embedded engine keeps what it acknowledged, whenever its process is killed.
//!
//! Rounds over the same folder: a process writes in every way there is and tells what was acknowledged, is killed at a
//! random moment, and then all of the folder is compared with what was told. Some are killed while they open what the
//! one before left behind.
//!
//! A killed process takes nothing with it that it had handed to the operating system, so this cannot tell whether a
//! sync came before an acknowledgement.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::time::{Duration, Instant};

use courant_conformance::crash::{Model, Writer};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::process::Command;

async fn round(folder: &Path, model: &mut Model, random: &mut StdRng) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crash_writer"));
    command.arg(folder).args([model.next_round().to_string(), random.random::<u64>().to_string()]);
    let mut writer = Writer::start(&mut command);
    if random.random_bool(0.2) {
        writer.hear(model, 1).await;
        // not to wait for anything: a random moment of the opening
        tokio::time::sleep(Duration::from_millis(random.random_range(0..80))).await;
    } else {
        // few as often as many
        let up_to = 1 << random.random_range(1..14);
        writer.hear(model, random.random_range(1..=up_to)).await;
    }
    writer.kill(model).await;
    model.verify(folder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "bounds how long the test takes, which no clock of a test can")]
async fn whatever_was_acknowledged_survives_a_kill() {
    const AT_LEAST: u64 = 25;
    const SECONDS: u64 = 40;
    let soak: Option<u64> = std::env::var("COURANT_SOAK_CASES").ok().and_then(|cases| cases.parse().ok());
    let folder = tempfile::tempdir().unwrap();
    let seed = rand::random();
    let mut random = StdRng::seed_from_u64(seed);
    let mut model = Model::default();
    let started = Instant::now();
    let go_on = |rounds: u64| match soak {
        Some(cases) => rounds < cases.min(250),
        None => rounds < AT_LEAST || started.elapsed() < Duration::from_secs(SECONDS),
    };
    while go_on(model.next_round()) {
        eprintln!("seed {seed}, round {}", model.next_round());
        round(folder.path(), &mut model, &mut random).await;
    }
    println!("{} rounds, {} acknowledgements, {:?}", model.next_round(), model.told(), started.elapsed());
}
