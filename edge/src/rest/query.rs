//! What a route can ask of the rest of the process: pipelines for changes, the store for everything else.

use courant_connectors::model::ChatId;
use courant_connectors::model::commands::{Answer, Code, Command, REST, Refusal};
use courant_connectors::model::tables::chats;
use courant_connectors::store::{ReadStore, Remedy, StoreError};

use crate::api::Api;

/// Has a command carried out.
pub(super) async fn command(api: &Api, command: Command) -> Result<Answer, Refusal> {
    match api.commands.ask(REST, command, None).await {
        Answer::Refused(refusal) => Err(refusal),
        answer => Ok(answer),
    }
}

/// Has a command about a chat carried out. Pipelines look for members and not for chats, so somebody who is none may have
/// named what does not exist; that is looked up when it is refused, and costs nothing otherwise.
pub(super) async fn command_about(api: &Api, chat: &ChatId, asked: Command) -> Result<Answer, Refusal> {
    match command(api, asked).await {
        Err(refusal) if refusal.code == Code::NotAMember => Err(not_theirs(&*api.store, chat).await),
        answered => answered,
    }
}

/// Why somebody who is not in a chat cannot have it. That a chat exists is no secret: who learned its id was told by
/// a member.
pub(crate) async fn not_theirs(store: &dyn ReadStore, chat: &ChatId) -> Refusal {
    match chats::get(store, chat).await {
        Ok(Some(_)) => Refusal::new(Code::NotAMember, "you are not a member of this chat"),
        Ok(None) => no_such_chat(),
        Err(error) => unavailable(error),
    }
}

pub(super) fn no_such_chat() -> Refusal {
    Refusal::new(Code::NotFound, "there is no such chat")
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
