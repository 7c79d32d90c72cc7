//! What others would see again: refused unless somebody says so, and then had once.

use std::path::PathBuf;

use courant_pipeline::StageSpec;
use courant_pipeline::config::{Input, StageNode};
use courant_pipeline::spec::{Effect, Gives, Takes};
use courant_stages::sinks::{delivery_ack, kafka_publish, redis_deliver, stdout, webhook};
use courant_stages::transforms::{agent, filter};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::bad::refused;
use super::world::{PIPELINE, World, request};
use crate::rebuild::{At, Engine, From, Request, State, To};

/// A world with one more stage behind `map`, however little it fits there.
async fn with_stage(spec: &'static StageSpec, params: Value) -> World {
    let mut world = World::new().await;
    let stages = &mut world.topologies[0].stages;
    stages.push(StageNode { name: spec.kind.into(), spec, params, ..stages[2].clone() });
    world
}

#[tokio::test]
async fn every_kind_with_effects_is_refused_unless_it_is_named() {
    let script = json!({"agent": "agent_a", "responder": "scripted", "script": [{"say": "yes"}]});
    let kinds: [(&'static StageSpec, Value); 5] = [
        (&redis_deliver::SPEC, json!({})),
        (&webhook::SPEC, json!({"url": "http://127.0.0.1:1/hook"})),
        (&agent::SPEC, script),
        (&kafka_publish::SPEC, json!({"topic": "messages.persisted"})),
        (&stdout::SPEC, json!({})),
    ];
    for (spec, params) in kinds {
        let (world, kind) = (with_stage(spec, params).await, spec.kind);
        world.send(5).await;
        for to in [To::Now, To::Live] {
            let said = refused(&world, request(From::Oldest, to)).await;
            assert!(said.contains(&format!("--suppress {kind}")), "{said}");
            assert!(said.contains(&format!("--allow {kind}")), "{said}");
        }
        let dry = world.engine(None).estimate(&request(From::Oldest, To::Now)).await.unwrap_err().to_string();
        assert!(dry.contains(&format!("--suppress {kind}")), "{dry}");
        let suppress = Request { suppress: vec![kind.to_owned()], ..request(From::Oldest, To::Now) };
        assert_eq!(world.engine(None).start(suppress).await.unwrap().state, State::Equal, "{kind}");
    }
}

#[tokio::test]
async fn a_sink_that_writes_where_live_pipelines_write() {
    let world = with_stage(&delivery_ack::SPEC, json!({})).await;
    let written = refused(&world, request(From::Oldest, To::Now)).await;
    assert!(written.contains("is a `delivery-ack`: it writes where live pipelines write"), "{written}");
    assert!(written.contains("--suppress delivery-ack"), "{written}");
}

/// A pipeline that also writes lines for somebody, and where.
async fn with_lines() -> (World, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seen.jsonl");
    let lines = format!(
        "{PIPELINE}\n[[pipeline.stage]]\nkind = 'file'\nname = 'seen'\ninput = 'map'\nparams = {{ path = '{}' }}\n",
        path.display()
    );
    (World::with(&lines).await, path, folder)
}

fn lines(path: &PathBuf) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// Neither by the comparison, nor by a dry run.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_is_had_once() {
    let (world, seen, _folder) = with_lines().await;
    world.send(40).await;
    let allow = Request { allow: vec!["seen".into()], ..request(From::Oldest, To::Now) };
    let estimate = world.engine(None).estimate(&allow).await.unwrap();
    assert!(estimate.records_per_second.is_some(), "it was tried: {estimate:?}");
    assert_eq!(lines(&seen), 0, "a dry run does nothing to others");
    let receipt = world.engine(None).start(allow).await.unwrap();
    assert_eq!((receipt.state, lines(&seen)), (State::Equal, 40));
}

/// A pipeline that keeps no store is run for its effects alone: from where somebody says, without a look at the store, and
/// every record once, also if it is stopped in between.
#[tokio::test(flavor = "multi_thread")]
async fn effects_alone_are_had_if_they_are_allowed() {
    let (mut world, seen, _folder) = with_lines().await;
    world.topologies[0].stages.retain(|stage| !matches!(&*stage.name, "last" | "all"));
    world.send(40).await;
    let said = refused(&world, request(From::Oldest, To::Live)).await;
    assert!(said.contains("--allow seen"), "{said}");
    let suppressed = Request { suppress: vec!["seen".into()], ..request(From::Oldest, To::Live) };
    let said = refused(&world, suppressed).await;
    assert!(said.contains("none of its sinks keeps a store"), "{said}");

    let allow = Request { allow: vec!["seen".into()], ..request(From::Oldest, To::Live) };
    let estimate = world.engine(None).estimate(&allow).await.unwrap();
    assert_eq!((estimate.records, lines(&seen)), (Some(40), 0));
    world.stop.cancel();
    world.engine(None).start(allow).await.unwrap_err();
    let stop = CancellationToken::new();
    let engine = Engine { stop: &stop, ..world.engine(None) };
    let receipt = engine.resume("p").await.unwrap();
    assert_eq!((receipt.state, receipt.records.delivered, lines(&seen)), (State::Done, 40, 40));
    for done in [engine.resume("p").await, engine.approve("p").await] {
        assert!(done.unwrap_err().to_string().contains("has no rebuild that could be"));
    }

    let held: u64 = receipt.fence.values().map(|end| end.saturating_sub(2)).sum();
    let later = Request { allow: vec!["seen".into()], ..request(From::Offset(At::Each(2)), To::Now) };
    let receipt = engine.start(later).await.unwrap();
    assert_eq!((receipt.scanned, receipt.records.delivered), (false, held));
    assert_eq!(lines(&seen), 40 + usize::try_from(held).unwrap());
}

/// The pipeline that was live has had them for everything that a generation is brought up to date with.
#[tokio::test(flavor = "multi_thread")]
async fn taking_a_rebuild_back_has_no_effects() {
    let (world, seen, _folder) = with_lines().await;
    world.send(30).await;
    let runtime = world.live().await;
    world.settled(&runtime).await;
    let engine = world.engine(Some(&runtime));
    let allow = Request { allow: vec!["seen".into()], ..request(From::Oldest, To::Live) };
    assert_eq!(engine.start(allow).await.unwrap().state, State::Live);
    assert_eq!(lines(&seen), 30 + 30);
    world.send(20).await;
    world.settled(&runtime).await;
    engine.rollback("p").await.unwrap();
    runtime.drain().await;
    assert_eq!(lines(&seen), 30 + 30 + 20);
}

/// Lets everything pass, and somebody sees it.
static SEEN: StageSpec = StageSpec::transform::<filter::Config>("seen", Takes::Any, Gives::Same)
    .effect(Effect::ExternalEffect)
    .summary("passes");

/// Nobody knows what it should hold without asking again, so it does not go live by itself; and without the stage it
/// would go live empty.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_behind_an_effect_waits_for_an_approval() {
    let mut world = World::new().await;
    let stages = &mut world.topologies[0].stages;
    let (behind, params) = (stages.len() - 1, json!({"expr": "true"}));
    assert_eq!(&*stages[behind].name, "last");
    stages.insert(behind, StageNode { name: "seen".into(), spec: &SEEN, params, ..stages[behind].clone() });
    stages[behind + 1].input = Some(Input { stage: behind, ..stages[behind].input.unwrap() });
    world.send(10).await;
    let empty = Request { suppress: vec!["seen".into()], ..request(From::Oldest, To::Live) };
    let said = refused(&world, empty).await;
    assert!(said.contains("`last` keeps a store that would go live without any records"), "{said}");
    let suppress = Request { suppress: vec!["all".into()], ..request(From::Oldest, To::Live) };
    let said = refused(&world, suppress).await;
    assert!(said.contains("`all` keeps a store"), "{said}");
    let allow = Request { allow: vec!["seen".into()], ..request(From::Oldest, To::Live) };
    let receipt = world.engine(None).start(allow).await.unwrap();
    let comparison = receipt.comparison.unwrap();
    assert_eq!((receipt.state, comparison.differences()), (State::Differs, 0));
    assert_eq!(comparison.not_compared, [("last".to_owned(), "seen".to_owned())].into());
    assert_eq!(world.engine(None).approve("p").await.unwrap().state, State::Live);
}
