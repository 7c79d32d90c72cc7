//! The data model on a store: every access pattern does what it is documented to do, not only what it asks.
//!
//! Give [`model_suite!`](crate::model_suite) an async function that starts a store with the product's tables
//! ([`create_tables`]) and returns it as [`UnderTest`](crate::store::UnderTest); it becomes one test per
//! case. The tables have fixed names and cases have ids of their own, so that all cases can run at the same
//! time on one server, and again on the same one.
//!
//! One file per table, and two for what spans them: `sending`, `restricted`. Patterns that
//! read strongly are asserted at once; those that are documented as eventual, from an index or not, are
//! repeated until they answer as expected.

pub mod chat_counters;
pub mod chat_memberships;
pub mod chats;
mod counting;
pub mod delivery_state;
pub mod idempotency_keys;
pub mod messages;
mod records;
pub mod restricted;
pub mod sending;
pub mod sessions;
mod suite;
pub mod users;

use courant_connectors::model::tables::TABLES;
use courant_connectors::store::AdminStore;

/// Makes the tables of the product where they are missing.
///
/// # Panics
/// If the store refuses one.
pub async fn create_tables(store: &dyn AdminStore) {
    for schema in TABLES {
        store.create_table(schema).await.expect("the model's tables can be made");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_in_the_suite() {
        crate::listed::assert_every_case_is_listed(
            include_str!("suite.rs"),
            &[
                ("chat_counters", include_str!("chat_counters.rs")),
                ("chat_memberships", include_str!("chat_memberships.rs")),
                ("chats", include_str!("chats.rs")),
                ("delivery_state", include_str!("delivery_state.rs")),
                ("idempotency_keys", include_str!("idempotency_keys.rs")),
                ("messages", include_str!("messages.rs")),
                ("restricted", include_str!("restricted.rs")),
                ("sending", include_str!("sending.rs")),
                ("sessions", include_str!("sessions.rs")),
                ("users", include_str!("users.rs")),
            ],
        );
    }
}
