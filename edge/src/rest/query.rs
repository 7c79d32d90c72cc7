//! What a route can ask of the rest of the process: pipelines for changes, the store for everything else.

use courant_connectors::model::commands::{Answer, Code, Command, REST, Refusal};
use courant_connectors::store::{Remedy, StoreError};

use crate::api::Api;

/// Has a command carried out.
pub(super) async fn command(api: &Api, command: Command) -> Result<Answer, Refusal> {
    match api.commands.ask(REST, command, None).await {
        Answer::Refused(refusal) => Err(refusal),
        answer => Ok(answer),
    }
}

/// A pipeline did something else than it was asked for, or says nothing of it: it is wired wrongly.
pub(super) fn unexpected(answer: &Answer) -> Refusal {
    tracing::error!(?answer, "a pipeline answered a command with something else");
    Refusal::new(
        Code::Unavailable,
        "it was done, but what became of it is not known; look before trying again",
    )
}

/// A query that the store did not answer. What exactly went wrong is for the operator.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn unavailable(error: StoreError) -> Refusal {
    match error.remedy() {
        Remedy::Retry | Remedy::Look => tracing::warn!(%error, "the store did not answer a query"),
        Remedy::GiveUp | Remedy::Stop => tracing::error!(%error, "the store refused a query"),
    }
    Refusal::new(Code::Unavailable, "the store cannot answer now; try again")
}
