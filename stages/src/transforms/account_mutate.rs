//! `account-mutate`: registers people, lets them prove their phone number, and keeps their sessions.
//!
//! Everything that is decided rests on strong reads and is written on the condition that they still hold. Passwords and
//! tokens come here as hashes; whether a password is right was seen by the edge. What a command holds of secrets is
//! hidden as soon as the command is here (`sealed`), so that it is in no dead letter.
//!
//! A session that ends is gone from the store first, which is the truth; then its connections are taken out of live
//! state and the gateways are told (`cut_off`). If live state is down the session has ended all the same, and a gateway
//! learns of it when it next asks the store.

mod cut_off;
mod phones;
mod sealed;
mod sessions;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use courant_connectors::capability::{RestrictedLive, RestrictedStore};
use courant_connectors::model::Timestamp;
use courant_connectors::model::commands::{Answer, Code, Command, EditProfile, Refusal};
use courant_connectors::model::tables::sessions as session_table;
use courant_connectors::model::tables::users::{self, Edit, MAX_DISPLAY_NAME};
use courant_connectors::store::{Durability, Item, Returning, Write, WriteStore as _};
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Gives, Level, Mode, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::{Batch, Output, Stage, StageError, clock};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::{Backends, access, store_error};
use crate::commands::{COMMAND, Carried, EVENT, Outcome, carry_out, was_done};

pub static SPEC: StageSpec = StageSpec::transform::<Config>(
    "account-mutate",
    Takes::Only(&[COMMAND]),
    Gives::Kind(EVENT),
)
.effect(Effect::IdempotentWrite)
.summary(
    "registers people, verifies their phone numbers and keeps their sessions; gives an event for each code",
)
.example("[[pipeline.stage]]\nkind = \"account-mutate\"\n");

/// The only output.
const VERIFICATION: Output = 0;

/// Carries out `register`, `verify_phone`, `open_session`, `rotate_session`, `end_sessions` and `edit_profile`. Output:
/// `verification` for `verifications.requested`, which a notifier reads.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let declared = [
            access(Level::Store, Mode::Read, &users::SCHEMA.name),
            access(Level::Store, Mode::Write, &users::SCHEMA.name),
            access(Level::Store, Mode::Read, &session_table::SCHEMA.name),
            access(Level::Store, Mode::Write, &session_table::SCHEMA.name),
            access(Level::Live, Mode::Read, "connection"),
            access(Level::Live, Mode::Write, "connection"),
            access(Level::Live, Mode::Read, "user_connections"),
            access(Level::Live, Mode::Write, "user_connections"),
            access(Level::Live, Mode::Write, "gateway_connections"),
            access(Level::Live, Mode::Write, "revoked"),
        ];
        let stage = AccountMutate { backends: Backends::of(context, &declared) };
        // An event is about a user, a command about a phone number.
        let mut built = Built::stage(stage).outputs(vec!["verification".to_owned()]).rekeys(true);
        built.access.extend(declared);
        Ok(built)
    }
}

struct AccountMutate {
    backends: Backends,
}

#[async_trait]
impl Stage for AccountMutate {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        batch.iter_mut().for_each(|slot| sealed::seal(slot.record_mut()));
        let accounts = Accounts { store: self.backends.store()?, live: self.backends.live()? };
        let accounts = &accounts;
        carry_out(batch, sealed::open, |command| async move { accounts.carry(&command.0).await }).await;
        Ok(())
    }
}

/// The accounts of the store, for one batch.
struct Accounts {
    store: RestrictedStore,
    live: RestrictedLive,
}

impl Accounts {
    async fn carry(&self, command: &Command) -> Carried {
        match command {
            Command::Register(command) => self.register(command).await,
            Command::VerifyPhone(command) => self.verify_phone(command).await,
            Command::OpenSession(command) => self.open_session(command).await,
            Command::RotateSession(command) => self.rotate_session(command).await,
            Command::EndSessions(command) => self.end_sessions(command).await,
            Command::EditProfile(command) => self.edit_profile(command).await,
            other => {
                let why =
                    format!("account-mutate does not carry out {}; give it to another stage", other.name());
                Err(StageError::reject("carry out the command", why).into())
            }
        }
    }

    async fn edit_profile(&self, command: &EditProfile) -> Carried {
        check_display_name(&command.display_name)?;
        let edit = Edit::DisplayName(command.display_name.clone());
        let edited = users::edit(&self.store, &command.user_id, edit, now()).await;
        let edited = edited.map_err(|error| store_error("edit the profile", error))?;
        let nobody = || Refusal::new(Code::NotFound, format!("there is no user '{}'", command.user_id));
        let user = edited.ok_or_else(nobody)?;
        Ok(Outcome::Done(Answer::User(user.into())))
    }

    /// The item after the write; `None` if what it rests on has changed.
    async fn write(&self, doing: &'static str, write: Write) -> Result<Option<Option<Item>>, StageError> {
        let answer = self.store.write(write, Returning::New, Durability::Synced).await;
        was_done(answer).map_err(|error| store_error(doing, error))
    }
}

fn now() -> Timestamp {
    clock::now().into()
}

fn check_display_name(name: &str) -> Result<(), Refusal> {
    if name.trim().is_empty() || name.len() > MAX_DISPLAY_NAME {
        let why = format!("a display name has 1 to {MAX_DISPLAY_NAME} bytes and is not blank");
        return Err(Refusal::new(Code::BadRequest, why));
    }
    Ok(())
}
