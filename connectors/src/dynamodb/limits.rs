//! What DynamoDB would refuse, refused before it is sent where that is cheaper or the server's words are
//! unclear.
//!
//! Not a copy of the server's checks: types of keys, empty keys or overlapping updates are left to it. Here
//! are the limits that hold for every store, so that every store fails in the same way.

use super::error::Doing;
use crate::store::{
    Item, MAX_ITEM_BYTES, MAX_TRANSACTION, Result, Returning, StoreError, Transaction, Write,
};

/// DynamoDB's limit for the token of a transaction.
const MAX_TOKEN: usize = 36;

pub(super) fn check_item(doing: &Doing, item: &Item) -> Result<()> {
    let size = item.size();
    if size > MAX_ITEM_BYTES {
        return Err(doing.invalid(format_args!(
            "the item has {size} bytes and may have {MAX_ITEM_BYTES}; keep large content elsewhere"
        )));
    }
    Ok(())
}

/// A put or delete can only tell what was there before.
pub(super) fn check_returning(doing: &Doing, returning: Returning) -> Result<()> {
    match returning {
        Returning::Nothing | Returning::Old => Ok(()),
        Returning::New | Returning::UpdatedNew => {
            Err(doing
                .invalid("only an update answers with the item after it; ask for nothing or the old item"))
        }
    }
}

pub(super) fn check_transaction(doing: &Doing, transaction: &Transaction) -> Result<()> {
    let count = transaction.writes.len();
    if count == 0 || count > MAX_TRANSACTION {
        return Err(StoreError::Invalid(format!(
            "a transaction has 1 to {MAX_TRANSACTION} writes and not {count}; split it or write one by one"
        )));
    }
    if let Some(token) = &transaction.token {
        let length = token.chars().count();
        if length == 0 || length > MAX_TOKEN {
            return Err(doing.invalid(format_args!(
                "the transaction's token has 1 to {MAX_TOKEN} characters and not {length}"
            )));
        }
    }
    for write in &transaction.writes {
        if let Write::Put { item, .. } = write {
            check_item(doing, item)?;
        }
    }
    Ok(())
}
