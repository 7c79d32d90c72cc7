//! Who is in a chat.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use courant_connectors::live::{FillToken, Limits, Live};
use courant_connectors::model::{ChatId, UserId};
use tokio::time::Instant;

use super::{SHORT, Subject, eventually, short_limits};

pub async fn a_chat_is_unknown_until_filled(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let (chat, members) = (ChatId::generate(), users(3));
    assert_eq!(members_of(&*live, &chat).await, None);
    let token = live.begin_fill(&chat).await.unwrap();
    assert_eq!(members_of(&*live, &chat).await, None, "beginning is not knowing");
    assert!(live.fill(token, &members).await.unwrap());
    assert_eq!(members_of(&*live, &chat).await, Some(members));
}

pub async fn a_chat_without_members_is_known(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let chat = ChatId::generate();
    fill(&*live, &chat, &[]).await;
    assert_eq!(members_of(&*live, &chat).await, Some(vec![]));
    fill(&*live, &chat, &users(1)).await;
    assert_eq!(members_of(&*live, &chat).await.map(|members| members.len()), Some(1));
}

pub async fn answers_come_in_the_order_asked(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let chats: Vec<ChatId> = (0..4).map(|n| format!("чат {n} {}", ChatId::generate()).into()).collect();
    let first: Vec<UserId> = vec![format!("ユーザー {}", UserId::generate()).into()];
    fill(&*live, &chats[0], &first).await;
    fill(&*live, &chats[2], &[]).await;
    let known = live.members(&chats).await.unwrap();
    assert_eq!(known, [Some(first), None, Some(vec![]), None]);
    assert_eq!(live.members(&[]).await.unwrap(), []);
}

pub async fn an_invalidation_forgets(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let chats = [ChatId::generate(), ChatId::generate(), ChatId::generate()];
    for chat in &chats {
        fill(&*live, chat, &users(2)).await;
    }
    live.invalidate(&[chats[0].clone(), chats[2].clone(), ChatId::generate()]).await.unwrap();
    live.invalidate(&[]).await.unwrap();
    let known: Vec<bool> = live.members(&chats).await.unwrap().iter().map(Option::is_some).collect();
    assert_eq!(known, [false, true, false]);
}

pub async fn an_invalidation_voids_fills_that_began_before_it(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let chat = ChatId::generate();
    let token = live.begin_fill(&chat).await.unwrap();
    live.invalidate(std::slice::from_ref(&chat)).await.unwrap();
    assert!(!live.fill(token.clone(), &users(2)).await.unwrap());
    assert_eq!(members_of(&*live, &chat).await, None);

    // The same when the chat was known as the fill began.
    fill(&*live, &chat, &users(2)).await;
    let token = live.begin_fill(&chat).await.unwrap();
    live.invalidate(std::slice::from_ref(&chat)).await.unwrap();
    assert!(!live.fill(token, &users(2)).await.unwrap());
    assert_eq!(members_of(&*live, &chat).await, None);

    let made_up = FillToken { chat: chat.clone(), token: "?fill:made up".into() };
    assert!(!live.fill(made_up, &users(2)).await.unwrap());
    assert_eq!(members_of(&*live, &chat).await, None);
}

pub async fn a_void_fill_does_not_replace_a_later_one(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let (chat, former, present) = (ChatId::generate(), users(2), users(3));
    let late = live.begin_fill(&chat).await.unwrap();
    live.invalidate(std::slice::from_ref(&chat)).await.unwrap();
    let later = live.begin_fill(&chat).await.unwrap();
    assert!(!live.fill(late.clone(), &former).await.unwrap(), "it is void while another one fills");
    assert!(live.fill(later, &present).await.unwrap());
    live.fill(late, &former).await.unwrap();
    assert_eq!(members_of(&*live, &chat).await, Some(present));
}

pub async fn fillers_at_the_same_time_agree(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let (chat, members) = (ChatId::generate(), users(3));
    let tokens = [live.begin_fill(&chat).await.unwrap(), live.begin_fill(&chat).await.unwrap()];
    for token in tokens {
        assert!(live.fill(token, &members).await.unwrap(), "members are cached, by whichever filler");
        assert_eq!(members_of(&*live, &chat).await, Some(members.clone()));
    }
}

pub async fn beginning_leaves_what_is_known(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let (chat, members, others) = (ChatId::generate(), users(2), users(2));
    fill(&*live, &chat, &members).await;
    let token = live.begin_fill(&chat).await.unwrap();
    assert_eq!(members_of(&*live, &chat).await, Some(members));
    assert!(live.fill(token, &others).await.unwrap());
    assert_eq!(members_of(&*live, &chat).await, Some(others));
}

pub async fn members_and_permissions_end(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(short_limits()).await;
    let (filled, begun) = (ChatId::generate(), ChatId::generate());
    let permission = live.begin_fill(&begun).await.unwrap();
    fill(&*live, &filled, &users(2)).await;
    let began = Instant::now();
    eventually("the end of what is known", async || {
        members_of(&*live, &filled).await.is_none().then_some(())
    })
    .await;
    assert!(began.elapsed() > SHORT.mul_f64(0.9), "it ended after {:?}", began.elapsed());
    // The permission was given before, so its time is over too.
    assert!(!live.fill(permission, &users(2)).await.unwrap());
    assert_eq!(members_of(&*live, &begun).await, None);
}

pub async fn large_chats_are_cached_whole(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let (chat, members) = (ChatId::generate(), users(2500));
    fill(&*live, &chat, &members).await;
    assert_eq!(members_of(&*live, &chat).await, Some(members));
}

/// The store has one member at a time. Fillers read it and fill; each change is followed by an invalidation. After
/// the last one the cache may know nothing or the last member, and never a former one.
pub async fn no_race_brings_back_a_former_member(start: impl AsyncFn(Limits) -> Subject) {
    const CHANGES: u64 = 100;
    let Subject { live, server: _server } = start(Limits::default()).await;
    let (chat, store) = (ChatId::generate(), Arc::new(AtomicU64::new(0)));
    let fillers: Vec<_> = (0..4)
        .map(|_| {
            let (live, chat, store) = (Arc::clone(&live), chat.clone(), Arc::clone(&store));
            tokio::spawn(async move {
                while store.load(Ordering::SeqCst) < CHANGES {
                    let token = live.begin_fill(&chat).await.unwrap();
                    let member = member_now(&store);
                    tokio::task::yield_now().await;
                    live.fill(token, &[member]).await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..CHANGES {
        store.fetch_add(1, Ordering::SeqCst);
        live.invalidate(std::slice::from_ref(&chat)).await.unwrap();
        // Nothing to wait for: a fill that should be void would be seen at once, and be replaced soon after.
        for _ in 0..3 {
            let known = members_of(&*live, &chat).await;
            assert!(known.is_none_or(|known| known == [member_now(&store)]), "a former member is back");
        }
    }
    for filler in fillers {
        filler.await.unwrap();
    }
    let known = members_of(&*live, &chat).await;
    assert!(known.is_none_or(|known| known == [member_now(&store)]), "a former member is back");
}

fn member_now(store: &AtomicU64) -> UserId {
    format!("user_{}", store.load(Ordering::SeqCst)).into()
}

fn users(count: usize) -> Vec<UserId> {
    let mut users: Vec<UserId> = (0..count).map(|_| UserId::generate()).collect();
    users.sort();
    users
}

async fn fill(live: &dyn Live, chat: &ChatId, members: &[UserId]) {
    let token = live.begin_fill(chat).await.unwrap();
    assert!(live.fill(token, members).await.unwrap());
}

async fn members_of(live: &dyn Live, chat: &ChatId) -> Option<Vec<UserId>> {
    let mut known = live.members(std::slice::from_ref(chat)).await.unwrap();
    assert_eq!(known.len(), 1, "one answer per chat");
    let mut members = known.swap_remove(0)?;
    members.sort();
    Some(members)
}
