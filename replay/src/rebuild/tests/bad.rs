//! What cannot be done is refused with the reason, before anything is made.

use courant_pipeline::config::StageNode;
use courant_stages::sinks::delivery_ack;

use super::world::{PIPELINE, World, request};
use crate::rebuild::{At, From, Request, To};

async fn refused(world: &World, request: Request) -> String {
    let refused = world.engine(None).start(request).await.unwrap_err().to_string();
    assert!(world.engine(None).list(None).await.unwrap().is_empty(), "nothing was made: {refused}");
    refused
}

#[tokio::test]
async fn names_and_places_that_are_not_there() {
    let world = World::new().await;
    world.send(10).await;
    let unknown = refused(&world, Request::new("pp", From::Scan, To::Live)).await;
    assert_eq!(unknown, "there is no pipeline `pp`; did you mean `p`?");
    let suppress = Request { suppress: vec!["lst".into()], ..request(From::Scan, To::Live) };
    let stage = refused(&world, suppress).await;
    assert!(stage.contains("no stage `lst`") && stage.contains("did you mean `last`"), "{stage}");
    let late = refused(&world, request(From::Offset(At::Each(1000)), To::Live)).await;
    assert!(late.contains("1000 is not written yet"), "{late}");
    let named = At::Named([("messages.persisted/0".to_owned(), 500)].into());
    let late = refused(&world, request(From::Offset(named.clone()), To::Live)).await;
    assert!(late.contains("and not 500"), "{late}");
    let late = refused(&world, request(From::Oldest, To::Offset(named))).await;
    assert!(late.contains("500 is not written yet"), "{late}");
    let past = refused(&world, request(From::Offset(At::Each(2)), To::Offset(At::Each(1)))).await;
    assert!(past.contains("the end lies before the start in messages.persisted/"), "{past}");
    let other = At::Named([("messages.persisted/77".to_owned(), 0)].into());
    let other = refused(&world, request(From::Offset(other), To::Live)).await;
    assert!(other.contains("no partition `messages.persisted/77`"), "{other}");
    for what in ["resumed", "approved"] {
        let engine = world.engine(None);
        let nothing = if what == "resumed" { engine.resume("p").await } else { engine.approve("p").await };
        assert!(nothing.unwrap_err().to_string().contains(what));
    }
}

#[tokio::test]
async fn effects_that_somebody_would_see_again() {
    let effects = format!("{PIPELINE}\n[[pipeline.stage]]\nkind = \"stdout\"\ninput = \"map\"\n");
    let world = World::with(&effects).await;
    world.send(5).await;
    let refused_one = refused(&world, request(From::Oldest, To::Now)).await;
    assert!(
        refused_one.contains("--suppress stdout") && refused_one.contains("--allow stdout"),
        "{refused_one}"
    );
    let suppress = Request { suppress: vec!["stdout".into()], ..request(From::Oldest, To::Now) };
    world.engine(None).start(suppress).await.unwrap();
    let allow = Request { allow: vec!["stdout".into()], ..request(From::Oldest, To::Now) };
    world.engine(None).start(allow).await.unwrap();
}

#[tokio::test]
async fn pipelines_that_make_nothing_from_history() {
    let kinds = [
        ("stage = [{ kind = 'generate' }, { kind = 'blackhole' }]", "its source is `generate`"),
        (
            "stage = [{ kind = 'kafka-consume', params = { topics = ['messages.persisted'] } }, { kind = 'blackhole' }]",
            "none of its sinks keeps a store",
        ),
    ];
    for (stages, reason) in kinds {
        let world = World::with(&format!("[[pipeline]]\nname = 'p'\n{stages}\n")).await;
        let refused = refused(&world, request(From::Oldest, To::Now)).await;
        assert!(refused.contains(reason), "{refused}");
    }
    let topics = "stage = [{ kind = 'kafka-consume', params = { topics = ['chats.created'] } }, \
                  { kind = 'table', params = { key = '.a' } }]";
    let world = World::with(&format!("[[pipeline]]\nname = 'p'\n{topics}\n")).await;
    let refused = refused(&world, request(From::Scan, To::Now)).await;
    assert!(refused.contains("use --from oldest"), "{refused}");
}

#[tokio::test]
async fn a_sink_that_writes_where_live_pipelines_write() {
    let mut world = World::new().await;
    let stages = &mut world.topologies[0].stages;
    let acks = StageNode {
        name: "acks".into(),
        spec: &delivery_ack::SPEC,
        params: serde_json::json!({}),
        ..stages[2].clone()
    };
    stages.push(acks);
    let written = refused(&world, request(From::Oldest, To::Now)).await;
    assert!(written.contains("is a `delivery-ack`: it writes where live pipelines write"), "{written}");
    assert!(written.contains("--suppress acks"), "{written}");
}

#[tokio::test]
async fn a_rebuild_that_is_not_finished_is_not_forgotten() {
    let world = World::new().await;
    world.send(50).await;
    world.stop.cancel();
    let stopped = world.rebuild(From::Scan, To::Now).await.unwrap_err().to_string();
    assert!(stopped.contains("courant replay p --resume"), "{stopped}");
    let again = world.rebuild(From::Scan, To::Now).await.unwrap_err().to_string();
    assert!(again.contains("is not finished") && again.contains("--discard"), "{again}");
}

#[tokio::test]
async fn an_estimate_makes_nothing() {
    let world = World::new().await;
    world.send(50).await;
    let estimate = world.engine(None).estimate(&request(From::Oldest, To::Live)).await.unwrap();
    assert_eq!((estimate.records, estimate.scanned), (Some(50), false));
    assert!(estimate.seconds.is_some() && estimate.bytes.is_some() && estimate.read_units.is_some());
    let scan = world.engine(None).estimate(&request(From::Scan, To::Live)).await.unwrap();
    assert!(scan.scanned && scan.records_per_second.is_some_and(|rate| rate > 0.0), "{scan:?}");
    assert!(world.engine(None).list(None).await.unwrap().is_empty());
}
