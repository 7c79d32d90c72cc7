//! Handles that cannot do more than their holder should.
//!
//! Two fences, one at compile time and one at run time. What a holder may do at all is the trait of its handle: a
//! [`ReadStore`](crate::store::ReadStore) has no method that writes, so code that holds one cannot. Which tables, topics
//! and key families is a [`Grant`], made of what stages declare; [`RestrictedStore`], [`RestrictedLog`] and
//! [`RestrictedLive`] answer `NotAllowed` to everything outside it. So a declaration that is too small is found by the
//! first test of its stage, and [`policy`] hands the same declarations to servers as access rules.
//!
//! Reading everything (a scan, a change stream) is granted apart from looking things up; making and removing tables and
//! topics is granted to nobody.
//!
//! ```
//! # use std::sync::Arc;
//! # use courant_connectors::store::{ReadStore, Store};
//! fn for_a_reader(store: Arc<dyn Store>) -> Arc<dyn ReadStore> {
//!     store
//! }
//! ```
//! ```
//! # use courant_connectors::store::{Durability, Item, Returning, Write, WriteStore};
//! async fn put(store: &dyn WriteStore) {
//!     let _ = store.write(Write::put("users", Item::new()), Returning::Nothing, Durability::Synced).await;
//! }
//! ```
//! The same with a reader's handle does not compile:
//! ```compile_fail,E0599
//! # use courant_connectors::store::{Durability, Item, ReadStore, Returning, Write, WriteStore};
//! async fn put(store: &dyn ReadStore) {
//!     let _ = store.write(Write::put("users", Item::new()), Returning::Nothing, Durability::Synced).await;
//! }
//! ```

mod grant;
mod live;
mod log;
pub mod policy;
mod store;

pub use grant::{Access, Grant};
pub use live::RestrictedLive;
pub use log::RestrictedLog;
pub use store::RestrictedStore;
