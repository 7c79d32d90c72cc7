//! The runtime's promises, one test each; `property` tries them all at once on random graphs.

mod kinds;
mod property;
mod world;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::world::{World, files, numbers, quick};
use super::{Ending, Host, RunReport, Runtime, run_to_end};
use crate::ack::Tally;
use crate::config::{OnError, Topology};
use crate::health::PipelineState;
use crate::intake::{Intake, WayIn};
use crate::positions::SavedPositions;
use crate::services::Services;
use crate::stage::Partition;
use crate::units::Span;

async fn run(world: &Arc<World>, topology: &Topology) -> RunReport {
    run_to_end(topology, &world.host(), &CancellationToken::new()).await
}

fn finished(report: &RunReport) -> Tally {
    assert!(matches!(report.ending, Ending::Finished), "{:?}", report.ending);
    assert_eq!(report.read, report.dispositions.sum());
    report.dispositions
}

#[tokio::test(start_paused = true)]
async fn everything_read_is_delivered_in_order() {
    let world = Arc::new(World::default());
    let topology = numbers(&world, 1000, 10, 64).collect("sink").done();
    assert_eq!(finished(&run(&world, &topology).await), Tally { delivered: 1000, ..Tally::default() });
    assert_eq!(world.arrived_at("sink"), (0..1000).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_waits_while_the_others_pass() {
    let world = Arc::new(World::default());
    let flaky = json!({"act": "flaky", "every": 1000, "at": 3, "times": 3});
    let topology = numbers(&world, 100, 10, 20)
        .mischief("flaky", flaky)
        .with(|p| p.retry = quick())
        .collect("sink")
        .done();
    assert_eq!(finished(&run(&world, &topology).await).delivered, 100);
    let arrived = world.arrived_at("sink");
    let at = |n| arrived.iter().position(|arrived| *arrived == n).unwrap();
    assert!(at(99) < at(3), "other keys do not wait for key 3");
    assert!(at(3) < at(13) && at(13) < at(23), "key 3 keeps its order");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_record_becomes_a_dead_letter_and_does_not_stop_its_lane() {
    let world = Arc::new(World::default());
    let reject = json!({"act": "reject", "every": 10, "at": 5});
    let topology = numbers(&world, 50, 1, 50).mischief("picky", reject).collect("sink").done();
    let tally = finished(&run(&world, &topology).await);
    assert_eq!(tally, Tally { delivered: 45, dead_lettered: 5, ..Tally::default() });
    let letters = world.letters.lock().unwrap();
    let letter = &letters[0];
    assert_eq!((&*letter.stage, &*letter.queue, letter.attempts), ("picky", "letters", 1));
    assert_eq!(letter.error, "read: not a number I like");
    assert_eq!(letter.payload, "5");
}

#[tokio::test(start_paused = true)]
async fn what_a_stage_finishes_is_delivered_and_goes_no_further() {
    let world = Arc::new(World::default());
    let finish = json!({"act": "finish", "every": 10, "at": 5});
    let topology = numbers(&world, 50, 1, 50).mischief("done", finish).collect("sink").done();
    assert_eq!(finished(&run(&world, &topology).await), Tally { delivered: 50, ..Tally::default() });
    assert_eq!(world.arrived_at("sink").len(), 45);
}

#[tokio::test(start_paused = true)]
async fn drop_counts_instead_of_keeping() {
    let world = Arc::new(World::default());
    let reject = json!({"act": "reject", "every": 10, "at": 5});
    let topology = numbers(&world, 50, 1, 50)
        .mischief("picky", reject)
        .with(|policy| policy.on_error = OnError::Drop)
        .collect("sink")
        .done();
    assert_eq!(
        finished(&run(&world, &topology).await),
        Tally { delivered: 45, dropped: 5, ..Tally::default() }
    );
}

#[tokio::test(start_paused = true)]
async fn retries_end_at_the_deadline() {
    let world = Arc::new(World::default());
    let flaky = json!({"act": "flaky", "every": 10, "at": 5, "times": 1_000_000});
    let topology = numbers(&world, 10, 10, 10)
        .mischief("flaky", flaky)
        .with(|policy| {
            policy.retry = quick();
            policy.retry.deadline = Some(Span::millis(500));
        })
        .collect("sink")
        .done();
    let started = Instant::now();
    assert_eq!(
        finished(&run(&world, &topology).await),
        Tally { delivered: 9, dead_lettered: 1, ..Tally::default() }
    );
    assert!(started.elapsed() < Duration::from_secs(1));
    assert!(world.letters.lock().unwrap()[0].attempts > 5);
}

#[tokio::test(start_paused = true)]
async fn something_else_can_go_on_for_what_is_given_up() {
    for (act, on_error) in
        [("reject", OnError::DeadLetter), ("flaky", OnError::DeadLetter), ("reject", OnError::Drop)]
    {
        let world = Arc::new(World::default());
        let consoles = json!({"act": act, "every": 10, "at": 5, "times": 1_000_000, "consoles": true,
            "drops_failed": on_error == OnError::Drop});
        let topology = numbers(&world, 10, 1, 10)
            .mischief("kind", consoles)
            .with(|policy| {
                policy.retry = quick();
                policy.retry.deadline = Some(Span::millis(500));
                policy.on_error = on_error;
            })
            .collect("sink")
            .done();
        let tally = finished(&run(&world, &topology).await);
        assert_eq!((tally.sum(), tally.failed), (10, 0), "{act}");
        assert_eq!(tally.dead_lettered, u64::from(on_error == OnError::DeadLetter), "{act}");
        assert_eq!(world.arrived_at("sink"), [0, 1, 2, 3, 4, 1005, 6, 7, 8, 9], "{act}: in its place");
        assert!(world.violations.lock().unwrap().is_empty(), "{act}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_dependency_is_left_alone() {
    let world = Arc::new(World::default());
    let down = json!({"act": "down", "every": 1, "at": 0, "times": 1_000_000});
    let topology = numbers(&world, 1000, 100, 10)
        .mischief("down", down)
        .with(|policy| {
            policy.lanes = Some(8);
            policy.retry = quick();
            policy.retry.circuit_after = NonZeroU32::new(5).unwrap();
            policy.retry.circuit_pause = Span::secs(10);
            policy.retry.deadline = Some(Span::secs(60));
            policy.batch.records = NonZeroU32::new(1000).unwrap();
        })
        .collect("sink")
        .done();
    assert_eq!(finished(&run(&world, &topology).await).dead_lettered, 1000);
    // Eight lanes retrying every 50 ms for a minute would be some ten thousand calls.
    let calls = world.calls.load(Ordering::SeqCst);
    assert!(calls < 120, "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn one_stuck_record_bounds_how_far_the_source_is_read() {
    let world = Arc::new(World::default());
    let flaky = json!({"act": "flaky", "every": u64::MAX, "at": 0, "times": u32::MAX});
    let topology = numbers(&world, None, 1000, 512)
        .mischief("flaky", flaky)
        .with(|p| p.retry = quick())
        .collect("sink")
        .done();
    let runtime = Runtime::new(world.host());
    runtime.apply(vec![topology]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let health = runtime.health().remove(0);
    assert!(health.read > 4096 && health.read < 80_000, "{}", health.read);
    assert_eq!(health.dispositions.sum() + health.in_flight(), health.read);
    runtime.drain().await;
    assert!(world.saved.lock().unwrap().is_empty(), "nothing is committed past record 0");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_contained_and_the_pipeline_restarts_from_its_last_commit() {
    let world = Arc::new(World::default());
    let panic = json!({"act": "panic", "every": 1000, "at": 700, "times": 2});
    let topology = numbers(&world, 1000, 10, 50).mischief("nervous", panic).collect("sink").done();
    let runtime = Runtime::new(world.host());
    runtime.apply(vec![topology]).await;
    runtime.finished().await;
    let health = runtime.health().remove(0);
    assert_eq!((health.state, health.restarts), (PipelineState::Finished, 2));
    assert_eq!(health.last_error.unwrap(), "stage `nervous`: panicked: cannot stand 700");
    assert_eq!(health.read, health.dispositions.sum());
    let mut arrived = world.arrived_at("sink");
    arrived.sort_unstable();
    arrived.dedup();
    assert_eq!(arrived.len(), 1000);
    assert!(world.violations.lock().unwrap().is_empty(), "{:?}", world.violations.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_is_read_elsewhere_by_now_is_not_committed() {
    let world = Arc::new(World::default());
    world.is_gone.store(true, Ordering::SeqCst);
    // Under way when it goes.
    let slow = json!({"act": "none", "every": 1, "at": 0, "pause_ms": 1000});
    let topology = numbers(&world, 100, 10, 100).mischief("slow", slow).collect("sink").done();
    let report = run_to_end(&topology, &world.host(), &CancellationToken::new()).await;
    assert_eq!(report.dispositions, Tally { delivered: 100, ..Tally::default() });
    assert!(world.saved.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_next_file_has_positions_of_its_own() {
    let world = Arc::new(World::default());
    let topology = files(&world, 10).collect("sink").done();
    let saved = || world.saved.lock().unwrap()["test"].clone();
    let at_ten = |source: &str| SavedPositions {
        source: source.to_owned(),
        positions: [(Partition::only(), 10)].into(),
    };
    let between = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        saved()
    };
    let (report, between) = tokio::join!(run(&world, &topology), between);
    assert_eq!(between, at_ten("file 1"), "the source is on the second already");
    assert_eq!(saved(), at_ten("file 2"));
    assert_eq!(finished(&report).delivered, 20);
    assert!(world.violations.lock().unwrap().is_empty(), "{:?}", world.violations.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_comes_back_comes_back_for_every_lane() {
    let world = Arc::new(World::default());
    // The first call of each lane fails, and then none.
    let outage = json!({"act": "outage", "every": 1, "at": 0, "times": 8, "pause_ms": 50});
    let topology = numbers(&world, 800, 80, 10)
        .mischief("server", outage)
        .with(|policy| {
            policy.lanes = Some(8);
            policy.retry.circuit_after = NonZeroU32::MIN;
            policy.retry.circuit_pause = Span::secs(60);
        })
        .collect("sink")
        .done();
    let started = Instant::now();
    assert_eq!(finished(&run(&world, &topology).await).delivered, 800);
    let took = started.elapsed();
    assert!(took > Duration::from_secs(60) && took < Duration::from_secs(62), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_out_of_time_returns_what_is_under_way() {
    let world = Arc::new(World::default());
    let slow = json!({"act": "none", "every": 1, "at": 0, "pause_ms": 3_600_000});
    let topology = numbers(&world, 100, 10, 100).mischief("slow", slow).collect("sink").done();
    let stop = CancellationToken::new();
    let (host, stopped) = (world.host(), stop.clone());
    let running = tokio::spawn(async move { run_to_end(&topology, &host, &stopped).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.cancel();
    let report = running.await.unwrap();
    assert!(matches!(report.ending, Ending::Stopped));
    assert_eq!(report.dispositions, Tally { failed: 100, ..Tally::default() });
    assert!(world.saved.lock().unwrap().is_empty());
}

/// A pipeline that has always something under way; another with every `version`.
fn busy(world: &Arc<World>, version: u64) -> Topology {
    world.sinks.lock().unwrap().clear();
    let slow = json!({"act": "none", "every": version + 1, "at": 0, "pause_ms": 3});
    numbers(world, None, 7, 40)
        .mischief("slow", slow)
        .with(|policy| {
            policy.lanes = Some(3);
            policy.buffer = Some(100);
        })
        .collect("sink")
        .done()
}

fn assert_exactly_once(world: &World) {
    let mut arrived = world.arrived_at("sink");
    assert!(arrived.len() > 1000, "{}", arrived.len());
    for key in 0..7 {
        let of_key: Vec<_> = arrived.iter().filter(|n| *n % 7 == key).collect();
        assert!(of_key.is_sorted(), "key {key} keeps its order over reloads");
    }
    arrived.sort_unstable();
    assert_eq!(arrived, (0..arrived.len() as u64).collect::<Vec<_>>(), "each once, none left out");
    assert!(world.violations.lock().unwrap().is_empty(), "{:?}", world.violations.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn clean_reloads_under_load_deliver_exactly_once() {
    let world = Arc::new(World::default());
    let runtime = Runtime::new(world.host());
    for version in 0..=20 {
        let report = runtime.apply(vec![busy(&world, version)]).await;
        assert_eq!(report.restarted.len() + report.started.len(), 1);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    runtime.drain().await;
    assert_exactly_once(&world);
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_stands_still_while_something_is_done_and_goes_on() {
    let world = Arc::new(World::default());
    let runtime = Runtime::new(world.host());
    runtime.apply(vec![busy(&world, 0)]).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let name = runtime.topologies().remove(0).name;
    for _ in 0..3 {
        let reloaded = async {
            tokio::task::yield_now().await;
            runtime.apply(vec![busy(&world, 0)]).await
        };
        let still = runtime.while_stopped(&name, async {
            let before = world.arrived_at("sink").len();
            tokio::time::sleep(Duration::from_secs(5)).await;
            (runtime.health().remove(0).state, world.arrived_at("sink").len() - before)
        });
        let ((state, arrived), _) = tokio::join!(still, reloaded);
        assert_eq!((state, arrived), (PipelineState::Stopped, 0));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(runtime.health().remove(0).state, PipelineState::Running);
    }
    assert_eq!(runtime.while_stopped("nobody", async { 7 }).await, 7);
    runtime.drain().await;
    assert_exactly_once(&world);
}

#[tokio::test(start_paused = true)]
async fn reloads_at_once_take_turns_and_the_last_one_stays() {
    let world = Arc::new(World::default());
    let runtime = Runtime::new(world.host());
    runtime.apply(vec![busy(&world, 0)]).await;
    for version in (1..20).step_by(2) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let [one, other] = [version, version + 1].map(|version| busy(&world, version));
        let wanted = Arc::clone(&other.entry);
        let (first, second) = tokio::join!(runtime.apply(vec![one]), runtime.apply(vec![other]));
        assert_eq!((first.restarted, second.restarted), (vec!["test".to_owned()], vec!["test".to_owned()]));
        assert_eq!(runtime.topologies()[0].entry, wanted);
    }
    runtime.drain().await;
    assert_exactly_once(&world);
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_pipeline_is_left_alone_by_a_reload() {
    let world = Arc::new(World::default());
    let topology = numbers(&world, None, 7, 40)
        .mischief("slow", json!({"act": "none", "every": 1, "at": 0, "pause_ms": 3}))
        .collect("sink")
        .done();
    let runtime = Runtime::new(world.host());
    runtime.apply(vec![topology.clone()]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut in_other_words = topology.clone();
    let mut entry = (*topology.entry).clone();
    entry.stage[1].input = Some("numbers".to_owned());
    in_other_words.entry = Arc::new(entry);
    for same in [topology, in_other_words] {
        assert_eq!(runtime.apply(vec![same]).await.unchanged, ["test"]);
    }
    assert_eq!(world.runs.load(Ordering::SeqCst), 1);
    assert_eq!(runtime.apply(Vec::new()).await.stopped, ["test"]);
    assert!(runtime.health().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_no_pipeline_serves_any_more_is_given_up() {
    let (world, intake) = (Arc::new(World::default()), Intake::default());
    let services = Services::default().with(Arc::clone(&world)).with(Arc::new(intake.clone()));
    let runtime = Runtime::new(Host { services, ..world.host() });
    let way = WayIn { door: "rest", command: "a".to_owned() };
    let serving = Topology { serves: vec![way], ..busy(&world, 0) };
    drop(intake.serve("rest", &["a".to_owned()]).await.unwrap());
    runtime.apply(vec![serving]).await;
    assert!(intake.is_served("rest", "a"), "its source comes back");
    runtime.apply(vec![busy(&world, 0)]).await;
    assert!(!intake.is_served("rest", "a"));
    runtime.drain().await;
}

#[tokio::test(start_paused = true)]
async fn no_key_keeps_another_from_its_turn() {
    let world = Arc::new(World::default());
    let stuck = json!({"act": "flaky", "every": 1_000_000, "at": 0, "times": 1_000_000});
    let topology = numbers(&world, 2, 2, 2)
        .mischief("stuck", stuck)
        .with(|policy| {
            policy.retry = quick();
            policy.batch.records = NonZeroU32::MIN;
        })
        .mischief("flaky", json!({"act": "down", "every": 2, "at": 1, "times": 7}))
        .with(|policy| policy.retry = quick())
        .collect("sink")
        .done();
    let runtime = Runtime::new(world.host());
    runtime.apply(vec![topology]).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.arrived_at("sink"), [1]);
    let health = runtime.health().remove(0);
    assert_eq!(health.last_error.unwrap(), "stage `stuck`: be flaky: not now");
    runtime.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_record_held_for_no_reason_is_offered_again() {
    let world = Arc::new(World::default());
    let hold = json!({"act": "hold", "every": 10, "at": 5, "times": 3});
    let topology =
        numbers(&world, 20, 20, 20).mischief("shy", hold).with(|p| p.retry = quick()).collect("sink").done();
    assert_eq!(finished(&run(&world, &topology).await).delivered, 20);
}

#[tokio::test(start_paused = true)]
async fn a_stage_cannot_lose_a_record_by_swapping_it() {
    let world = Arc::new(World::default());
    let topology = numbers(&world, 100, 10, 50)
        .mischief("swap", json!({"act": "swap", "every": 2, "at": 0}))
        .collect("sink")
        .done();
    assert_eq!(finished(&run(&world, &topology).await).delivered, 100);
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_a_stage_that_cannot_open() {
    let world = Arc::new(World::default());
    let topology =
        numbers(&world, 1, 1, 1).mischief("never", json!({"act": "never-opens", "every": 1, "at": 0})).done();
    let runtime = Runtime::new(world.host());
    runtime.apply(vec![topology]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = Instant::now();
    runtime.drain().await;
    assert!(asked.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_after_the_last_drain() {
    let world = Arc::new(World::default());
    let runtime = Runtime::new(world.host());
    runtime.drain().await;
    runtime.apply(vec![numbers(&world, None, 1, 1).collect("sink").done()]).await;
    assert!(runtime.health().is_empty());
    assert_eq!(world.runs.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_changed_key_moves_its_records_to_that_keys_lane() {
    let world = Arc::new(World::default());
    let topology = numbers(&world, 400, 8, 20)
        .mischief("rekey", json!({"act": "same-key", "every": 1, "at": 0}))
        .with(|policy| policy.lanes = Some(4))
        .mischief("watch", json!({"act": "overlap", "every": 1, "at": 0}))
        .with(|policy| policy.lanes = None)
        .collect("sink")
        .with(|policy| policy.lanes = None)
        .done();
    assert_eq!(finished(&run(&world, &topology).await).delivered, 400);
    assert!(world.violations.lock().unwrap().is_empty(), "{:?}", world.violations.lock().unwrap());
}
