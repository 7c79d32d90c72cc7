//! Why a store did not do as asked, by what the caller can do about it.

use super::value::{Item, Name};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The condition of a single write did not hold. The item it met, where the store tells.
    #[error("the condition does not hold")]
    ConditionFailed { current: Option<Box<Item>> },
    /// A transaction was refused as a whole; one entry per write, `None` for those that would have been fine.
    #[error("the transaction was canceled: {}", describe_reasons(.reasons))]
    TransactionCanceled { reasons: Vec<Option<CancelReason>> },
    /// Another transaction touches the same items at this moment. Nothing was written.
    #[error("another transaction is changing the same item")]
    Conflict,
    /// More was asked than the table may do now. Nothing was written.
    #[error("the store asks to slow down: {0}")]
    Throttled(String),
    /// It may or may not have happened; only reading can tell.
    #[error("the outcome is unknown: {0}")]
    UnknownOutcome(String),
    /// The store cannot be reached or cannot work now; nothing was written.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    #[error("there is no table '{table}'; create it with 'courant tables create'")]
    NoSuchTable { table: Name },
    #[error("table '{table}' has no index '{index}'")]
    NoSuchIndex { table: Name, index: Name },
    /// The request itself is wrong and would fail every time.
    #[error("{0}")]
    Invalid(String),
    /// A transaction's token was used before with other writes.
    #[error("the transaction's token was used before for another transaction")]
    TokenReused,
    /// More than this handle was given.
    #[error("this handle may not {access} '{name}'")]
    NotAllowed { access: &'static str, name: Name },
    /// A position in a change stream that is not kept any more.
    #[error("the change stream of '{table}' does not reach back to {position}; rebuild from a scan")]
    Trimmed { table: Name, position: String },
    /// What is stored cannot be read; it was not served.
    #[error("the stored data is damaged: {0}")]
    Damaged(String),
    /// One item is not what its table holds, as after a mistake of somebody's own. The others can be read.
    #[error("the stored data is damaged: {0}")]
    DamagedItem(String),
}

/// Why one write of a transaction could not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelReason {
    ConditionFailed { current: Option<Box<Item>> },
    Conflict,
    Throttled,
    Invalid(String),
}

impl CancelReason {
    const fn name(&self) -> &'static str {
        match self {
            Self::ConditionFailed { .. } => "condition does not hold",
            Self::Conflict => "conflict",
            Self::Throttled => "throttled",
            Self::Invalid(_) => "invalid",
        }
    }
}

fn describe_reasons(reasons: &[Option<CancelReason>]) -> String {
    let named = reasons.iter().enumerate().filter_map(|(index, reason)| {
        let reason = reason.as_ref()?;
        Some(format!("write {} of {}: {}", index + 1, reasons.len(), reason.name()))
    });
    named.collect::<Vec<_>>().join(", ")
}

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The same request may succeed later.
    Retry,
    /// Look whether it happened before trying again.
    Look,
    /// This request will never succeed.
    GiveUp,
    /// Nothing will succeed until a person acts.
    Stop,
}

impl StoreError {
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Conflict | Self::Throttled(_) | Self::Unavailable(_) => Remedy::Retry,
            Self::TransactionCanceled { reasons } => {
                let passing = |reason: &CancelReason| {
                    matches!(reason, CancelReason::Conflict | CancelReason::Throttled)
                };
                if reasons.iter().flatten().all(passing) { Remedy::Retry } else { Remedy::GiveUp }
            }
            Self::UnknownOutcome(_) => Remedy::Look,
            Self::ConditionFailed { .. }
            | Self::Invalid(_)
            | Self::TokenReused
            | Self::Trimmed { .. }
            | Self::DamagedItem(_) => Remedy::GiveUp,
            Self::NoSuchTable { .. }
            | Self::NoSuchIndex { .. }
            | Self::NotAllowed { .. }
            | Self::Damaged(_) => Remedy::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canceled_transaction_says_which_write_and_why() {
        let failed = Some(CancelReason::ConditionFailed { current: None });
        let error =
            StoreError::TransactionCanceled { reasons: vec![None, failed, Some(CancelReason::Conflict)] };
        assert_eq!(
            error.to_string(),
            "the transaction was canceled: write 2 of 3: condition does not hold, write 3 of 3: conflict"
        );
        assert_eq!(error.remedy(), Remedy::GiveUp);
        let passing = StoreError::TransactionCanceled { reasons: vec![None, Some(CancelReason::Conflict)] };
        assert_eq!(passing.remedy(), Remedy::Retry);
    }
}
