//! Who is in a chat: from memory, from the cache all processes share, from the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use courant_connectors::capability::RestrictedStore;
use courant_connectors::live::{FillToken, LiveError, MembershipCache};
use courant_connectors::model::tables::chat_memberships;
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::StoreError;
use courant_pipeline::StageError;
use futures::StreamExt as _;

use super::known::KnownMembers;
use crate::backends::store_error;

/// Chats whose members are read from the store at the same time, when a process starts and remembers nothing.
const ASKED_AT_ONCE: usize = 16;

/// A chat whose members are wanted.
pub(super) struct Asked {
    pub(super) chat: ChatId,
    /// As the store has them now: an event says that they changed.
    pub(super) anew: bool,
}

/// One error for all records of a chat.
pub(super) type Answer = Result<Arc<[UserId]>, Arc<StageError>>;

pub(super) struct Lookup {
    known: Arc<KnownMembers>,
    cache: Arc<dyn MembershipCache>,
    store: RestrictedStore,
    /// Said once, and again when it has worked in between.
    cache_is_down: AtomicBool,
}

/// What the store said, and whether that may be remembered.
struct Found {
    members: Arc<[UserId]>,
    lasting: bool,
}

impl Lookup {
    pub(super) fn new(
        known: Arc<KnownMembers>,
        cache: Arc<dyn MembershipCache>,
        store: RestrictedStore,
    ) -> Self {
        Self { known, cache, store, cache_is_down: AtomicBool::new(false) }
    }

    /// One answer per chat, in the order asked.
    pub(super) async fn members_of(&self, asked: &[Asked]) -> Vec<Answer> {
        let anew: Vec<ChatId> =
            asked.iter().filter(|asked| asked.anew).map(|asked| asked.chat.clone()).collect();
        if !anew.is_empty() {
            self.known.forget(&anew);
        }
        let (mark, mut found) = self.known.of(asked.iter().map(|asked| &asked.chat));
        if found.iter().all(Option::is_some) {
            return found.into_iter().flatten().map(Ok).collect();
        }
        let mut learned = Vec::new();
        self.ask_cache(asked, &mut found, &mut learned).await;
        let missing: Vec<usize> = (0..asked.len()).filter(|index| found[*index].is_none()).collect();
        let mut from_store =
            self.ask_store(missing.iter().map(|index| &asked[*index].chat)).await.into_iter();
        let mut answers = Vec::with_capacity(asked.len());
        for (asked, found) in asked.iter().zip(found) {
            answers.push(match found {
                Some(members) => Ok(members),
                None => from_store.next().expect("one answer for each chat that was missing").map(|found| {
                    if found.lasting {
                        learned.push((asked.chat.clone(), Arc::clone(&found.members)));
                    }
                    found.members
                }),
            });
        }
        self.known.keep(mark, learned.into_iter());
        answers
    }

    /// One question for all chats that are not known; what it answers is also learned.
    async fn ask_cache(
        &self,
        asked: &[Asked],
        found: &mut [Option<Arc<[UserId]>>],
        learned: &mut Vec<(ChatId, Arc<[UserId]>)>,
    ) {
        let unknown: Vec<usize> =
            (0..asked.len()).filter(|index| found[*index].is_none() && !asked[*index].anew).collect();
        if unknown.is_empty() {
            return;
        }
        let chats: Vec<ChatId> = unknown.iter().map(|index| asked[*index].chat.clone()).collect();
        let Some(cached) = self.heed(self.cache.members(&chats).await) else { return };
        for ((index, chat), members) in unknown.into_iter().zip(chats).zip(cached) {
            if let Some(members) = members {
                let members: Arc<[UserId]> = members.into();
                learned.push((chat, Arc::clone(&members)));
                found[index] = Some(members);
            }
        }
    }

    async fn ask_store(&self, chats: impl Iterator<Item = &ChatId>) -> Vec<Result<Found, Arc<StageError>>> {
        let ask = |chat: ChatId| async move {
            self.fill(&chat).await.map_err(|error| Arc::new(store_error("list members", error)))
        };
        let chats: Vec<ChatId> = chats.cloned().collect();
        futures::stream::iter(chats).map(ask).buffered(ASKED_AT_ONCE).collect().await
    }

    /// Asks permission to fill first, so that a change that comes while the store is read voids the fill.
    async fn fill(&self, chat: &ChatId) -> Result<Found, StoreError> {
        let token: Option<FillToken> = self.heed(self.cache.begin_fill(chat).await);
        let mut members = Vec::new();
        let mut after = None;
        loop {
            let page = chat_memberships::list(&self.store, chat, after.as_ref(), None).await?;
            members.extend(page.items.into_iter().map(|membership| membership.user_id));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let filled = match token {
            Some(token) => self.heed(self.cache.fill(token, &members).await),
            None => None,
        };
        // Without the cache what we know ends by itself, and by what we hear.
        Ok(Found { members: members.into(), lasting: filled != Some(false) })
    }

    /// An answer of the cache, which is allowed to be down.
    fn heed<T>(&self, answer: Result<T, LiveError>) -> Option<T> {
        match answer {
            Ok(answer) => {
                self.cache_is_down.store(false, Ordering::Relaxed);
                Some(answer)
            }
            Err(error) => {
                if !self.cache_is_down.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "the cache of members is down, the store is asked instead");
                }
                None
            }
        }
    }
}
