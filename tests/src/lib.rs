//! A harness for tests that use the product as its users do: the real command in a folder of its own.
//!
//! A [`Home`] is such a folder with its `pipelines.toml`; [`Home::run`] runs a command to its end, [`Home::start`]
//! starts a process that goes on, a [`Courant`]. Nothing here waits for a fixed time: [`until`] looks at a condition
//! again and again, with a limit so generous that only what never happens runs into it.

pub mod asking;
pub mod chat;
pub mod deployment;
mod home;
mod http;
pub mod lines;
pub mod load;
pub mod model;
mod process;
mod python;
pub mod raw;
pub mod runbook;

use std::path::PathBuf;
use std::sync::LazyLock;

pub use courant_conformance::{LIMIT, until};
pub use home::{Ended, Home};
pub use http::get;
pub use process::{Courant, Signal};
pub use python::python;

/// A new, empty [`Home`] for the binary that was built with the calling test.
#[macro_export]
macro_rules! home {
    () => {
        $crate::Home::new(env!("CARGO_BIN_EXE_courant-e2e"))
    };
}

/// The checkout's folder: the one whose tests cargo runs now. What was compiled may come from another checkout that
/// shares the target folder.
pub fn repository() -> &'static std::path::Path {
    static REPOSITORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let this_crate =
            std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo tells its tests where their crate is");
        PathBuf::from(this_crate).parent().expect("this crate is a folder of the checkout").to_owned()
    });
    &REPOSITORY
}
