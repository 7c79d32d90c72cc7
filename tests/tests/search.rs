//! Search as a deployment has it: the shipped pipelines, and the shipped example included beside them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use courant_client::SignedIn;
use courant_tests::chat::{group, shipped_pipelines};
use courant_tests::{Courant, Home, LIMIT, home, repository};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

fn with_search(home: Home) -> Home {
    let example = repository().join("examples/search.toml");
    home.replace_config(&format!("include = [{:?}]\n{}", example.to_str().unwrap(), shipped_pipelines()));
    home
}

async fn say(person: &SignedIn, chat: &str, id: &str, content: &str) {
    let message = json!({"client_message_id": id, "content": content});
    person.client.post(&format!("/api/v1/chats/{chat}/messages"), &message).await.unwrap();
}

async fn search(person: &SignedIn, query: &str) -> Value {
    person.client.get(&format!("/api/v1/search?{query}")).await.unwrap()
}

fn snippets(found: &Value) -> Vec<String> {
    found["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hit| hit["snippet"].as_str().unwrap().to_owned())
        .collect()
}

/// Searches until so many are found.
async fn until_found(person: &SignedIn, query: &str, count: usize) -> Value {
    let found = async {
        loop {
            let found = person.client.get(&format!("/api/v1/search?{query}")).await;
            match found {
                Ok(found) if found["results"].as_array().unwrap().len() == count => return found,
                _ => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    timeout(LIMIT, found).await.unwrap_or_else(|_| panic!("{count} results of {query} are not found"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_is_found_by_those_who_may_read_it() {
    let home = with_search(home!());
    let mut courant = home.start(&[]);
    let (ann, bob, eve) =
        (courant.person("Ann").await, courant.person("Bob").await, courant.person("Eve").await);
    let chat = group(&[&ann, &bob]).await;
    say(&ann, &chat, "m-1", "<i>Grüner Tee</i>, um fünf?").await;
    say(&bob, &chat, "m-2", "今天去吃饭").await;
    say(&bob, &chat, "m-3", "lieber Kaffee").await;
    let found = until_found(&bob, "q=tee", 1).await;
    assert_eq!(snippets(&found), ["&lt;i&gt;Grüner <mark>Tee</mark>&lt;/i&gt;, um fünf?"]);
    let hit = &found["results"][0];
    assert_eq!((&hit["chat_id"], &hit["sequence"]), (&json!(chat), &json!(1)));
    assert_eq!(hit["sender_id"], json!(ann.user_id));
    assert_eq!(snippets(&until_found(&ann, "q=%E5%90%83%E9%A5%AD", 1).await).len(), 1);
    until_found(&ann, "q=kaf*", 1).await;
    assert!(snippets(&search(&eve, "q=tee").await).is_empty());
    let refused = eve.client.get(&format!("/api/v1/search?q=tee&chat_id={chat}")).await.unwrap_err();
    assert_eq!(refused.code(), Some("NOT_A_MEMBER"));

    let members = format!("/api/v1/chats/{chat}/members");
    ann.client.post(&members, &json!({"user_id": bob.user_id, "action": "remove"})).await.unwrap();
    assert!(snippets(&search(&bob, "q=tee").await).is_empty(), "who was removed finds nothing");
    assert_eq!(snippets(&search(&ann, "q=tee").await).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_when_the_process_dies() {
    const MESSAGES: usize = 90;
    let home = with_search(home!());
    let mut courant = home.start(&[]);
    let ann = courant.person("Ann").await;
    let chat = group(&[&ann]).await;
    for round in 0..3 {
        let ann = signed_in(&mut courant, &ann);
        let says = (0..MESSAGES / 3).map(|at| {
            let (ann, chat) = (&ann, &chat);
            async move { say(ann, chat, &format!("m-{round}-{at}"), &format!("tea number {at}")).await }
        });
        join_all(says).await;
        // dies while some are indexed, and some are not
        courant.kill();
        courant = home.start(&[]);
    }
    let ann = signed_in(&mut courant, &ann);
    let found = until_found(&ann, "q=tea&limit=100", MESSAGES).await;
    let mut sequences: Vec<u64> =
        found["results"].as_array().unwrap().iter().map(|hit| hit["sequence"].as_u64().unwrap()).collect();
    assert!(sequences.is_sorted_by(|newer, older| newer > older), "{sequences:?}");
    sequences.dedup();
    assert_eq!(sequences.len(), MESSAGES);
}

/// The same person at the same process, which has another port now.
fn signed_in(courant: &mut Courant, person: &SignedIn) -> SignedIn {
    let token = person.client.token().unwrap();
    SignedIn { client: courant.client().with_token(token), ..person.clone() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fails_is_waited_for_and_searches_go_on() {
    let home = with_search(home!());
    let mut courant = home.start(&[]);
    let ann = courant.person("Ann").await;
    let chat = group(&[&ann]).await;
    say(&ann, &chat, "m-1", "tea").await;
    until_found(&ann, "q=tea", 1).await;
    let index = home.path("data/derived/search/current/search-index");
    let (folder, away) = (std::fs::canonicalize(index).unwrap(), home.path("away"));
    std::fs::rename(&folder, &away).unwrap();
    say(&ann, &chat, "m-2", "more tea").await;
    let health = courant.wait_health("search", |health| {
        health["last_error"].as_str().is_some_and(|error| error.contains("write the index"))
    });
    assert_eq!(health["state"], "running", "{health}");
    assert_eq!(snippets(&search(&ann, "q=tea").await).len(), 1, "what was there can be found");
    std::fs::rename(&away, &folder).unwrap();
    until_found(&ann, "q=tea", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_search_pipeline_there_is_no_search() {
    let home = home!().with_shipped_pipelines();
    let mut courant = home.start(&[]);
    let ann = courant.person("Ann").await;
    let refused = ann.client.get("/api/v1/search?q=tea").await.unwrap_err();
    assert_eq!(refused.code(), Some("UNAVAILABLE"));
    assert!(refused.to_string().contains("keeps no search index"), "{refused}");
}
