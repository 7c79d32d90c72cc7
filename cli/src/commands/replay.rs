//! `courant replay`: rebuilds what a pipeline makes from history.
//!
//! Done by the running process if there is one, which has the live pipeline and the data folder; here otherwise.

mod progress;
mod text;

use std::path::Path;

use anyhow::{Context as _, bail};
use courant_edge::admin::{AdminClient, ClientError};
use courant_replay::rebuild::{Pace, Receipt, Request, State};
use tokio::signal::ctrl_c;

use self::progress::ProgressLine;
use super::{admin, say};
use crate::app::{ReplayAsk, ReplayUpdate, replay_here};
use crate::args::Replay;
use crate::exit::Exit;
use crate::settings;

pub(super) async fn run(file: &Path, arguments: Replay) -> anyhow::Result<()> {
    let (json, is_change) = (arguments.json, !arguments.list && arguments.show.is_none());
    let ask = ask(arguments)?;
    let progress = ProgressLine::new();
    let shown = progress.clone();
    let told = match ask_process(&admin(file)?, &ask, &progress).await {
        Err(error) if is_not_running(&error) => {
            let loaded = settings::load(file)?;
            Box::pin(replay_here(&loaded, ask, move |progress| shown.show(&progress))).await
        }
        told => told,
    };
    progress.end();
    let told = told?;
    say(&if json { serde_json::to_string_pretty(&told)? } else { text::of(&told) })?;
    match told {
        ReplayUpdate::Receipt(receipt) if is_change => end(&receipt),
        _ => Ok(()),
    }
}

fn ask(arguments: Replay) -> anyhow::Result<ReplayAsk> {
    if arguments.list {
        return Ok(ReplayAsk::List { pipeline: arguments.pipeline });
    }
    let pipeline = arguments.pipeline.context("name the pipeline")?;
    if let Some(generation) = arguments.discard {
        return Ok(ReplayAsk::Discard { pipeline, generation });
    }
    if let Some(generation) = arguments.show {
        return Ok(ReplayAsk::Show { pipeline, generation });
    }
    if arguments.pause {
        return Ok(ReplayAsk::Pause { pipeline });
    }
    if arguments.rate.is_some_and(|rate| !(1e-6..=1e9).contains(&rate)) {
        bail!("--rate is a number of records per second above zero");
    }
    let pace = Pace { rate: arguments.rate, yield_over: arguments.yield_over.map(|over| over.0) };
    match (arguments.resume, arguments.approve, arguments.rollback, arguments.from) {
        (true, ..) => Ok(ReplayAsk::Resume { pipeline, pace }),
        (_, true, ..) => Ok(ReplayAsk::Approve { pipeline }),
        (_, _, true, _) => Ok(ReplayAsk::Rollback { pipeline }),
        (.., Some(from)) => {
            let request = Request {
                rate: pace.rate,
                yield_over: pace.yield_over,
                suppress: arguments.suppress,
                allow: arguments.allow,
                segments: arguments.segments,
                grace: arguments.grace.0,
                examples: arguments.examples,
                ..Request::new(&pipeline, from, arguments.to)
            };
            let dry = arguments.dry_run;
            Ok(if dry { ReplayAsk::Estimate(request) } else { ReplayAsk::Start(request) })
        }
        _ => bail!("say what to rebuild from, such as --from scan"),
    }
}

fn is_not_running(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<ClientError>(), Some(ClientError::NotRunning { .. }))
}

async fn ask_process(
    admin: &AdminClient,
    ask: &ReplayAsk,
    progress: &ProgressLine,
) -> anyhow::Result<ReplayUpdate> {
    let mut lines = admin.replay(serde_json::to_value(ask)?).await?;
    loop {
        let line = tokio::select! {
            line = lines.next() => line?,
            // Hanging up stops it, in good order.
            _ = ctrl_c() => bail!(ask.stopped()),
        };
        let Some(line) = line else { bail!("the running process ended before it was done") };
        match serde_json::from_value(line)? {
            ReplayUpdate::Progress(told) => progress.show(&told),
            last => return Ok(last),
        }
    }
}

fn end(receipt: &Receipt) -> anyhow::Result<()> {
    match receipt.state {
        State::Differs => Err(Exit::Violated.into()),
        _ => Ok(()),
    }
}
