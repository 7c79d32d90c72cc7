//! Clients for what pipelines read and write, and their twins that need no server.
//!
//! This crate knows no pipeline: it offers plain types and named operations, and `courant-stages` makes stages
//! of them.
//!
//! - [`store`], [`log`], [`live`]: what can be asked of the three levels of authority, as narrow traits.
//! - [`model`]: the tables, topics and key families, and every access pattern as a named function.
//! - [`capability`]: handles on them that cannot do more than was granted.
//! - [`connections`]: the configuration that says where they are.
//! - [`files`]: what lives in a folder of its own on the local disk: dead letters, kept positions, JSON lines.

pub mod capability;
pub mod connections;
pub mod files;
pub mod live;
pub mod log;
pub mod model;
pub mod store;
