//! `cache-invalidate`: makes every process forget who was in a chat whose members changed.
//!
//! The record goes on when that has happened, so that whatever comes behind this stage finds out anew. First the shared
//! cache, then the processes: the other way round one could fill its memory from the cache again. While live state is
//! down the event waits and is tried again; giving up would leave the old members in caches until they end by
//! themselves, which `on_error = "drop"` and a `retry.deadline` allow if that is preferred. Events that change no
//! members pass, and only those of the same chat wait behind one that does.

use std::sync::OnceLock;

use async_trait::async_trait;
use bytes::Bytes;
use courant_connectors::capability::RestrictedLive;
use courant_connectors::live::{Channel, MembershipCache as _, Publish as _};
use courant_connectors::model::ChatId;
use courant_connectors::model::frames::{self, Invalidated};
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Gives, Level, Mode, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::{Batch, Record, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::{Backends, access, live_error};
use crate::commands::EVENT;

pub static SPEC: StageSpec =
    StageSpec::transform::<Config>("cache-invalidate", Takes::Only(&[EVENT]), Gives::Same)
        .effect(Effect::IdempotentWrite)
        .summary("makes every process forget who was in a chat whose members changed")
        .example("[[pipeline.stage]]\nkind = \"cache-invalidate\"\n");

/// It has no parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let declared = [
            access(Level::Live, Mode::Write, "chat_members"),
            access(Level::Live, Mode::Write, "invalidated"),
        ];
        let backends = Backends::of(context, &declared);
        let mut built = Built::stage(CacheInvalidate { backends, live: OnceLock::new() });
        built.access.extend(declared);
        Ok(built)
    }
}

struct CacheInvalidate {
    backends: Backends,
    /// Set when it is opened.
    live: OnceLock<RestrictedLive>,
}

#[async_trait]
impl Stage for CacheInvalidate {
    async fn open(&self) -> Result<(), StageError> {
        // Opened once, so nothing is there yet.
        let _ = self.live.set(self.backends.live()?);
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let Some(live) = self.live.get() else {
            return Err(StageError::fatal("drop cached members", "the stage is not open"));
        };
        let mut chats = Vec::new();
        batch.each(|slot| {
            chats.extend(changed_chat(slot.record())?);
            Ok(())
        });
        chats.sort_unstable();
        chats.dedup();
        if chats.is_empty() {
            return Ok(());
        }
        let Err(error) = invalidate(live, chats).await else { return Ok(()) };
        batch.each(|slot| match changed_chat(slot.record())? {
            Some(_) => Err(StageError::new(error.class, error.doing.clone(), error.source.to_string())),
            None => Ok(()),
        });
        Ok(())
    }
}

fn changed_chat(record: &Record) -> Result<Option<ChatId>, StageError> {
    frames::chat_with_new_members(&record.payload.to_json())
        .map_err(|error| StageError::reject("read the event", error))
}

async fn invalidate(live: &RestrictedLive, chats: Vec<ChatId>) -> Result<(), StageError> {
    live.invalidate(&chats).await.map_err(|error| live_error("drop cached members", error))?;
    let invalidated = serde_json::to_vec(&Invalidated { chat_ids: chats.into() });
    let invalidated = invalidated.map_err(|error| StageError::fatal("tell of changed members", error))?;
    let message = (Channel::invalidated_members(), Bytes::from(invalidated));
    live.publish(&[message]).await.map_err(|error| live_error("tell of changed members", error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deliveries::testing::{World, changed, created, message, record};
    use crate::testing::process;
    use courant_connectors::live::{Heard, Subscribe as _};
    use courant_connectors::model::topics::memberships_changed::ChangeType;
    use serde_json::json;

    fn events() -> Batch {
        let events = [
            changed("chat_1", "user_2", ChangeType::Removed),
            message("chat_2", 1),
            created("chat_3"),
            changed("chat_1", "user_3", ChangeType::Added),
            message("chat_1", 1),
        ];
        events.map(record).into_iter().collect()
    }

    async fn fill(world: &World, chats: &[&str]) {
        for chat in chats {
            let token = world.live.begin_fill(&(*chat).into()).await.unwrap();
            assert!(world.live.fill(token, &["user_2".into()]).await.unwrap());
        }
    }

    #[tokio::test]
    async fn changed_chats_are_forgotten_and_told_before_the_record_goes_on() {
        let world = World::new().await;
        fill(&world, &["chat_1", "chat_2", "chat_3"]).await;
        let mut listener = world.live.subscribe(&[Channel::invalidated_members()]).await.unwrap();
        let stage = world.stage(&SPEC, json!({})).await;
        let fates = process(&*stage, events()).await;
        assert!(
            fates.iter().all(|fate| fate.starts_with("{\"event_type\"")),
            "all go on as they are: {fates:?}"
        );
        let cached = world.live.members(&["chat_1", "chat_2", "chat_3"].map(ChatId::from)).await.unwrap();
        assert_eq!(cached, [None, Some(vec!["user_2".into()]), None]);
        let Heard::Message { payload, .. } = listener.next().await.unwrap() else { panic!("a gap") };
        let told: Invalidated = serde_json::from_slice(&payload).unwrap();
        assert_eq!(*told.chat_ids, ["chat_1", "chat_3"].map(ChatId::from), "each once");
    }

    #[tokio::test]
    async fn while_live_state_is_down_changes_wait_and_the_rest_of_their_chat() {
        let world = World::new().await;
        let stage = world.stage(&SPEC, json!({})).await;
        world.live.is_down(true);
        let fates = process(&*stage, events()).await;
        assert!(fates[0].starts_with("retry: drop cached members"), "{}", fates[0]);
        assert!(fates[1].starts_with('{'), "another chat does not wait: {}", fates[1]);
        assert!(fates[2].starts_with("retry: "), "{}", fates[2]);
        assert_eq!(fates[3..], ["held", "held"]);
        world.live.is_down(false);
        assert!(process(&*stage, events()).await.iter().all(|fate| fate.starts_with('{')));
    }

    #[tokio::test]
    async fn what_cannot_be_read_might_be_a_change_and_is_refused() {
        let world = World::new().await;
        let stage = world.stage(&SPEC, json!({})).await;
        let fates = process(&*stage, crate::testing::batch(&["{nope", r#"{"event_type":"Later"}"#])).await;
        assert!(fates[0].starts_with("reject: read the event"), "{}", fates[0]);
        assert_eq!(fates[1], r#"{"event_type":"Later"}"#, "of a type that is not known");
    }
}
