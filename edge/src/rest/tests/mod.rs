//! The routes, in-process: the embedded engine below, and pipelines of a few lines that carry commands out.
//!
//! Every answer of every test is held against the published description (see [`world`]): a status or a body that it does
//! not have fails the test.

mod auth;
mod channels;
mod chats;
mod hostile;
mod messages;
mod pipelines;
mod protocol;
mod search;
mod users;
mod world;
