//! `courant top`: a running process as numbers, live.
//!
//! Once a second the process is asked for its health and its metrics over the admin socket ([`poll`]); what
//! changed in between becomes rates and latencies ([`model`]), which [`draw`] shows. The process counts and
//! this side calculates, so watching costs it next to nothing.

mod app;
mod draw;
mod model;
mod number;
mod plain;
mod poll;
mod prometheus;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::{Context, bail};
use courant_edge::admin::AdminClient;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use app::{App, Flow};
use model::Model;

/// How long a key may go unnoticed once the view has ended.
const KEY_WAIT: Duration = Duration::from_millis(200);

/// Shows the process until the user quits. The terminal is restored however this ends.
pub async fn run(client: AdminClient, every: Duration) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        bail!("standard output is no terminal; use `courant top --once` to print a table");
    }
    let _restore = Restore;
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    watch(&mut terminal, client, every).await
}

/// One table as text, with rates over one interval.
pub async fn once(client: &AdminClient, every: Duration) -> anyhow::Result<String> {
    let mut model = Model::default();
    let order = poll::order(client).await?;
    model.observe(poll::sample(client).await?, &order);
    tokio::time::sleep(every).await;
    model.observe(poll::sample(client).await?, &order);
    Ok(plain::table(model.pipelines()))
}

/// Gives the terminal back however the view ends. For a panic, `try_init` does so before its message is shown.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

async fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    client: AdminClient,
    every: Duration,
) -> anyhow::Result<()> {
    let mut app = App::new(client.path().display().to_string());
    let mut polled = poll::start(client, every);
    let mut events = terminal_events();
    let mut terminated = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    loop {
        terminal.draw(|frame| draw::draw(frame, &app)).context("cannot draw")?;
        let flow = tokio::select! {
            Some(polled) = polled.recv() => app.observe(polled),
            event = events.recv() => match event {
                Some(Ok(event)) => app.event(&event),
                Some(Err(error)) => return Err(error).context("cannot read the keyboard"),
                None => Flow::Quit,
            },
            _ = terminated.recv() => Flow::Quit,
        };
        if flow == Flow::Quit {
            return Ok(());
        }
    }
}

/// Keys and sizes of the terminal, read by a thread of its own because reading them blocks.
fn terminal_events() -> mpsc::Receiver<io::Result<Event>> {
    let (to, from) = mpsc::channel(16); // full: the terminal keeps further keys until the view catches up
    std::thread::spawn(move || {
        while !to.is_closed() {
            let next = match event::poll(KEY_WAIT) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let failed = next.is_err();
            if to.blocking_send(next).is_err() || failed {
                return;
            }
        }
    });
    from
}
