//! Log lines on standard error.

use anyhow::anyhow;
use tracing_subscriber::EnvFilter;

use crate::settings::{LogFormat, LoggingConfig};

pub(super) fn start(config: &LoggingConfig) -> anyhow::Result<()> {
    use std::io::IsTerminal as _;
    let filter = EnvFilter::try_new(&config.level)
        .map_err(|error| anyhow!("logging.level is `{}`: {error}", config.level))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match config.format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Pretty => lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
    };
    started.map_err(|error| anyhow!("cannot start logging: {error}"))
}
