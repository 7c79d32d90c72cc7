//! Servers that fail under load (ADR-003, section 7), and workers that come and go.
//!
//! While people talk in several chats something breaks and comes back. Whatever their clients were told meanwhile, every
//! message that was acknowledged reached every member, by delivery or by asking the store, once and in order, and
//! `courant verify` finds nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use courant_conformance::servers::Fault;
use courant_tests::chat::{connect, group, history, send};
use courant_tests::deployment::{Deployment, EVENT_BUS};
use courant_tests::home;
use courant_tests::load::Load;

/// Chats with a talker each; enough that both workers have partitions to read.
const CHATS: usize = 6;
/// What everybody has acknowledged before and after something breaks.
const SOME: usize = 15;

/// Talkers at the first gateway; one listener at each.
async fn load(deployment: &mut Deployment) -> Load {
    let listeners = [deployment.person(0, "Near").await, deployment.person(1, "Far").await];
    let mut talking = Vec::new();
    for n in 0..CHATS {
        let talker = deployment.person(0, &format!("Talker {n}")).await;
        let chat = group(&[&talker, &listeners[0], &listeners[1]]).await;
        talking.push((talker, chat));
    }
    let load = Load::start(talking, listeners.into());
    load.talks_on(SOME).await;
    load.delivers_again().await;
    load
}

/// Everything works again, and nothing that was acknowledged is missing anywhere.
async fn finish(load: Load, deployment: &Deployment) {
    load.talks_on(SOME).await;
    load.delivers_again().await;
    let talked = load.finish().await;
    assert!(talked.messages >= CHATS * 2 * SOME, "{talked:?}");
    deployment.verify();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_loses_everything_under_load() {
    let mut deployment = Deployment::start(|| home!()).await;
    let load = load(&mut deployment).await;
    deployment.redis.wipe();
    load.talks_on(SOME).await;
    load.delivers_again().await;
    deployment.redis.kill();
    load.talks_on(SOME).await; // sending needs store and log only
    deployment.redis.restart();
    finish(load, &deployment).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_throttles_and_goes_away_under_load() {
    let mut deployment = Deployment::start(|| home!()).await;
    let load = load(&mut deployment).await;
    for operation in ["BatchGetItem", "UpdateItem", "TransactWriteItems"] {
        deployment.before_store.plan(operation, (0..10).map(|_| Fault::throttle()));
        // Done or not, the client of the store hears the same.
        deployment.before_store.plan(operation, [Fault::LoseAnswer, Fault::LoseRequest, Fault::LoseRequest]);
    }
    load.talks_on(SOME).await;
    deployment.before_store.go_away().await;
    // Long enough for clients to be refused; and an outage is a time, not a condition.
    tokio::time::sleep(Duration::from_secs(10)).await;
    deployment.before_store.come_back().await;
    finish(load, &deployment).await;
}

/// Sends are refused, or acknowledged later; syncs work all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_is_down_for_half_a_minute_under_load() {
    let mut deployment = Deployment::start(|| home!()).await;
    let load = load(&mut deployment).await;
    let (ann, bob) = (deployment.person(0, "Ann").await, deployment.person(1, "Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let mut anns = connect(&ann).await;
    assert_eq!(send(&mut anns, &chat, "m-1", "before").await["type"], "ack");
    deployment.kafka.kill();
    let outage = tokio::time::Instant::now() + Duration::from_secs(30);
    let answer = send(&mut anns, &chat, "m-2", "during").await;
    assert_eq!((&answer["type"], &answer["retryable"]), (&"error".into(), &true.into()), "{answer}");
    assert_eq!(history(&bob, &chat).await.len(), 2, "it is stored, and the store is what syncs read");
    let acked = load.acked();
    tokio::time::sleep_until(outage).await;
    assert_eq!(load.acked(), acked, "nothing is acknowledged that is not published");
    deployment.kafka.start_again();
    finish(load, &deployment).await;
}

/// One worker leaves in order and comes back, then the other: their partitions move, with people talking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_and_go_under_load() {
    let mut deployment = Deployment::start(|| home!()).await;
    let load = load(&mut deployment).await;
    for worker in 0..2 {
        deployment.workers[worker].stop();
        load.talks_on(SOME).await;
        load.delivers_again().await;
        deployment.workers[worker].start();
        load.talks_on(SOME).await;
        load.delivers_again().await;
    }
    finish(load, &deployment).await;
}

/// With the store as the event bus, whoever is killed: one worker, whose shards the other takes over; both; and who stores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_follow_the_store_are_killed_under_load() {
    let mut deployment = Deployment::start_as(EVENT_BUS, || home!()).await;
    let load = load(&mut deployment).await;
    for worker in 0..2 {
        deployment.workers[worker].kill();
        load.talks_on(SOME).await;
        load.delivers_again().await; // by the other, if this one had the shard
        deployment.workers[worker].start();
    }
    for worker in &mut deployment.workers {
        worker.kill();
    }
    load.talks_on(SOME).await; // sending needs the store only
    deployment.ingest.kill();
    for worker in &mut deployment.workers {
        worker.start();
    }
    deployment.ingest.start();
    finish(load, &deployment).await;
    deployment.events_are_in_order();
}
