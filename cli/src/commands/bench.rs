//! `courant bench`.

use std::time::Duration;

use crate::app;
use crate::args::Bench;
use crate::bench::{self, Format};

pub(super) fn run(command: &Bench) -> anyhow::Result<()> {
    let Bench::Runtime(options) = command;
    let format = if options.json { Format::JsonLines } else { Format::Table };
    // A running process counts, so what is measured counts too.
    let metrics = app::start_metrics()?;
    let mut told = Ok(());
    bench::runtime::run(Duration::from_secs(u64::from(options.seconds.max(1))), |figure| {
        metrics.run_upkeep();
        if told.is_ok() {
            told = bench::report(figure, format);
        }
    })?;
    Ok(told?)
}
