//! What every store must do: one suite, each case a test of its own.
//!
//! Give [`store_suite!`](crate::store_suite) an async function that starts a store and returns it as
//! [`UnderTest`]; it becomes one test per case, so that a failure names what is wrong. Cases make tables with
//! names that are never used again, so that all of them can run at the same time on one server, and again on
//! the same one.
//!
//! What is asked is what DynamoDB documents. Reads are strong where the result is asserted at once, and
//! repeated until it is there where a store may be late: indexes and change streams.

pub mod batches;
pub mod changes;
pub mod conditions;
pub mod indexes;
pub mod items;
pub mod keys;
pub mod limits;
pub mod model;
pub mod queries;
pub mod scans;
mod suite;
pub(crate) mod table;
pub mod tables;
pub mod transactions;
pub mod ttl;
pub mod updates;

use std::any::Any;
use std::sync::Arc;

use courant_connectors::store::Store;

use table::unique_name;

/// A store, and what must live as long as it: a server, a folder.
pub struct UnderTest {
    store: Arc<dyn Store>,
    _keep: Box<dyn Any + Send>,
}

impl UnderTest {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::keeping(store, ())
    }

    /// `keep` is dropped after the case.
    pub fn keeping(store: Arc<dyn Store>, keep: impl Any + Send) -> Self {
        Self { store, _keep: Box::new(keep) }
    }

    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }
}

/// Asserts what kind of error it is, and shows the other one.
macro_rules! fails_with {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {
        match $result {
            Err($pattern) $(if $guard)? => {}
            other => panic!("expected {}, got {other:?}", stringify!($pattern)),
        }
    };
}
use fails_with;

/// Asserts that the request was refused as wrong, and says something.
macro_rules! is_refused {
    ($result:expr) => {
        match $result {
            Err(courant_connectors::store::StoreError::Invalid(why)) => {
                assert!(!why.trim().is_empty(), "a refusal says why");
            }
            other => panic!("expected a refusal as invalid, got {other:?}"),
        }
    };
}
use is_refused;

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_in_the_suite() {
        crate::listed::assert_every_case_is_listed(
            include_str!("suite.rs"),
            &[
                ("batches", include_str!("batches.rs")),
                ("changes", include_str!("changes.rs")),
                ("conditions", include_str!("conditions.rs")),
                ("indexes", include_str!("indexes.rs")),
                ("items", include_str!("items.rs")),
                ("keys", include_str!("keys.rs")),
                ("limits", include_str!("limits.rs")),
                ("model", include_str!("model.rs")),
                ("queries", include_str!("queries.rs")),
                ("scans", include_str!("scans.rs")),
                ("tables", include_str!("tables.rs")),
                ("transactions", include_str!("transactions.rs")),
                ("ttl", include_str!("ttl.rs")),
                ("updates", include_str!("updates.rs")),
            ],
        );
    }
}
