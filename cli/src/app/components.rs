//! Whether store, log and live state answer, for `/health`.
//!
//! They are asked every few seconds by a task, and health is told from the last answers: a probe that hangs does not
//! hang whoever asks for health, and a thousand who ask cost no more than one.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::connections::Connected;
use courant_connectors::log::Topic;
use courant_connectors::model::UserId;
use courant_connectors::model::tables::users;
use courant_connectors::model::topics::messages_persisted;
use courant_edge::{Component, ComponentStatus};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

const ASK_EVERY: Duration = Duration::from_secs(2);
/// What takes longer is as good as down: clients wait for a few seconds at the most.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What was found at the last look; nothing for a process without connections.
#[derive(Clone)]
pub(super) struct Components(Option<watch::Receiver<Vec<Component>>>);

impl Components {
    /// Looks once, and then again and again until the last clone is gone.
    pub(super) async fn watch(connected: Option<Arc<Connected>>) -> Self {
        let Some(connected) = connected else { return Self(None) };
        let (found, seen) = watch::channel(look(&connected).await);
        tokio::spawn(async move {
            let mut every = interval(ASK_EVERY);
            every.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = found.closed() => return,
                    _ = every.tick() => {}
                }
                found.send_replace(look(&connected).await);
            }
        });
        Self(Some(seen))
    }

    pub(super) fn now(&self) -> Vec<Component> {
        self.0.as_ref().map(|seen| seen.borrow().clone()).unwrap_or_default()
    }
}

async fn look(connected: &Connected) -> Vec<Component> {
    // Any key will do: the answer that there is no such user is an answer.
    let nobody: UserId = "user_00000000000000000000000000".into();
    let topic = Topic::from(messages_persisted::NAME);
    let store = async { users::get(&*connected.store, &nobody).await.map(drop) };
    let log = async { connected.log.watermarks(&topic).await.map(drop) };
    let live = async { connected.live.connections_of(std::slice::from_ref(&nobody)).await.map(drop) };
    let (store, log, live) =
        tokio::join!(component("store", store), component("log", log), component("live", live));
    vec![store, log, live]
}

async fn component<E: std::fmt::Display>(
    name: &str,
    asked: impl Future<Output = Result<(), E>>,
) -> Component {
    let wrong = match timeout(ANSWER_WITHIN, asked).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {ANSWER_WITHIN:?}")),
    };
    let status = if wrong.is_none() { ComponentStatus::Up } else { ComponentStatus::Down };
    Component { name: name.to_owned(), status, detail: wrong }
}

#[cfg(test)]
mod tests {
    use courant_connectors::connections::{Connections, EmbeddedConnection, LogConnection, StoreConnection};

    use super::*;

    #[tokio::test]
    async fn what_answers_is_up_and_what_does_not_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let embedded = EmbeddedConnection { path: folder.path().join("data") };
        let connections = Connections {
            store: StoreConnection::Embedded(embedded.clone()),
            log: LogConnection::Embedded(embedded),
            ..Connections::default()
        };
        let connected = Arc::new(connections.open().await.unwrap());
        let components = Components::watch(Some(Arc::clone(&connected))).await;
        let found = components.now();
        assert_eq!(
            found.iter().map(|component| &*component.name).collect::<Vec<_>>(),
            ["store", "log", "live"]
        );
        assert!(found.iter().all(|component| component.status == ComponentStatus::Up), "{found:?}");
        connected.close().await;
        assert!(Components::watch(None).await.now().is_empty(), "nothing is used, nothing is down");
    }

    #[tokio::test(start_paused = true)]
    async fn a_component_that_hangs_is_down() {
        let hanging = std::future::pending::<Result<(), std::io::Error>>();
        let found = component("store", hanging).await;
        assert_eq!(
            (found.status, found.detail.as_deref()),
            (ComponentStatus::Down, Some("no answer within 2s"))
        );
    }
}
