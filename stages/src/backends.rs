//! The process's connections, as a stage gets them: what it declares and no more.
//!
//! A process opens its connections once and offers them to its stages. A stage asks for handles when it is built, which
//! does no I/O and works without connections, as when a file is only checked; whether there are any is found out when
//! it is opened. All of them are fenced in by what the stage declares, so that a declaration that is too small is
//! found by the stage's first test and not by the access rules of a server.

use std::sync::Arc;

use courant_connectors::capability::{self, Grant, RestrictedLive, RestrictedLog, RestrictedStore};
use courant_connectors::connections::Connected;
use courant_connectors::live::LiveError;
use courant_connectors::log::LogError;
use courant_connectors::store::{Remedy, StoreError};
use courant_pipeline::spec::{Access, BuildContext, Level, Mode};
use courant_pipeline::{Class, StageError};

/// What a stage may use of the process's connections.
#[derive(Clone)]
pub struct Backends {
    connected: Option<Arc<Connected>>,
    grant: Arc<Grant>,
}

impl Backends {
    /// The connections that the process offers, fenced in by what the stage declares.
    pub fn of(context: &BuildContext<'_>, declared: &[Access]) -> Self {
        Self { connected: context.services.get::<Connected>(), grant: Arc::new(grant(declared.iter())) }
    }

    pub fn store(&self) -> Result<RestrictedStore, StageError> {
        Ok(RestrictedStore::new(Arc::clone(&self.connected()?.store), Arc::clone(&self.grant)))
    }

    pub fn log(&self) -> Result<RestrictedLog, StageError> {
        Ok(RestrictedLog::new(Arc::clone(&self.connected()?.log), Arc::clone(&self.grant)))
    }

    pub fn live(&self) -> Result<RestrictedLive, StageError> {
        Ok(RestrictedLive::new(Arc::clone(&self.connected()?.live), Arc::clone(&self.grant)))
    }

    fn connected(&self) -> Result<&Connected, StageError> {
        self.connected.as_deref().ok_or_else(|| {
            StageError::fatal("use the connections", "this process was started without connections")
        })
    }
}

/// What stages declare, as what is granted.
pub fn grant<'a>(declared: impl Iterator<Item = &'a Access>) -> Grant {
    declared.fold(Grant::nothing(), |grant, access| {
        let how: &[capability::Access] = match access.mode {
            Mode::Read => &[capability::Access::Read],
            Mode::Scan => &[capability::Access::Scan],
            Mode::Stream => &[capability::Access::Stream],
            // Filling is writing what another level has the authority over.
            Mode::Write | Mode::Fill => &[capability::Access::Write],
            Mode::Keep => &[capability::Access::Read, capability::Access::Write],
        };
        how.iter().fold(grant, |grant, how| match access.level {
            Level::Store => grant.table(&*access.name, *how),
            Level::Log => grant.topic(&*access.name, *how),
            Level::Live => grant.family(&*access.name, *how),
        })
    })
}

pub fn access(level: Level, mode: Mode, name: &str) -> Access {
    Access { level, mode, name: name.to_owned() }
}

/// A failed call of the store as the runtime sees it. An unknown outcome is retried: every stage looks before it
/// writes, or writes what can be written twice.
pub fn store_error(doing: &'static str, error: StoreError) -> StageError {
    StageError::new(class(error.remedy()), doing, error)
}

pub fn log_error(doing: &'static str, error: LogError) -> StageError {
    StageError::new(class(error.remedy()), doing, error)
}

pub fn live_error(doing: &'static str, error: LiveError) -> StageError {
    StageError::new(class(error.remedy()), doing, error)
}

pub fn class(remedy: Remedy) -> Class {
    match remedy {
        Remedy::Retry | Remedy::Look => Class::Retry,
        Remedy::GiveUp => Class::Reject,
        Remedy::Stop => Class::Fatal,
    }
}
