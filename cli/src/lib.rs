//! What the `courant` command shows: pipelines as pictures ([`graph`]), stage kinds as pages ([`describe`]), a
//! running process as numbers ([`top`]).
//!
//! Each view turns data into text and knows nothing of arguments, files or how pipelines run.

pub mod describe;
pub mod graph;
pub mod top;
