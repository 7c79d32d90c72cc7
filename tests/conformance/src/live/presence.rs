//! Whether users are there.

use courant_connectors::live::{Limits, Presence, Status};
use courant_connectors::model::UserId;
use tokio::time::Instant;

use super::{SHORT, Subject, eventually, short_limits};

pub async fn presence_is_what_was_set_last(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let [one, nobody] = [UserId::generate(), UserId::generate()];
    let two: UserId = format!("ü {}", UserId::generate()).into();
    live.set_presence(&one, presence(Status::Online)).await.unwrap();
    live.set_presence(&two, presence(Status::Away)).await.unwrap();
    let asked = [two.clone(), nobody, one.clone()];
    let known = live.presence_of(&asked).await.unwrap();
    assert_eq!(known, [Some(presence(Status::Away)), None, Some(presence(Status::Online))]);
    live.set_presence(&one, presence(Status::Offline)).await.unwrap();
    assert_eq!(live.presence_of(&[one]).await.unwrap(), [Some(presence(Status::Offline))]);
    assert_eq!(live.presence_of(&[]).await.unwrap(), []);
}

pub async fn presence_ends(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(short_limits()).await;
    let user = UserId::generate();
    live.set_presence(&user, presence(Status::Online)).await.unwrap();
    let set = Instant::now();
    eventually("the end of a presence", async || {
        let known = live.presence_of(std::slice::from_ref(&user)).await.unwrap();
        (known == [None]).then_some(())
    })
    .await;
    assert!(set.elapsed() > SHORT.mul_f64(0.9), "it ended after {:?}", set.elapsed());
}

fn presence(status: Status) -> Presence {
    Presence { status, last_seen: "2026-01-30T14:30:00.000Z".into() }
}
