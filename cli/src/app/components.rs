//! Whether store, log and live state answer, and whether a gateway reaches those who carry out commands, for `/health`.
//!
//! They are asked every few seconds by a task, and health is told from the last answers: a probe that hangs does not
//! hang whoever asks for health, and a thousand who ask cost no more than one.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::capability::{Access, Grant, RestrictedLive, RestrictedLog, RestrictedStore};
use courant_connectors::connections::Connected;
use courant_connectors::live::Connections as _;
use courant_connectors::log::{ReadLog as _, Topic};
use courant_connectors::model::UserId;
use courant_connectors::model::families::{CONNECTION, USER_CONNECTIONS};
use courant_connectors::model::tables::users;
use courant_connectors::model::topics::messages_persisted;
use courant_edge::relay::Relay;
use courant_edge::{Component, ComponentStatus};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

const ASK_EVERY: Duration = Duration::from_secs(2);
/// What takes longer is as good as down: clients wait for a few seconds at the most.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(super) struct Components {
    /// What was found at the last look; nothing for a process without connections.
    connections: Option<watch::Receiver<Vec<Component>>>,
    /// Knows by itself; none for a process that carries out everything itself.
    relay: Option<Relay>,
}

impl Components {
    /// Looks once, and then again and again until the last clone is gone.
    pub(super) async fn watch(connected: Option<Arc<Connected>>, relay: Option<Relay>) -> Self {
        let Some(connected) = connected else { return Self { connections: None, relay } };
        let asked = Asked::of(connected);
        let (found, seen) = watch::channel(asked.look().await);
        tokio::spawn(async move {
            let mut every = interval(ASK_EVERY);
            every.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    () = found.closed() => return,
                    _ = every.tick() => {}
                }
                found.send_replace(asked.look().await);
            }
        });
        Self { connections: Some(seen), relay }
    }

    pub(super) fn now(&self) -> Vec<Component> {
        let mut found = self.connections.as_ref().map(|seen| seen.borrow().clone()).unwrap_or_default();
        let unreached = |relay: &Relay| {
            let all = relay.unreached()?;
            Some(format!("cannot reach any process that carries out commands: {all}"))
        };
        found.extend(self.relay.as_ref().map(|relay| told("relay", unreached(relay))));
        found
    }
}

/// What asking takes of each.
pub(super) fn grant() -> Grant {
    Grant::nothing()
        .table(&*users::SCHEMA.name, Access::Read)
        .topic(messages_persisted::NAME, Access::Read)
        .family(USER_CONNECTIONS, Access::Read)
        .family(CONNECTION, Access::Read)
}

struct Asked {
    connected: Arc<Connected>,
    store: RestrictedStore,
    log: RestrictedLog,
    live: RestrictedLive,
}

impl Asked {
    fn of(connected: Arc<Connected>) -> Self {
        let grant = Arc::new(grant());
        Self {
            store: RestrictedStore::new(Arc::clone(&connected.store), Arc::clone(&grant)),
            log: RestrictedLog::new(Arc::clone(&connected.log), Arc::clone(&grant)),
            live: RestrictedLive::new(Arc::clone(&connected.live), grant),
            connected,
        }
    }

    async fn look(&self) -> Vec<Component> {
        // Any key will do: the answer that there is no such user is an answer.
        let nobody: UserId = "user_00000000000000000000000000".into();
        let topic = Topic::from(messages_persisted::NAME);
        let store = async {
            users::get(&self.store, &nobody).await.map_err(|error| error.to_string())?;
            self.connected.store_trouble().map_or(Ok(()), Err)
        };
        let log = async {
            self.log.watermarks(&topic).await.map_err(|error| error.to_string())?;
            self.connected.log_trouble().map_or(Ok(()), Err)
        };
        let live = async { self.live.connections_of(std::slice::from_ref(&nobody)).await.map(drop) };
        let (store, log, live) =
            tokio::join!(component("store", store), component("log", log), component("live", live));
        vec![store, log, live]
    }
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
    told(name, wrong)
}

fn told(name: &str, wrong: Option<String>) -> Component {
    let status = if wrong.is_none() { ComponentStatus::Up } else { ComponentStatus::Down };
    Component { name: name.to_owned(), status, detail: wrong }
}

#[cfg(test)]
mod tests {
    use courant_connectors::connections::{Connections, EmbeddedConnection, LogConnection, StoreConnection};
    use courant_edge::relay::RelayConfig;

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
        let components = Components::watch(Some(Arc::clone(&connected)), None).await;
        let found = components.now();
        assert_eq!(
            found.iter().map(|component| &*component.name).collect::<Vec<_>>(),
            ["store", "log", "live"]
        );
        assert!(found.iter().all(|component| component.status == ComponentStatus::Up), "{found:?}");
        connected.close().await;
        let found = Asked::of(connected).look().await;
        let told = |at: usize| (found[at].status, found[at].detail.as_deref());
        let closed = (ComponentStatus::Down, Some("the engine is closed"));
        assert_eq!((told(0), told(1)), (closed, closed), "what can be read and not be written is down");
        assert!(Components::watch(None, None).await.now().is_empty(), "nothing is used, nothing is down");
    }

    #[tokio::test]
    async fn a_gateway_that_reaches_nobody_says_whom() {
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), "a secret that is long enough").unwrap();
        let relay = RelayConfig {
            to: vec!["127.0.0.1:1".to_owned()],
            secret_file: Some(secret.path().to_owned()),
            ..RelayConfig::default()
        };
        let found = Components::watch(None, Relay::start(&relay).unwrap()).await.now();
        assert_eq!((&*found[0].name, found[0].status), ("relay", ComponentStatus::Down));
        assert!(found[0].detail.as_ref().unwrap().ends_with("127.0.0.1:1"), "{found:?}");
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
