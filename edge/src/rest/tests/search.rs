//! Finding what was said, and only by those who may read it.

use std::path::Path;
use std::sync::Arc;

use courant_connectors::model::tables::chat_memberships;
use courant_connectors::model::{ChatId, Timestamp};
use courant_connectors::search::{IndexOptions, IndexWriter, MEMORY_PER_THREAD, Message, Offered};
use serde_json::{Value, json};

use super::world::{Answer, Person, World};
use crate::rest::search::own_of;

const BEGUN: u64 = 1_769_783_400_000;

/// An index that the process keeps while this lives.
struct Index {
    writer: IndexWriter,
    _offered: Offered,
    _folder: tempfile::TempDir,
}

impl Index {
    fn of(world: &World) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let writer = open(folder.path());
        let offered = world.api.searches.offer(Arc::clone(writer.reader()));
        Self { writer, _offered: offered, _folder: folder }
    }

    /// Each with its chat, one second after the other.
    fn say(&mut self, said: &[(&str, &str)]) {
        let messages: Vec<Message<'_>> =
            (1..).zip(said).map(|(at, (chat, text))| message(chat, at, text)).collect();
        self.writer.write(&messages).unwrap();
    }
}

fn open(folder: &Path) -> IndexWriter {
    IndexWriter::open(folder, IndexOptions { threads: 1, memory: MEMORY_PER_THREAD }).unwrap()
}

fn message<'a>(chat: &'a str, sequence: u64, text: &'a str) -> Message<'a> {
    Message {
        message_id: format!("msg_{sequence}").into(),
        chat_id: chat.into(),
        sequence,
        sender_id: "user_1".into(),
        content: text.into(),
        content_type: "text/plain".into(),
        created_at: Timestamp::from_unix_millis(BEGUN + sequence * 1000),
        version: 0,
    }
}

fn sequences(answer: &Answer) -> Vec<u64> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let results = answer.body["results"].as_array().unwrap();
    results.iter().map(|found| found["sequence"].as_u64().unwrap()).collect()
}

async fn found(world: &World, who: &Person, query: &str) -> Vec<u64> {
    sequences(&world.get(&format!("/search?{query}"), who).await)
}

#[tokio::test]
async fn members_find_what_was_said_and_nobody_else_does() {
    let world = World::new().await;
    let (ada, bob, eve) = (world.person(1).await, world.person(2).await, world.person(3).await);
    let (both, own) = (world.group(&ada, &[&bob]).await, world.group(&ada, &[]).await);
    let mut index = Index::of(&world);
    index.say(&[(&both, "green <tea>"), (&own, "my tea"), ("chat_elsewhere", "their tea")]);
    assert_eq!(found(&world, &ada, "q=tea").await, [2, 1]);
    assert_eq!(found(&world, &bob, "q=tea").await, [1]);
    assert!(found(&world, &eve, "q=tea").await.is_empty());
    assert_eq!(found(&world, &ada, &format!("q=tea&chat_id={both}")).await, [1]);
    for (who, chat, refusal) in
        [(&eve, &*both, (403, "NOT_A_MEMBER")), (&eve, "chat_elsewhere", (404, "NOT_FOUND"))]
    {
        let answer = world.get(&format!("/search?q=tea&chat_id={chat}"), who).await;
        assert_eq!(answer.refusal(), refusal, "{chat}");
    }
    let answer = world.get("/search?q=tea", &bob).await;
    assert_eq!(
        answer.body,
        json!({"results": [{
            "message_id": "msg_1", "chat_id": both, "sequence": 1, "sender_id": "user_1",
            "content_type": "text/plain", "created_at": "2026-01-30T14:30:01.000Z",
            "snippet": "green &lt;<mark>tea</mark>&gt;",
        }], "next": Value::Null})
    );
    let chats = [both.as_str(), own.as_str(), "chat_elsewhere"].map(ChatId::from);
    let bobs = own_of(&world.api, &bob.caller(), &chats).await.unwrap();
    assert_eq!(bobs, [ChatId::from(&*both)].into(), "what a late list says is checked");
    chat_memberships::remove(&*world.engine, &ChatId::from(&*both), &bob.user_id).await.unwrap();
    assert!(found(&world, &bob, "q=tea").await.is_empty());
}

#[tokio::test]
async fn a_search_is_read_page_by_page() {
    let world = World::new().await;
    let ada = world.person(1).await;
    let chat = world.group(&ada, &[]).await;
    let mut index = Index::of(&world);
    index.say(&[(&*chat, "tea"); 7]);
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let answer = world.get(&format!("/search?q=tea&limit=3{next}"), &ada).await;
        all.extend(sequences(&answer));
        match answer.body["next"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(all, [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(found(&world, &ada, "q=tea&before=2026-01-30T14:30:03.000Z").await, [2, 1]);
}

#[tokio::test]
async fn what_cannot_be_searched_for_is_refused_with_the_reason() {
    let world = World::new().await;
    let ada = world.person(1).await;
    let nowhere = world.get("/search?q=tea", &ada).await;
    assert_eq!(nowhere.refusal(), (503, "UNAVAILABLE"));
    assert!(nowhere.body["error"]["message"].as_str().unwrap().contains("keeps no search index"));
    let mut index = Index::of(&world);
    let chat = world.group(&ada, &[]).await;
    let many: String = (0..3000).map(|n| format!("ab{n} ")).collect();
    index.say(&[(&chat, &many)]);
    let long = format!("q={}", "x".repeat(257));
    for (query, said) in [
        ("", "missing field"),
        ("q=", "no word"),
        ("q=%22tea", "quotation mark"),
        ("q=-tea", "word that is wanted"),
        ("q=a*", "before the star"),
        ("q=ab*", "too many different words"),
        (&long, "at most 256"),
        ("q=tea&limit=101", "at most 100"),
        ("q=tea&limit=0", "query"),
        ("q=tea&cursor=x", "cursor"),
        ("q=tea&before=yesterday", "not a time"),
        ("q=tea&chat_id=tea", "the id of a chat"),
        ("q=tea&sort=best", "unknown field"),
    ] {
        let answer = world.get(&format!("/search?{query}"), &ada).await;
        assert_eq!(answer.refusal(), (400, "BAD_REQUEST"), "{query}");
        let message = answer.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(said), "{query}: {message}");
    }
}

#[tokio::test]
async fn somebody_in_many_chats_finds_what_was_said_in_each() {
    let world = World::new().await;
    let ada = world.person(1).await;
    let mut chats = Vec::new();
    for _ in 0..40 {
        chats.push(world.group(&ada, &[]).await);
    }
    let mut index = Index::of(&world);
    let said: Vec<(&str, &str)> = chats.iter().map(|chat| (&**chat, "tea")).collect();
    index.say(&said);
    assert_eq!(found(&world, &ada, "q=tea&limit=100").await.len(), 40);
    assert_eq!(found(&world, &ada, "q=tea&limit=1").await, [40]);
}
