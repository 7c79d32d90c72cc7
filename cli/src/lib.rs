//! The `courant` command: arguments in ([`args`]), library calls out ([`commands`]).
//!
//! [`app`] is a running process: pipelines, edge and admin socket. [`settings`] knows every table of
//! `pipelines.toml`. [`testing`] runs the tests written beside pipelines. The views turn data into text and know
//! nothing of arguments or how pipelines run: pipelines as pictures ([`graph`]), stage kinds as pages
//! ([`describe`]), a running process as numbers ([`top`]). [`bench`] measures.

pub mod app;
pub mod args;
pub mod bench;
pub mod commands;
pub mod describe;
pub mod exit;
pub mod graph;
pub mod settings;
pub mod testing;
pub mod top;
