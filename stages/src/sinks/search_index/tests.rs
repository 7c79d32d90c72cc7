//! The stage from its parameters to what can be found.

use std::time::Duration;

use bytes::Bytes;
use courant_connectors::model::topics::MessagePersisted;
use courant_connectors::model::{Timestamp, tables::messages};
use courant_connectors::search::{Ask, Page, Query, Unanswered};
use courant_pipeline::Services;
use courant_pipeline::spec::Part;
use serde_json::json;

use super::*;
use crate::derived::DerivedHome;
use crate::testing::{build, fates, problem};

/// A process that keeps derived stores and answers searches.
struct World {
    home: DerivedHome,
    searches: Arc<Searches>,
    _root: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        Self { home: DerivedHome::new(root.path()), searches: Arc::default(), _root: root }
    }

    async fn open(&self, home: &DerivedHome) -> (Arc<dyn Stage>, Arc<dyn Derived>) {
        let services = Services::default().with(Arc::new(home.clone())).with(Arc::clone(&self.searches));
        let built = build(&SPEC, json!({"threads": 1}), &services).ok().unwrap();
        let Part::Stage(stage) = built.part else { panic!("it is no source") };
        stage.open().await.unwrap();
        (stage, built.derives.unwrap())
    }

    async fn find(&self, query: &str) -> Result<Page, Unanswered> {
        let ask = Ask {
            query: Query::parse(query).unwrap(),
            chats: vec!["chat_1".into()],
            before: None,
            after: None,
            limit: 10,
            patience: Duration::from_secs(60),
        };
        self.searches.ask(ask).await
    }
}

fn event(sequence: u64, content: &str, content_type: &str) -> Record {
    let message = messages::Message {
        chat_id: "chat_1".into(),
        sequence,
        message_id: format!("msg_{sequence}").into(),
        sender_id: "user_1".into(),
        client_message_id: "c".into(),
        content: content.into(),
        content_type: content_type.into(),
        created_at: Timestamp::from_unix_millis(1_769_783_400_000 + sequence),
    };
    Record::new(MessagePersisted::of(message).encode().payload).with_key("chat_1")
}

fn batch() -> Batch {
    Batch::from(vec![
        event(1, "green tea", "text/plain"),
        event(2, "tea.png", "image/png"),
        Record::new(Bytes::from_static(b"{\"event_type\":\"ChatCreated\"}")),
        Record::new(Bytes::from_static(b"zzz")),
        event(3, "more tea", "text/plain"),
        event(1, "green tea", "text/plain"),
    ])
}

#[tokio::test]
async fn messages_can_be_found_once_they_have_passed() {
    let world = World::new();
    assert!(matches!(world.find("tea").await, Err(Unanswered::NoIndex)));
    let (stage, derived) = world.open(&world.home).await;
    let mut records = batch();
    stage.process(&mut records).await.unwrap();
    let fates = fates(&records);
    assert_eq!([&*fates[1], &*fates[2]], ["dropped: not-text", "dropped: unknown-event"]);
    assert!(fates[3].starts_with("reject: read the event"), "{}", fates[3]);
    assert!([0, 4, 5].iter().all(|at| fates[*at].contains("MessagePersisted")), "{fates:?}");
    let found = world.find("tea").await.unwrap().hits;
    assert_eq!(found.iter().map(|hit| hit.message.sequence).collect::<Vec<_>>(), [3, 1]);
    stage.close().await.unwrap();
    assert_eq!(world.find("tea").await.unwrap().hits.len(), 2, "it is asked until there is another");

    // what a rebuild compares: what records become, and what is there
    let mut expected: Vec<Entry> =
        batch().records().filter_map(|record| derived.expected(record).ok().flatten()).collect();
    expected.pop().unwrap(); // the first one once more
    let current = world.home.generations("test").unwrap().current().await.unwrap().unwrap();
    let mut held = Vec::new();
    derived
        .walk(&current.stage_folder("search-index").await.unwrap(), &mut |entry| held.push(entry))
        .unwrap();
    held.sort_by_key(|entry| entry.at);
    assert_eq!(held, expected);
    assert_eq!((&*held[0].key, held[0].at), ("chat_1/1", 1_769_783_400_001));
}

#[tokio::test]
async fn a_rebuild_is_not_asked_before_it_is_live() {
    let world = World::new();
    let generations = world.home.generations("test").unwrap();
    let (live, _) = world.open(&world.home).await;
    live.process(&mut Batch::from(vec![event(1, "old tea", "text/plain")])).await.unwrap();
    let shadow = generations.begin().await.unwrap();
    let (rebuilt, _) = world.open(&world.home.writing(shadow.clone())).await;
    rebuilt.process(&mut Batch::from(vec![event(2, "new tea", "text/plain")])).await.unwrap();
    assert_eq!(world.find("tea").await.unwrap().hits[0].message.content, "old tea");
    rebuilt.close().await.unwrap();
    live.close().await.unwrap();
    generations.make_current(&shadow).await.unwrap();
    let (_live, _) = world.open(&world.home).await;
    let found = world.find("tea").await.unwrap().hits;
    assert_eq!(found.iter().map(|hit| &*hit.message.content).collect::<Vec<_>>(), ["new tea"]);
}

#[tokio::test]
async fn an_index_that_is_in_use_is_waited_for_and_a_damaged_one_is_not() {
    let world = World::new();
    let (open, _) = world.open(&world.home).await;
    let services = Services::default().with(Arc::new(world.home.clone()));
    let second = || match build(&SPEC, json!({}), &services).ok().unwrap().part {
        Part::Stage(stage) => stage,
        Part::Source(_) => panic!("it is no source"),
    };
    let error = second().open().await.unwrap_err();
    assert_eq!(error.class, Class::Retry);
    assert!(error.to_string().contains("is being written by another process"), "{error}");
    open.close().await.unwrap();
    let current = world.home.generations("test").unwrap().current().await.unwrap().unwrap();
    std::fs::write(current.folder().join("search-index/meta.json"), "{").unwrap();
    let error = second().open().await.unwrap_err();
    assert_eq!(error.class, Class::Fatal);
    assert!(error.to_string().contains("courant replay"), "{error}");
}

#[test]
fn wrong_parameters_are_refused() {
    assert_eq!(problem(&SPEC, json!({"threads": 9})).key, "threads");
    assert_eq!(problem(&SPEC, json!({"threads": 2, "memory": "20 MiB"})).key, "memory");
    let built = build(&SPEC, json!({}), &Services::default()).ok().unwrap();
    assert!(built.prefers.batch.records.get() > 10_000 && built.prefers.lanes.is_some());
}
