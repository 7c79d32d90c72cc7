//! One server for the tests of a file.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Started by the first test that needs it, ended by the last that is done. A plain static would never be
/// dropped, and its server would outlive the tests.
pub struct Shared<S>(Mutex<Weak<S>>);

impl<S> Shared<S> {
    pub const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    pub fn get(&self, start: impl FnOnce() -> S) -> Arc<S> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(start());
            *shared = Arc::downgrade(&server);
            server
        })
    }
}

impl<S> Default for Shared<S> {
    fn default() -> Self {
        Self::new()
    }
}
