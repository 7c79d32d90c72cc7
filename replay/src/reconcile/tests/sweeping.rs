//! What is left of groups that were never made goes, and nothing else: not what is being made, nor what was a chat.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use courant_connectors::embedded::Engine;
use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chats::{self, Chat, Roster};
use courant_connectors::model::tables::{chat_counters, chat_memberships};
use courant_connectors::store::{
    BatchWrite, Durability, Item, Key, ReadStore as _, Returning, StoreError, Transaction, Write, WriteStore,
};
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{Options, options, repairable, run};
use crate::reconcile::{Repairable, Swept, reconcile};
use crate::verify::context::{before, now};
use crate::verify::tests::world::{HOUR, World, membership};

fn sweeping() -> Options {
    Options { sweep_chats: Some(Duration::from_secs(600)), ..options() }
}

async fn members(world: &World, chat: &ChatId) -> usize {
    let listed = chat_memberships::list(&*world.engine, chat, None, None).await.unwrap();
    listed.items.len()
}

async fn is_there(world: &World, chat: &ChatId) -> bool {
    world.engine.get(chats::state_lookup(chat)).await.unwrap().is_some()
}

#[tokio::test]
async fn leftovers_are_told_and_swept_only_on_request() {
    let world = World::healthy().await;
    let group = world.begin_group(before(now(), HOUR), 250).await;
    let user = world.user().await;
    let never = ChatId::generate();
    chat_memberships::add(&*world.engine, &membership(&never, &user)).await.unwrap();

    let told = run(&world.engine, options()).await;
    assert_eq!((told.left(), told.swept), (0, None), "nobody sees them: no divergence");
    let found: u64 = told.looked.checks.iter().map(|check| check.found).sum();
    assert_eq!(found, 2);
    assert_eq!(members(&world, &group.chat_id).await, 250);

    let swept = run(&world.engine, sweeping()).await.swept.unwrap();
    assert_eq!((swept.groups, swept.memberships, swept.kept), (2, 251, 0), "{swept:?}");
    assert!(!is_there(&world, &group.chat_id).await);
    assert_eq!((members(&world, &group.chat_id).await, members(&world, &never).await), (0, 0));
    let again = run(&world.engine, sweeping()).await.swept.unwrap();
    assert_eq!(again, Swept::default());
}

#[tokio::test]
async fn what_is_new_or_was_a_chat_stays() {
    let world = World::healthy().await;
    let new = world.begin_group(before(now(), Duration::from_secs(30)), 3).await;
    let (lost, user) = world.own_chat().await;
    world.send(&lost, &user).await;
    world.store(Write::delete("chats", Key::new("chat_id", &lost))).await;
    let (without_counter, user) = world.own_chat().await;
    world.send(&without_counter, &user).await;
    for table in ["chats", "chat_counters"] {
        world.store(Write::delete(table, Key::new("chat_id", &without_counter))).await;
    }
    let swept = run(&world.engine, sweeping()).await.swept.unwrap();
    assert_eq!((swept.groups, swept.kept), (0, 3), "{swept:?}");
    let why = |chat: &ChatId| &swept.examples.iter().find(|kept| kept.chat_id == *chat).unwrap().why;
    assert!(why(&new.chat_id).contains("too new"));
    assert!(why(&lost).contains("restore its row") && why(&without_counter).contains("restore its row"));
    assert_eq!((members(&world, &new.chat_id).await, members(&world, &lost).await), (3, 1));
}

type Meanwhile = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// Somebody does something right before the n-th transaction.
struct Interrupted {
    engine: Arc<Engine>,
    meanwhile: Mutex<(usize, Option<Meanwhile>)>,
}

#[async_trait]
impl WriteStore for Interrupted {
    async fn write(
        &self,
        write: Write,
        returning: Returning,
        durability: Durability,
    ) -> Result<Option<Item>, StoreError> {
        self.engine.write(write, returning, durability).await
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<(), StoreError> {
        self.engine.batch_write(writes).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<(), StoreError> {
        let meanwhile = {
            let mut plan = self.meanwhile.lock().unwrap();
            plan.0 -= 1;
            if plan.0 == 0 { plan.1.take() } else { None }
        };
        if let Some(meanwhile) = meanwhile {
            meanwhile().await;
        }
        self.engine.transact(transaction).await
    }
}

/// Sweeps a group of 250 while somebody else goes on making it, right before the n-th transaction.
async fn sweep_while(
    world: &Arc<World>,
    transaction: usize,
    goes_on: impl FnOnce(Arc<World>) -> BoxFuture<'static, ()> + Send + 'static,
) -> Swept {
    let with = Arc::clone(world);
    let meanwhile: Meanwhile = Box::new(move || goes_on(with));
    let store = Interrupted {
        engine: Arc::clone(&world.engine),
        meanwhile: Mutex::new((transaction, Some(meanwhile))),
    };
    let work = Repairable { store: Arc::new(store), ..repairable(&world.engine) };
    reconcile(work, sweeping(), |_| {}, CancellationToken::new()).await.unwrap().swept.unwrap()
}

async fn form(world: &World, chat: &Chat) {
    let roster = Roster { members: 250, owners: 1 };
    let counter = chat_counters::ChatCounter::new(chat.chat_id.clone(), chat.created_at);
    let writes = vec![chats::form_write(&chat.chat_id, roster), chat_counters::create_write(&counter)];
    world.engine.transact(Transaction { writes, token: None }).await.unwrap();
}

#[tokio::test]
async fn a_group_that_is_made_at_last_stays() {
    let world = Arc::new(World::empty().await);
    let group = world.begin_group(before(now(), HOUR), 250).await;
    let made = group.clone();
    let swept = sweep_while(&world, 1, move |world| Box::pin(async move { form(&world, &made).await })).await;
    assert_eq!((swept.groups, swept.kept), (0, 1), "{swept:?}");
    assert!(is_there(&world, &group.chat_id).await && members(&world, &group.chat_id).await == 250);
}

/// Whoever makes it finds its mark gone and begins again, with the members under way being removed.
#[tokio::test]
async fn a_group_that_is_begun_again_keeps_its_members() {
    for transaction in [2, 3] {
        let world = Arc::new(World::empty().await);
        let group = world.begin_group(before(now(), HOUR), 250).await;
        let mut again = group.clone();
        again.created_at = now();
        let swept = sweep_while(&world, transaction, move |world| {
            Box::pin(async move {
                world.store(chats::begin_write(&again)).await;
                let left = members(&world, &again.chat_id).await;
                world.stage_members(&again, 300 - left).await;
                form(&world, &again).await;
            })
        })
        .await;
        assert_eq!((swept.groups, swept.kept), (0, 1), "{swept:?}");
        assert!(swept.examples[0].why.contains("begun again"), "{swept:?}");
        // The owner is staged again whether he was removed or not.
        let left = members(&world, &group.chat_id).await;
        assert!((299..=300).contains(&left), "{left}");
    }
}

/// The answer to giving the group up is lost: it is gone all the same, and so are its members.
#[tokio::test]
async fn a_lost_answer_changes_nothing() {
    struct Unheard(Arc<Engine>, Mutex<bool>);

    #[async_trait]
    impl WriteStore for Unheard {
        async fn write(&self, _: Write, _: Returning, _: Durability) -> Result<Option<Item>, StoreError> {
            unreachable!("sweeping is transactions")
        }

        async fn batch_write(&self, _: Vec<BatchWrite>) -> Result<(), StoreError> {
            unreachable!("sweeping is transactions")
        }

        async fn transact(&self, transaction: Transaction) -> Result<(), StoreError> {
            let done = self.0.transact(transaction).await;
            if std::mem::replace(&mut *self.1.lock().unwrap(), false) {
                return Err(StoreError::UnknownOutcome("no answer".to_owned()));
            }
            done
        }
    }

    let world = World::empty().await;
    let group = world.begin_group(before(now(), HOUR), 5).await;
    let store = Arc::new(Unheard(Arc::clone(&world.engine), Mutex::new(true)));
    let work = Repairable { store, ..repairable(&world.engine) };
    let report = reconcile(work, sweeping(), |_| {}, CancellationToken::new()).await.unwrap();
    assert_eq!(report.swept.unwrap().memberships, 5);
    assert!(!is_there(&world, &group.chat_id).await && members(&world, &group.chat_id).await == 0);
}
