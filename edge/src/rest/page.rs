//! Lists come in pages: `?limit=&cursor=`, and `next` in the answer is the cursor of the next page, or null.

use std::num::NonZeroU32;

use courant_connectors::model::commands::Refusal;
use courant_connectors::model::tables::Listing;
use courant_connectors::store::StoreError;
use schemars::JsonSchema;
use serde::Deserialize;

use super::fields::Id;
use super::input::bad_request;
use super::query::unavailable;

/// What a list is asked for with.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Paging<C> {
    /// At most so many; a page may hold fewer although it is not the last.
    limit: Option<NonZeroU32>,
    /// `next` of the page before.
    cursor: Option<C>,
}

/// Enough for a screen, cheap enough for a start.
const USUAL_PAGE: NonZeroU32 = NonZeroU32::new(50).expect("not zero");

impl<C> Paging<Id<C>> {
    pub(super) fn limit(&self, most: u32) -> Result<NonZeroU32, Refusal> {
        at_most(self.limit, most)
    }

    pub(super) fn cursor(&self) -> Option<&C> {
        self.cursor.as_ref().map(|cursor| &cursor.0)
    }
}

/// How many are wanted, refused if that is too many.
pub(super) fn at_most(limit: Option<NonZeroU32>, most: u32) -> Result<NonZeroU32, Refusal> {
    match limit {
        None => Ok(USUAL_PAGE),
        Some(limit) if limit.get() <= most => Ok(limit),
        Some(limit) => Err(bad_request(format!("query: limit is {limit}, and at most {most}"))),
    }
}

/// The page that is wanted. One more is asked for: a store says that it may have more as soon as it has looked at as many
/// as it was asked for, and a full page that is the last one must not lead to an empty one.
pub(super) async fn page<T, C, F>(
    limit: NonZeroU32,
    ask: impl FnOnce(NonZeroU32) -> F,
    cursor: impl Fn(&T) -> C,
) -> Result<Listing<T, C>, Refusal>
where
    F: Future<Output = Result<Listing<T, C>, StoreError>>,
{
    let mut found = ask(limit.saturating_add(1)).await.map_err(unavailable)?;
    let limit = limit.get() as usize;
    if found.items.len() > limit {
        found.items.truncate(limit);
        found.next = found.items.last().map(cursor);
    }
    // What is shorter ended early by its size, and the store's own place is where to go on, or it is the end.
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a store answers that has these and looks at `most` at a time.
    async fn asked(stored: &[u32], most: usize, limit: u32) -> (Vec<u32>, Option<u32>) {
        let ask = async |limit: NonZeroU32| {
            let looked = most.min(limit.get() as usize).min(stored.len());
            let is_full = looked == most.min(limit.get() as usize);
            let items = stored[..looked].to_vec();
            Ok(Listing { next: items.last().copied().filter(|_| is_full), items })
        };
        let found = page(NonZeroU32::new(limit).unwrap(), ask, |item| *item).await.unwrap();
        (found.items, found.next)
    }

    #[tokio::test]
    async fn a_full_page_knows_whether_it_is_the_last() {
        assert_eq!(asked(&[1, 2, 3], 99, 4).await, (vec![1, 2, 3], None));
        assert_eq!(asked(&[1, 2, 3], 99, 3).await, (vec![1, 2, 3], None), "exactly full");
        assert_eq!(asked(&[1, 2, 3], 99, 2).await, (vec![1, 2], Some(2)));
        assert_eq!(asked(&[], 99, 2).await, (vec![], None));
    }

    #[tokio::test]
    async fn a_page_that_ended_early_goes_on_where_the_store_says() {
        assert_eq!(asked(&[1, 2, 3], 2, 3).await, (vec![1, 2], Some(2)));
    }
}
