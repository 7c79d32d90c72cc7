//! Clients for what pipelines read and write.
//!
//! This crate knows no pipeline: it offers plain types and named operations, and `courant-stages` makes stages
//! of them.
//!
//! - [`files`]: what lives in a folder of its own on the local disk: dead letters, kept positions, JSON lines.

pub mod files;
