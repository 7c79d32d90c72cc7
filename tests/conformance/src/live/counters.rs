//! Counting in windows.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::live::{Limits, LiveError};
use courant_connectors::model::UserId;
use futures::future::join_all;
use tokio::time::Instant;

use super::{SHORT, Subject, eventually};

const MINUTE: Duration = Duration::from_secs(60);

pub async fn counts_add_up(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let (counter, other) = (counter(), counter());
    let mut before = MINUTE;
    for (by, expected) in [(1, 1), (1, 2), (5, 7), (0, 7), (u32::MAX, u64::from(u32::MAX) + 7)] {
        let count = live.count(&counter, by, MINUTE).await.unwrap();
        assert_eq!(count.value, expected);
        assert!(count.resets_in <= before && count.resets_in > MINUTE / 2, "{:?}", count.resets_in);
        before = count.resets_in;
    }
    assert_eq!(live.count(&other, 1, MINUTE).await.unwrap().value, 1);
}

pub async fn a_window_ends_counted_from_its_first_count(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let counter = counter();
    let began = Instant::now();
    let mut last = live.count(&counter, 1, SHORT).await.unwrap();
    // Counting on does not make the window longer: then this would never end.
    let again = eventually("the next window", async || {
        let count = live.count(&counter, 1, SHORT).await.unwrap();
        if count.value > last.value {
            last = count;
            return None;
        }
        Some(count)
    })
    .await;
    assert_eq!(again.value, 1);
    assert!(again.resets_in > SHORT / 2, "a new window is whole: {:?}", again.resets_in);
    assert!(began.elapsed() > SHORT.mul_f64(0.9), "it ended after {:?}", began.elapsed());
}

pub async fn a_window_of_nothing_is_refused(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let refused = live.count("logins", 1, Duration::ZERO).await;
    assert!(matches!(&refused, Err(LiveError::Invalid(reason)) if reason.contains("logins")), "{refused:?}");
}

pub async fn nothing_is_lost_when_many_count_at_once(start: impl AsyncFn(Limits) -> Subject) {
    const TASKS: u64 = 100;
    let Subject { live, server: _server } = start(Limits::default()).await;
    let counter = counter();
    let tasks = (0..TASKS).map(|_| {
        let (live, counter) = (Arc::clone(&live), counter.clone());
        tokio::spawn(async move { live.count(&counter, 1, MINUTE).await.unwrap().value })
    });
    let mut values: Vec<u64> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    values.sort_unstable();
    assert_eq!(values, (1..=TASKS).collect::<Vec<_>>());
}

fn counter() -> String {
    format!("logins:{}", UserId::generate())
}
