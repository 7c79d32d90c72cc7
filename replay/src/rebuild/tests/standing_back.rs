//! Those that clients wait for come first: a rebuild beside a live pipeline whose records take long.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use courant_pipeline::spec::{BuildContext, Built, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use super::world::{PIPELINE, World, request};
use crate::rebuild::{Engine, From, Phase, Progress, Request, State, To};

/// One record, which clients wait for.
const WAITED_FOR: &str = r#"
[[pipeline]]
name = "waited-for"
plane = "fanout"
stage = [{ kind = "generate", params = { count = 1 } }, { kind = "blackhole" }]
"#;

/// More than is read before it has stood back as far as it does.
const MESSAGES: u64 = 8000;
/// In the time from one look to the next, when it stands back: twice of what it reads at the least.
const FEW: u64 = 40;
/// Looks in a row.
const LOOKS: usize = 5;

static GATE: StageSpec =
    StageSpec::sink::<Config>("gate", Takes::Any).summary("holds records until it is opened");

#[derive(Deserialize, JsonSchema)]
struct Config {}

struct Gate(watch::Receiver<bool>);

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let opened = context.services.get::<watch::Receiver<bool>>().expect("the test offers it");
        Ok(Built::stage(Gate((*opened).clone())))
    }
}

#[async_trait]
impl Stage for Gate {
    async fn process(&self, _: &mut Batch) -> Result<(), StageError> {
        let opened = self.0.clone().wait_for(|is_open| *is_open).await.map(drop);
        opened.map_err(|gone| StageError::fatal("wait for the gate", gone))
    }
}

/// How many records were read from one look to the next.
fn steps(looks: &[u64]) -> impl DoubleEndedIterator<Item = u64> {
    looks.windows(2).map(|pair| pair[1] - pair[0])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_stands_back_while_clients_wait_and_goes_on_when_they_do_not() {
    let (open, opened) = watch::channel(false);
    let mut world = World::with(&format!("{PIPELINE}{WAITED_FOR}")).await;
    world.host.services = world.host.services.clone().with(Arc::new(opened));
    let held = &mut world.topologies[1].stages[1];
    (held.spec, held.params) = (&GATE, json!({}));
    let messages = world.send(MESSAGES).await;
    let runtime = world.live_only("waited-for").await;

    let (looks, stood_back_at) = (Mutex::new(Vec::new()), Mutex::new(None));
    let watch = |progress: Progress| {
        if progress.phase != Phase::Building {
            return;
        }
        let mut looks = looks.lock().unwrap();
        looks.push(progress.done);
        let last: Vec<_> = steps(&looks).rev().take(LOOKS).collect();
        let is_few = |step: &u64| (1..=FEW).contains(step);
        if !*open.borrow() && last.len() == LOOKS && last.iter().all(is_few) {
            *stood_back_at.lock().unwrap() = Some(looks.len());
            open.send_replace(true);
        }
    };
    let engine = Engine { progress: &watch, ..world.engine(Some(&runtime)) };
    let politely = Request { yield_over: Some(Duration::from_millis(50)), ..request(From::Oldest, To::Now) };
    let receipt = engine.start(politely).await.unwrap();
    runtime.drain().await;

    let looks = looks.into_inner().unwrap();
    let stood_back_at = stood_back_at.into_inner().unwrap();
    let stood_back_at = stood_back_at.unwrap_or_else(|| panic!("it never stood back: {looks:?}"));
    let fastest_since = steps(&looks[stood_back_at - 1..]).max();
    assert!(fastest_since > Some(10 * FEW), "it went on as slowly: {looks:?}");
    assert_eq!((receipt.state, looks.last()), (State::Equal, Some(&MESSAGES)));
    world.assert_holds(&receipt.generation, &messages);
}
