//! Writes of those who put things right: transactions that rest on what was seen.
//!
//! Each is conditional, so one whose outcome is not known is tried again: it is refused if it was done, and whoever is
//! refused looks again.

use std::sync::Arc;

use courant_connectors::store::{CancelReason, StoreError, Transaction, Write, WriteStore};

use crate::verify::VerifyError;
use crate::verify::reads::patiently;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// Things are not as they were seen, and nothing was changed.
    Refused,
}

pub(crate) async fn transact(
    store: &Arc<dyn WriteStore>,
    doing: &'static str,
    writes: Vec<Write>,
) -> Result<Written, VerifyError> {
    let attempt = || store.transact(Transaction { writes: writes.clone(), token: None });
    match patiently(attempt).await {
        Ok(()) => Ok(Written::Done),
        Err(StoreError::TransactionCanceled { reasons }) if reasons.iter().flatten().any(is_condition) => {
            Ok(Written::Refused)
        }
        Err(source) => Err(VerifyError::Store { doing, source }),
    }
}

fn is_condition(reason: &CancelReason) -> bool {
    matches!(reason, CancelReason::ConditionFailed { .. })
}
