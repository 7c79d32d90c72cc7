//! Any damage to any deployment: as much is found of each kind as was done.

use std::collections::BTreeMap;

use courant_connectors::model::tables::chats::ChatType;
use courant_connectors::model::tables::delivery_state;
use courant_connectors::model::topics::memberships_changed::ChangeType;
use courant_connectors::model::{ChatId, UserId};
use proptest::prelude::*;
use proptest::sample::Index;

use super::mutations::{MUTATIONS, watching};
use super::world::World;
use crate::verify::context::now;

/// What clients do, and what crashes leave that is in order.
#[derive(Debug, Clone)]
enum Step {
    NewChat { members: usize },
    Send(Index, Index),
    Gap(Index),
    PublishAgain(Index),
    Ack(Index, Index),
    Join(Index, Index),
    Leave(Index, Index),
    Promote(Index, Index),
}

fn step() -> impl Strategy<Value = Step> {
    let two = || (any::<Index>(), any::<Index>());
    prop_oneof![
        1 => (1..5usize).prop_map(|members| Step::NewChat { members }),
        8 => two().prop_map(|(chat, user)| Step::Send(chat, user)),
        2 => any::<Index>().prop_map(Step::Gap),
        2 => any::<Index>().prop_map(Step::PublishAgain),
        2 => two().prop_map(|(chat, user)| Step::Ack(chat, user)),
        1 => two().prop_map(|(chat, user)| Step::Join(chat, user)),
        1 => two().prop_map(|(chat, user)| Step::Leave(chat, user)),
        1 => two().prop_map(|(chat, user)| Step::Promote(chat, user)),
    ]
}

async fn live(world: &World, steps: Vec<Step>) {
    let mut users: Vec<UserId> = Vec::new();
    for _ in 0..5 {
        users.push(world.user().await);
    }
    let mut chats: Vec<ChatId> = vec![world.chat(ChatType::Group, &[&users[0]]).await];
    let mut sent = Vec::new();
    for step in steps {
        match step {
            Step::NewChat { members } => {
                let members: Vec<_> = users.iter().take(members).collect();
                chats.push(world.chat(ChatType::Group, &members).await);
            }
            Step::Send(chat, user) => {
                sent.push(world.send(chat.get(&chats), user.get(&users)).await);
            }
            Step::Gap(chat) => drop(world.allocate(chat.get(&chats)).await),
            Step::PublishAgain(index) if !sent.is_empty() => world.publish(index.get(&sent)).await,
            Step::PublishAgain(_) => {}
            Step::Ack(chat, user) => {
                let chat = chat.get(&chats);
                let highest =
                    sent.iter().filter(|message| message.chat_id == *chat).map(|m| m.sequence).max();
                if let Some(highest) = highest {
                    delivery_state::advance(&*world.engine, user.get(&users), chat, highest, now())
                        .await
                        .unwrap();
                }
            }
            Step::Join(chat, user) => {
                world.change_member(chat.get(&chats), user.get(&users), ChangeType::Added).await;
            }
            // The first owns every chat and stays.
            Step::Leave(chat, user) => {
                world.change_member(chat.get(&chats), user.get(&users[1..]), ChangeType::Removed).await;
            }
            Step::Promote(chat, user) => {
                world.change_member(chat.get(&chats), user.get(&users[1..]), ChangeType::RoleChanged).await;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn as_much_is_found_as_was_damaged(
        steps in prop::collection::vec(step(), 0..60),
        damage in prop::collection::vec(any::<Index>(), 0..12),
        parallel in 1..5usize,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (expected, found) = runtime.block_on(async {
            let world = World::empty().await;
            live(&world, steps).await;
            let mut expected: BTreeMap<String, u64> = BTreeMap::new();
            for index in damage {
                let (_, mutation) = index.get(MUTATIONS);
                *expected.entry(mutation(&world).await.check().to_owned()).or_default() += 1;
            }
            let parallel = parallel.try_into().unwrap();
            (expected, world.found(crate::verify::Options { parallel, ..watching() }).await)
        });
        prop_assert_eq!(found, expected);
    }
}
