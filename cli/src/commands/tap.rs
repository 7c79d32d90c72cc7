//! `courant tap`: records as they leave a stage.

use std::io::{ErrorKind, Write as _};

use courant_edge::admin::AdminClient;
use courant_pipeline::tap::TapRecord;

use crate::args;

pub(super) async fn run(admin: &AdminClient, options: &args::Tap) -> anyhow::Result<()> {
    let mut records = admin.tap(&options.pipeline, &options.stage, options.limit).await?;
    while let Some(record) = records.next().await? {
        let line = if options.json { serde_json::to_string(&record)? } else { short(&record) };
        match writeln!(std::io::stdout(), "{line}") {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            said => said?,
        }
    }
    Ok(())
}

/// Key and payload on a line.
fn short(record: &TapRecord) -> String {
    match &record.key {
        Some(key) => format!("{key}  {}", record.payload),
        None => record.payload.to_string(),
    }
}
