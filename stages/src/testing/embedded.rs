//! Stages on the embedded engine, with a store whose writes can go wrong.

use std::sync::Arc;

use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_connectors::live::Live;
use courant_connectors::model::commands::{Answer, Code, Command};
use courant_connectors::store::Store;
use courant_pipeline::spec::Part;
use courant_pipeline::{Batch, Fate, Json, Output, Payload, Record, Services, Slot, Stage, StageSpec};
use serde_json::{Value, json};

use super::faulty::FaultyStore;
use crate::commands;

pub(crate) struct Embedded {
    pub(crate) connected: Connected,
    /// The store itself, in which nothing goes wrong.
    pub(crate) store: Arc<dyn Store>,
    /// The same, as stages have it.
    pub(crate) faulty: Arc<FaultyStore>,
    _folder: tempfile::TempDir,
}

impl Embedded {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let embedded = EmbeddedConnection { path: folder.path().join("data") };
        let connections = Connections {
            store: StoreConnection::Embedded(embedded.clone()),
            log: LogConnection::Embedded(embedded),
            ..Connections::default()
        };
        let mut connected = connections.open().await.unwrap();
        let store = Arc::clone(&connected.store);
        let faulty = FaultyStore::before(Arc::clone(&store));
        connected.store = Arc::clone(&faulty) as Arc<dyn Store>;
        Self { connected, store, faulty, _folder: folder }
    }

    pub(crate) fn stage(&self, spec: &StageSpec) -> Arc<dyn Stage> {
        self.stage_with(spec, Arc::clone(&self.connected.live))
    }

    /// A stage with another live state than its process has.
    pub(crate) fn stage_with(&self, spec: &StageSpec, live: Arc<dyn Live>) -> Arc<dyn Stage> {
        let mut connected = self.connected.clone();
        connected.live = live;
        let services = Services::default().with(Arc::new(connected));
        match super::build(spec, json!({}), &services).map(|built| built.part) {
            Ok(Part::Stage(stage)) => stage,
            Ok(Part::Source(_)) => panic!("`{}` is a source", spec.kind),
            Err(problems) => panic!("{problems:?}"),
        }
    }
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Told {
    /// The answer, and the event with its key and output.
    Happened(Answer, Value, String, Output),
    Done(Answer),
    Refused(Code, String),
    /// The class of the error, and the error.
    Failed(&'static str, String),
    Held,
}

impl Told {
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(code, _) => Some(*code),
            _ => None,
        }
    }

    pub(crate) fn event(&self) -> &Value {
        match self {
            Self::Happened(_, event, ..) => event,
            other => panic!("no event: {other:?}"),
        }
    }

    pub(crate) fn answer(&self) -> &Answer {
        match self {
            Self::Happened(answer, ..) | Self::Done(answer) => answer,
            other => panic!("not carried out: {other:?}"),
        }
    }

    /// Something stands in the way that may pass.
    pub(crate) fn has_to_wait(&self) -> bool {
        matches!(self, Self::Failed("retry", _))
    }
}

pub(crate) async fn carry(stage: &dyn Stage, command: impl Into<Record>) -> Told {
    carry_all(stage, vec![command.into()]).await.remove(0)
}

pub(crate) async fn carry_all(stage: &dyn Stage, records: Vec<Record>) -> Vec<Told> {
    let mut batch = Batch::from(records);
    stage.process(&mut batch).await.unwrap();
    batch.slots().iter().map(told).collect()
}

pub(crate) fn told(slot: &Slot) -> Told {
    let record = slot.record();
    let answer = || {
        let receipt = record.receipt.as_ref().expect("an answer");
        receipt.decode::<Json<Answer>>().unwrap().0.clone()
    };
    match slot.fate() {
        Fate::To(output) => {
            assert!(matches!(record.payload, Payload::Text(_)), "as it goes to the log");
            let event = serde_json::from_slice(&record.payload.to_json()).unwrap();
            Told::Happened(answer(), event, record.key.as_ref().unwrap().to_string(), output)
        }
        Fate::Finished => Told::Done(answer()),
        Fate::Dropped(reason) => match answer() {
            Answer::Refused(refusal) => {
                assert_eq!(reason, refusal.code.reason());
                Told::Refused(refusal.code, refusal.message)
            }
            other => panic!("dropped, and answered with {other:?}"),
        },
        Fate::Failed(error) => Told::Failed(error.class.name(), error.to_string()),
        Fate::Held => Told::Held,
        other @ (Fate::Forward | Fate::Replaced(_)) => panic!("{other:?}"),
    }
}

/// A command as the edge hands it in.
pub(crate) fn record(command: Command) -> Record {
    commands::record(command)
}
