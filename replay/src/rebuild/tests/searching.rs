//! Those who search while an index is put in place of another.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use courant_connectors::search::{Ask, Query, Searches, Unanswered};
use tokio::runtime::Handle;

use super::world::World;
use crate::rebuild::{Engine, From, Phase, Progress, Request, State, To};

const SEARCH: &str = include_str!("../../../../examples/search.toml");

/// How many of the messages that were sent are found.
async fn found(searches: &Searches) -> Result<usize, Unanswered> {
    let ask = Ask {
        query: Query::parse("message").unwrap(),
        chats: (0..7).map(|n| format!("chat_{n}").as_str().into()).collect(),
        before: None,
        after: None,
        limit: 1000,
        patience: Duration::from_secs(60),
    };
    Ok(searches.ask(ask).await?.hits.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_searches_does_not_notice_a_swap() {
    let pipeline = &SEARCH[SEARCH.find("[[pipeline]]").unwrap()..SEARCH.find("[[test]]").unwrap()];
    let mut world = World::with(pipeline).await;
    let searches = Arc::<Searches>::default();
    world.host.services = world.host.services.clone().with(Arc::clone(&searches));
    world.send(20).await;
    let runtime = world.live().await;
    world.settled_of("search", &runtime).await;
    let request = Request { grace: Duration::ZERO, ..Request::new("search", From::Scan, To::Now) };
    let rebuilt = world.engine(Some(&runtime)).start(request).await.unwrap();
    assert_eq!(rebuilt.state, State::Equal, "{:?}", rebuilt.comparison);
    world.send(30).await; // so that there is something to run while the live pipeline stands still
    world.settled_of("search", &runtime).await;

    let meanwhile = Mutex::new(Vec::new());
    let search = |progress: Progress| {
        if progress.phase == Phase::Swapping {
            let (searches, runtime) = (Arc::clone(&searches), Handle::current());
            let asked = std::thread::spawn(move || runtime.block_on(found(&searches)));
            meanwhile.lock().unwrap().push(asked.join().unwrap());
        }
    };
    let engine = Engine { progress: &search, ..world.engine(Some(&runtime)) };
    assert_eq!(engine.approve("search").await.unwrap().state, State::Live);
    let meanwhile = meanwhile.into_inner().unwrap();
    assert!(!meanwhile.is_empty(), "it stood still");
    assert!(meanwhile.iter().all(|found| matches!(found, Ok(50))), "{meanwhile:?}");
    assert!(matches!(found(&searches).await, Ok(50)));
    runtime.drain().await;
}
