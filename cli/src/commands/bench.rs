//! `courant bench`.

use std::time::Duration;

use crate::args::Bench;
use crate::bench::{self, Format};

pub(super) fn run(command: &Bench) -> anyhow::Result<()> {
    let Bench::Runtime(options) = command;
    let format = if options.json { Format::JsonLines } else { Format::Table };
    let mut told = Ok(());
    bench::runtime::run(Duration::from_secs(u64::from(options.seconds.max(1))), |figure| {
        if told.is_ok() {
            told = bench::report(figure, format);
        }
    })?;
    Ok(told?)
}
