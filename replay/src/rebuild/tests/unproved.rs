//! What is not proved does not go live by itself.

use courant_connectors::log::NewRecord;
use courant_connectors::model::topics::memberships_changed;
use serde_json::json;

use super::world::{PIPELINE, World, request};
use crate::rebuild::{At, Authority, From, State, To};

/// Of who joined and left nothing can be scanned: only the log says what there was.
fn of_memberships() -> String {
    format!(
        r#"
[[pipeline]]
name = "p"
[[pipeline.stage]]
kind = "kafka-consume"
params = {{ topics = ["{}"] }}
[[pipeline.stage]]
kind = "table"
name = "all"
params = {{ key = '.n | tostring' }}
"#,
        memberships_changed::NAME
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_log_is_not_proved_by_that_same_part() {
    let world = World::with(&of_memberships()).await;
    let record = |n: u64| NewRecord { payload: json!({ "n": n }).to_string().into(), ..NewRecord::default() };
    let topic = memberships_changed::NAME.into();
    let appended = world.connected.log.produce(&topic, (0..200).map(record).collect()).await;
    assert!(appended.iter().all(Result::is_ok));

    let part = world.rebuild(From::Offset(At::Each(5)), To::Live).await.unwrap();
    let comparison = part.comparison.unwrap();
    assert_eq!((part.state, comparison.differences()), (State::Differs, 0));
    assert_eq!(comparison.authority, Authority::Log);
    assert!(comparison.begins_at.values().all(|at| *at == 5) && !comparison.begins_at.is_empty());
    assert!(!world.engine(None).list(None).await.unwrap()[0].is_live);

    let whole = world.rebuild(From::Oldest, To::Live).await.unwrap();
    assert_eq!(whole.state, State::Live, "{:?}", whole.comparison);
    assert_eq!(world.rows(&whole.generation, "all").len(), 200);

    // The part is older than what is live now.
    let nothing = world.engine(None).approve("p").await.unwrap_err().to_string();
    assert!(nothing.contains("has no rebuild that could be approved"), "{nothing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_stages_made_does_not_go_live() {
    let world = World::new().await;
    world.send(50).await;
    let runtime = world.live().await;
    world.settled(&runtime).await;
    // The engine goes on with what it was begun with; meanwhile the file is edited and loaded again.
    let edited = World::with(&PIPELINE.replace(".payload end", ".payload + {more: 1} end")).await.topologies;
    runtime.apply(edited).await;
    let engine = world.engine(Some(&runtime));
    let refused = engine.start(request(From::Scan, To::Live)).await.unwrap_err().to_string();
    assert!(refused.contains("has changed since its rebuild began"), "{refused}");
    let live: Vec<_> = engine.list(Some("p")).await.unwrap().iter().map(|listed| listed.is_live).collect();
    assert_eq!(live, [true, false]);
    runtime.drain().await;
}
