//! Lists come in pages: `?limit=&cursor=`, and `next` in the answer is the cursor of the next page, or null.

use std::num::NonZeroU32;

use courant_connectors::model::commands::Refusal;
use schemars::JsonSchema;
use serde::Deserialize;

use super::fields::Id;
use super::input::bad_request;

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
