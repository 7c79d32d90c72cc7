//! The product as several processes on DynamoDB, Kafka and Redis, and what happens when those fail.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::time::Duration;

use courant_conformance::servers::Fault;
use courant_tests::chat::{connect, group, history, next_of, send};
use courant_tests::deployment::{Deployment, EVENT_BUS};
use courant_tests::{LIMIT, home};
use serde_json::json;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_crosses_gateways_and_survives_its_servers() {
    crosses_gateways(Deployment::start(|| home!()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_does_with_the_store_as_the_event_bus() {
    crosses_gateways(Deployment::start_as(EVENT_BUS, || home!()).await).await;
}

async fn crosses_gateways(mut deployment: Deployment) {
    let (ann, bob) = (deployment.person(0, "Ann").await, deployment.person(1, "Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let (mut anns, mut bobs) = (connect(&ann).await, connect(&bob).await);
    let ack = send(&mut anns, &chat, "m-1", "across").await;
    assert_eq!((&ack["type"], &ack["sequence"]), (&json!("ack"), &json!(1)), "{ack}");
    assert_eq!(next_of(&mut bobs, "message").await["content"], "across");

    // A store that throttles makes sends slow, not lost.
    deployment.before_store.plan("TransactWriteItems", (0..3).map(|_| Fault::throttle()));
    assert_eq!(send(&mut anns, &chat, "m-2", "throttled").await["type"], "ack");
    assert_eq!(next_of(&mut bobs, "message").await["content"], "throttled");

    // Live state that was wiped costs deliveries until gateways have registered their sockets again, and no message.
    deployment.redis.wipe();
    assert_eq!(send(&mut anns, &chat, "m-3", "into the void").await["type"], "ack");
    let heard_again = async {
        for n in 0.. {
            let content = format!("again {n}");
            assert_eq!(send(&mut anns, &chat, &format!("m-again-{n}"), &content).await["type"], "ack");
            if let Ok(frame) = timeout(Duration::from_secs(1), next_of(&mut bobs, "message")).await {
                return frame;
            }
        }
        unreachable!("it tries for ever")
    };
    let frame = timeout(LIMIT, heard_again).await.expect("deliveries come back by themselves");
    // The frame tells that something is missing, and the store has it.
    assert!(frame["previous_sequence"].as_u64().unwrap() >= 3, "{frame}");
    bobs.send(&json!({"type": "sync_request", "chat_id": chat, "last_acked_sequence": 2})).await.unwrap();
    let batch = next_of(&mut bobs, "sync_batch").await;
    assert_eq!(batch["messages"][0]["content"], "into the void");

    let stored: BTreeSet<String> = history(&bob, &chat)
        .await
        .iter()
        .map(|message| message["content"].as_str().unwrap().to_owned())
        .collect();
    assert!(stored.contains("across") && stored.contains("throttled") && stored.contains("into the void"));
    deployment.verify();
}
