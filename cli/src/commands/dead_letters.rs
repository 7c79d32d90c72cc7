//! `courant dead-letters`: look at what was given up on, and run it again.

use std::path::Path;

use anyhow::bail;
use courant_connectors::files::dead_letters::StoredLetter;
use courant_edge::admin::ClientError;
use courant_edge::{Redrive, RedriveReport};
use courant_pipeline::clock;
use courant_stages::host::DeadLetterStore;

use super::{admin, say};
use crate::args::DeadLetters;
use crate::{app, settings};

pub(super) async fn run(file: &Path, command: DeadLetters) -> anyhow::Result<()> {
    let config = settings::runtime_config(file)?;
    let store = DeadLetterStore::unopened(config.dead_letters());
    match command {
        DeadLetters::List { queue, limit, json } => list(&store, queue.as_deref(), limit, json).await,
        DeadLetters::Show { id } => show(&store, &id).await,
        DeadLetters::Discard { queue, ids } => discard(&store, &queue, ids).await,
        DeadLetters::Redrive { queue, ids } => {
            let report = redrive_anywhere(file, Redrive { queue, ids }).await?;
            say(&format!(
                "{} redriven: {} delivered, {} dropped, {} dead-lettered again, {} failed",
                report.redriven,
                report.dispositions.delivered,
                report.dispositions.dropped,
                report.dispositions.dead_lettered,
                report.dispositions.failed
            ))
        }
    }
}

/// In the running process if there is one, since it holds the connections; here otherwise.
async fn redrive_anywhere(file: &Path, request: Redrive) -> anyhow::Result<RedriveReport> {
    match admin(file)?.redrive(request.clone()).await {
        Err(ClientError::NotRunning { .. }) => app::redrive_here(&settings::load(file)?, &request).await,
        answered => Ok(answered?),
    }
}

async fn list(store: &DeadLetterStore, queue: Option<&str>, limit: usize, json: bool) -> anyhow::Result<()> {
    let letters = store.journal().list(queue, limit).await?;
    if json {
        let lines: Result<Vec<_>, _> = letters.iter().map(serde_json::to_string).collect();
        return say(&lines?.join("\n"));
    }
    if letters.is_empty() {
        return say("no dead letters");
    }
    let mut text = String::new();
    for stored in &letters {
        text += &line(stored);
    }
    let waiting: u64 = store
        .journal()
        .queues()
        .await?
        .iter()
        .filter(|depth| queue.is_none_or(|queue| depth.queue == queue))
        .map(|depth| depth.pending)
        .sum();
    if waiting > letters.len() as u64 {
        text += &format!("… {} of {waiting}; -n shows more\n", letters.len());
    }
    say(&text)
}

fn line(stored: &StoredLetter) -> String {
    let letter = &stored.letter;
    let at = clock::iso8601(clock::from_unix_millis(letter.failed_at));
    format!("{}  {at}  {}  {}/{}  {}\n", stored.id, stored.queue, letter.pipeline, letter.stage, letter.error)
}

async fn show(store: &DeadLetterStore, id: &str) -> anyhow::Result<()> {
    let Some(stored) = store.journal().get(id).await? else {
        bail!("no dead letter `{id}` waits; `courant dead-letters list` shows those that do");
    };
    let letter = &stored.letter;
    let payload = match serde_json::from_slice::<serde_json::Value>(&letter.payload) {
        Ok(json) => serde_json::to_string_pretty(&json)?,
        Err(_) => String::from_utf8_lossy(&letter.payload).into_owned(),
    };
    let headers: Vec<_> = letter.headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
    say(&format!(
        "id        {}\nqueue     {}\npipeline  {}\nstage     {}\nfailed    {}\nattempts  {}\nclass     {}\nerror     {}\nkey       {}\nheaders   {}\n\n{payload}",
        stored.id,
        stored.queue,
        letter.pipeline,
        letter.stage,
        clock::iso8601(clock::from_unix_millis(letter.failed_at)),
        letter.attempts,
        letter.class,
        letter.error,
        letter.key.as_deref().unwrap_or("-"),
        if headers.is_empty() { "-".to_owned() } else { headers.join(" ") },
    ))
}

async fn discard(store: &DeadLetterStore, queue: &str, ids: Vec<String>) -> anyhow::Result<()> {
    for id in &ids {
        match store.journal().get(id).await? {
            Some(stored) if stored.queue == queue => {}
            _ => bail!("queue `{queue}` has no letter `{id}`; nothing was discarded"),
        }
    }
    let count = ids.len();
    store.journal().settle(queue, ids).await?;
    say(&format!("{count} discarded"))
}
