//! The log into a search index, and Tantivy alone.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use courant_connectors::search::{Message, PlainWriter};
use courant_replay::rebuild::{Engine, From, Phase, Progress, Request, State, To};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Bench, COMMIT_EVERY, index_options};

/// Records per second.
pub(super) struct Rebuilt {
    pub(super) built: f64,
    /// Compared with the store, once it was built.
    pub(super) proved: f64,
}

/// `courant replay search --from oldest --to now`, and its removal.
pub(super) async fn rebuild(bench: &Bench<'_>) -> anyhow::Result<Rebuilt> {
    let built_at = Mutex::new(None);
    let watch = |progress: Progress| {
        if progress.phase == Phase::Building {
            *built_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    };
    let engine = Engine {
        topologies: &bench.loaded.topologies,
        host: &bench.host,
        runtime: None,
        stop: &CancellationToken::new(),
        progress: &watch,
    };
    let began = Instant::now();
    let receipt = engine.start(Request::new("search", From::Oldest, To::Now)).await?;
    let ended = Instant::now();
    ensure!(receipt.records.delivered == bench.history.messages, "not everything was built: {receipt:?}");
    ensure!(receipt.state == State::Equal, "what was built is not what there is: {receipt:?}");
    engine.discard("search", &receipt.generation).await?;
    let built_at = *built_at.lock().unwrap_or_else(PoisonError::into_inner);
    let built_at = built_at.context("a rebuild tells of its progress")?;
    Ok(Rebuilt { built: bench.rate(built_at - began), proved: bench.rate(ended - built_at) })
}

/// The same documents, committed as often. Making the messages is left out of the time.
pub(super) fn feed(bench: &Bench<'_>) -> anyhow::Result<f64> {
    let history = &bench.history;
    let folder = tempfile::tempdir_in(bench.folder)?;
    let taken = tokio::task::block_in_place(|| {
        let began = Instant::now();
        let mut writer = PlainWriter::create(folder.path(), index_options())?;
        let mut taken = began.elapsed();
        for first in (0..history.messages).step_by(COMMIT_EVERY) {
            let stored: Vec<_> = (first..history.messages.min(first + COMMIT_EVERY as u64))
                .map(|number| history.message(number))
                .collect();
            let messages: Vec<_> = stored.iter().map(as_indexed).collect();
            let began = Instant::now();
            writer.write(&messages)?;
            taken += began.elapsed();
        }
        let began = Instant::now();
        drop(writer);
        anyhow::Ok::<Duration>(taken + began.elapsed())
    })?;
    Ok(bench.rate(taken))
}

fn as_indexed(message: &courant_connectors::model::tables::messages::Message) -> Message<'_> {
    Message {
        message_id: message.message_id.as_str().into(),
        chat_id: message.chat_id.as_str().into(),
        sequence: message.sequence,
        sender_id: message.sender_id.as_str().into(),
        content: message.content.as_str().into(),
        content_type: message.content_type.as_str().into(),
        created_at: message.created_at,
        version: 0,
    }
}
