//! `redis-deliver`: sends frames to the gateways where the users they are for are connected.
//!
//! For a batch one question finds the connections of everybody concerned, and one publish per gateway carries all
//! frames for it, in the order of the records: so the frames of a chat arrive in order. Nobody is waited for. A
//! connection that its gateway does not know any more, or a gateway that does not listen, misses the frame and its
//! client asks the store; such connections end by themselves.

use std::sync::OnceLock;

use async_trait::async_trait;
use courant_connectors::capability::RestrictedLive;
use courant_connectors::model::commands::ORIGIN;
use courant_pipeline::spec::{BuildContext, Built, Effect, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::Backends;
use crate::commands::DELIVERY;
use crate::deliveries::{Addressed, Outgoing, send, send_access};

pub static SPEC: StageSpec = StageSpec::sink::<Config>("redis-deliver", Takes::Only(&[DELIVERY]))
    .effect(Effect::ExternalEffect)
    .summary("sends frames to the gateways where the users they are for are connected")
    .example("[[pipeline.stage]]\nkind = \"redis-deliver\"\n");

/// It has no parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let declared = send_access();
        let backends = Backends::of(context, &declared);
        let mut built = Built::stage(RedisDeliver { backends, live: OnceLock::new() });
        built.access.extend(declared);
        Ok(built)
    }
}

struct RedisDeliver {
    backends: Backends,
    /// Set when it is opened.
    live: OnceLock<RestrictedLive>,
}

#[async_trait]
impl Stage for RedisDeliver {
    async fn open(&self) -> Result<(), StageError> {
        // Opened once, so nothing is there yet.
        let _ = self.live.set(self.backends.live()?);
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let Some(live) = self.live.get() else {
            return Err(StageError::fatal("deliver", "the stage is not open"));
        };
        let mut frames = Vec::with_capacity(batch.len());
        for slot in batch.iter_mut() {
            let addressed = slot.record().payload.decode::<Addressed>();
            frames.push(
                addressed.map_err(|error| slot.fail(StageError::reject("read the delivery", error))).ok(),
            );
        }
        let origins = batch.records().map(|record| record.headers.get(ORIGIN));
        let outgoing = frames.iter().zip(origins);
        let outgoing =
            outgoing.map(|(frame, origin)| Some(Outgoing { addressed: frame.as_deref()?, origin }));
        let unwritten = send(live, &outgoing.collect::<Vec<_>>()).await?;
        let slots = batch.iter_mut().into_slice();
        for (index, error) in unwritten {
            slots[index].fail(StageError::reject("write the delivery", error));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::deliveries::testing::{Arrived, World};
    use crate::testing::fates;
    use courant_connectors::model::UserId;
    use courant_pipeline::{Payload, Record};
    use serde_json::json;

    fn users(ids: &[&str]) -> Arc<[UserId]> {
        ids.iter().copied().map(UserId::from).collect()
    }

    fn to(chat: &str, sequence: u64, users: &Arc<[UserId]>) -> Record {
        let frame = format!(r#"{{"type":"message","chat_id":"{chat}","sequence":{sequence}}}"#);
        let addressed = Addressed {
            chat_id: chat.into(),
            sequence: Some(sequence),
            users: Arc::clone(users),
            frame: frame.into(),
        };
        let mut record = Record::new(Payload::value(addressed)).with_key(chat);
        record.headers.set(ORIGIN, "conn_user_1_phone");
        record
    }

    fn arrived(connection: &str, chat: &str, sequence: u64) -> Arrived {
        (format!("conn_{connection}"), chat.to_owned(), Some(sequence))
    }

    #[tokio::test]
    async fn one_publish_for_each_gateway_carries_everything_in_order() {
        let world = World::new().await;
        let (mut one, mut two) = (world.gateway("gw_1").await, world.gateway("gw_2").await);
        world.connect("user_1", "phone", "gw_1").await;
        world.connect("user_1", "laptop", "gw_1").await;
        world.connect("user_2", "phone", "gw_2").await;
        world.connect("user_3", "phone", "gw_2").await;
        let stage = world.stage(&SPEC, json!({})).await;
        let (a, b) = (users(&["user_1", "user_2", "offline"]), users(&["user_3", "user_2"]));
        let mut batch: Batch =
            [to("a", 1, &a), to("b", 7, &b), to("a", 2, &a), to("c", 1, &users(&["offline"]))]
                .into_iter()
                .collect();
        stage.process(&mut batch).await.unwrap();
        assert_eq!(one.hear().await, [arrived("user_1_laptop", "a", 1), arrived("user_1_laptop", "a", 2)]);
        let mut heard = two.hear().await;
        heard[1..3].sort();
        let expected = [
            arrived("user_2_phone", "a", 1),
            arrived("user_2_phone", "b", 7),
            arrived("user_3_phone", "b", 7),
            arrived("user_2_phone", "a", 2),
        ];
        assert_eq!(heard, expected);
        assert!(one.hears_nothing() && two.hears_nothing());
        assert_eq!(world.live.asked_connections.load(Ordering::SeqCst), 1);
        assert_eq!(world.live.published.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn the_connection_it_came_from_does_not_get_it() {
        let world = World::new().await;
        let mut gateway = world.gateway("gw_1").await;
        world.connect("user_1", "phone", "gw_1").await;
        let stage = world.stage(&SPEC, json!({})).await;
        let alone = users(&["user_1"]);
        stage.process(&mut [to("a", 1, &alone)].into_iter().collect()).await.unwrap();
        assert!(gateway.hears_nothing());
        let mut other = to("a", 2, &alone);
        other.headers.set(ORIGIN, "conn_elsewhere");
        stage.process(&mut [other].into_iter().collect()).await.unwrap();
        assert_eq!(gateway.hear().await, [arrived("user_1_phone", "a", 2)]);
    }

    #[tokio::test]
    async fn large_batches_are_cut_into_publishes_that_keep_the_order() {
        let world = World::new().await;
        let mut gateway = world.gateway("gw_1").await;
        world.connect("user_2", "phone", "gw_1").await;
        let stage = world.stage(&SPEC, json!({})).await;
        let list = users(&["user_2"]);
        let mut batch: Batch = (1..=10_000).map(|sequence| to("a", sequence, &list)).collect();
        stage.process(&mut batch).await.unwrap();
        let publishes = world.live.published.load(Ordering::SeqCst);
        assert!((2..=4).contains(&publishes), "{publishes} publishes");
        let mut sequences = Vec::new();
        for _ in 0..publishes {
            sequences.extend(gateway.hear().await.into_iter().map(|(.., sequence)| sequence.unwrap()));
        }
        assert_eq!(sequences, (1..=10_000).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_gateway_that_does_not_listen_and_garbage_do_not_stop_the_rest() {
        let world = World::new().await;
        world.connect("user_2", "phone", "gone").await;
        let stage = world.stage(&SPEC, json!({})).await;
        let mut batch: Batch = [Record::new(Payload::from_static("{nope")), to("a", 1, &users(&["user_2"]))]
            .into_iter()
            .collect();
        stage.process(&mut batch).await.unwrap();
        let fates = fates(&batch);
        assert!(fates[0].starts_with("reject: read the delivery: not a delivery"), "{}", fates[0]);
        assert!(fates[1].starts_with('{'), "{}", fates[1]);
        let left = world.connected.live.connections_of(&["user_2".into()]).await.unwrap();
        assert_eq!(left[0].len(), 1, "it ends by itself");
    }

    #[tokio::test]
    async fn while_live_state_is_down_the_batch_waits() {
        let world = World::new().await;
        let stage = world.stage(&SPEC, json!({})).await;
        world.live.is_down(true);
        let mut batch: Batch = [to("a", 1, &users(&["user_2"]))].into_iter().collect();
        let error = stage.process(&mut batch).await.unwrap_err();
        assert_eq!(error.class, courant_pipeline::Class::Retry);
    }
}
