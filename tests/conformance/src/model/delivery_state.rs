//! Watermarks of what arrived: forward only, whatever order acknowledgements come in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::delivery_state::{self, Advance, DeliveryState, Unread};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{Consistency, Get, Store};
use rand::seq::SliceRandom as _;

use super::records::{MINUTE, ago, all_at_once, count, every_part, now};

/// What is stored at this moment; the documented read may be late.
async fn stored(store: &dyn Store, user: &UserId, chat: &ChatId) -> Option<DeliveryState> {
    let get = Get { consistency: Consistency::Strong, ..delivery_state::lookup(user, chat) };
    store.get(get).await.unwrap().as_ref().map(DeliveryState::from_item).transpose().unwrap()
}

async fn watermark(store: &dyn Store, user: &UserId, chat: &ChatId) -> u64 {
    stored(store, user, chat).await.map_or(0, |state| state.last_acked_sequence)
}

pub async fn a_watermark_moves_forward_only(store: Arc<dyn Store>) {
    let (user, chat) = (UserId::generate(), ChatId::generate());
    let (earlier, later) = (ago(MINUTE), now());
    assert_eq!(stored(&*store, &user, &chat).await, None);
    let advance = async |to, at| delivery_state::advance(&*store, &user, &chat, to, at).await.unwrap();
    assert_eq!(advance(9, earlier).await, Advance::Moved);
    assert_eq!(advance(9, later).await, Advance::AlreadyThere);
    assert_eq!(advance(8, later).await, Advance::AlreadyThere);
    let at_nine = DeliveryState {
        user_id: user.clone(),
        chat_id: chat.clone(),
        last_acked_sequence: 9,
        read_sequence: 0,
        updated_at: earlier,
    };
    assert_eq!(stored(&*store, &user, &chat).await, Some(at_nine.clone()), "nothing was changed");
    // ten is more than nine, though not as text
    assert_eq!(advance(10, later).await, Advance::Moved);
    let at_ten = DeliveryState { last_acked_sequence: 10, updated_at: later, ..at_nine };
    assert_eq!(stored(&*store, &user, &chat).await, Some(at_ten));
}

/// Fifty at once in any order: never seen to go back, and at the end where the highest one is.
pub async fn concurrent_acks_end_at_the_highest(store: Arc<dyn Store>) {
    let (user, chat) = (UserId::generate(), ChatId::generate());
    let all_done = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn({
        let (store, user, chat, all_done) =
            (Arc::clone(&store), user.clone(), chat.clone(), Arc::clone(&all_done));
        async move {
            let mut highest = 0;
            while !all_done.load(Ordering::SeqCst) {
                let seen = watermark(&*store, &user, &chat).await;
                assert!(seen >= highest, "from {highest} back to {seen}");
                highest = seen;
                // a store that answers at once would keep the worker from those who write
                tokio::task::yield_now().await;
            }
        }
    });
    let mut sequences: Vec<u64> = (1..=50).collect();
    sequences.shuffle(&mut rand::rng());
    let answers = all_at_once(sequences.iter().map(|&sequence| {
        let (store, user, chat) = (Arc::clone(&store), user.clone(), chat.clone());
        async move {
            let answer = delivery_state::advance(&*store, &user, &chat, sequence, now()).await.unwrap();
            let reached = watermark(&*store, &user, &chat).await;
            assert!(reached >= sequence, "acknowledged {sequence}, and it is at {reached}");
            (sequence, answer)
        }
    }))
    .await;
    all_done.store(true, Ordering::SeqCst);
    watching.await.unwrap();
    assert_eq!(watermark(&*store, &user, &chat).await, 50);
    assert!(answers.contains(&(50, Advance::Moved)), "{answers:?}");
    for sequence in sequences {
        let again = delivery_state::advance(&*store, &user, &chat, sequence, now()).await.unwrap();
        assert_eq!(again, Advance::AlreadyThere, "{sequence}");
    }
}

/// One user in several chats, each at its own watermark, by chat id.
async fn states(store: &dyn Store, user: &UserId) -> Vec<DeliveryState> {
    let mut chats: Vec<_> = (0..7).map(|_| ChatId::generate()).collect();
    chats.sort_unstable();
    let mut states = Vec::new();
    for (sequence, chat) in (1..).zip(chats) {
        let updated_at = now();
        delivery_state::advance(store, user, &chat, sequence, updated_at).await.unwrap();
        // of somebody else in the same chat, which must not show
        delivery_state::advance(store, &UserId::generate(), &chat, 99, updated_at).await.unwrap();
        let state = DeliveryState {
            user_id: user.clone(),
            chat_id: chat,
            last_acked_sequence: sequence,
            read_sequence: 0,
            updated_at,
        };
        states.push(state);
    }
    states
}

pub async fn a_users_states_are_found_one_by_one_and_together(store: Arc<dyn Store>) {
    let user = UserId::generate();
    let states = states(&*store, &user).await;
    crate::eventually("the state", || async {
        let found = delivery_state::get(&*store, &user, &states[3].chat_id).await.unwrap();
        (found.as_ref() == Some(&states[3])).then_some(())
    })
    .await;
    let asked = [states[5].chat_id.clone(), ChatId::generate(), states[0].chat_id.clone()];
    let expected = [Some(states[5].clone()), None, Some(states[0].clone())];
    crate::eventually("the states in the order asked", || async {
        let found = delivery_state::get_many(&*store, &user, &asked).await.unwrap();
        (found == expected).then_some(())
    })
    .await;
}

pub async fn a_users_states_are_listed_by_parts(store: Arc<dyn Store>) {
    let user = UserId::generate();
    let states = states(&*store, &user).await;
    for limit in [None, Some(1), Some(3), Some(7), Some(50)] {
        crate::eventually("all states", || async {
            let parts = async |after: Option<ChatId>, limit| {
                delivery_state::of_user(&*store, &user, after.as_ref(), limit).await
            };
            (every_part(limit, parts).await == states).then_some(())
        })
        .await;
    }
}

/// Every other chat has two messages more than arrived; one of them has no counter, and says nothing.
pub async fn unread_chats_are_those_with_more(store: Arc<dyn Store>) {
    let user = UserId::generate();
    let states = states(&*store, &user).await;
    let mut expected = Vec::new();
    for (index, state) in states.into_iter().enumerate().skip(1) {
        let more = if index % 2 == 0 { 2 } else { 0 };
        let chat_sequence = state.last_acked_sequence + more;
        chat_counters::create(&*store, &ChatCounter::new(state.chat_id.clone(), now())).await.unwrap();
        let allocated = count(u32::try_from(chat_sequence).unwrap());
        chat_counters::allocate(&*store, &state.chat_id, allocated, now()).await.unwrap();
        if more > 0 {
            expected.push(Unread { state, chat_sequence });
        }
    }
    assert_eq!(expected.len(), 3);
    for limit in [None, Some(1), Some(4)] {
        crate::eventually("the unread chats", || async {
            let parts = async |after: Option<ChatId>, limit| {
                delivery_state::unread_of_user(&*store, &user, after.as_ref(), limit).await
            };
            (every_part(limit, parts).await == expected).then_some(())
        })
        .await;
    }
}
