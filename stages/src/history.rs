//! Whether the records that come are history in any order, told by whoever runs it again.
//!
//! A scan of the store gives records by key and not by time, so their order says nothing about how far time has come. A
//! rebuild that begins with one puts a [`History`] among its services and [ends](History::end) it after the last record
//! of the scan has come to its end; then it goes on with the log, whose records are in order again. Until then a stage
//! that works by time, such as `window`, takes every record, counts none as late and finishes nothing; what is finished
//! by then comes out with the next records. The live process offers no [`History`]: nothing there is out of order.
//!
//! A record of the scan may come again from the log. A stage can only tell if it is given something that is the same in
//! both, such as `window` its `id`.

use std::sync::atomic::{AtomicBool, Ordering};

/// Records in any order, until it is over.
#[derive(Debug, Default)]
pub struct History(AtomicBool);

impl History {
    /// From now on records are in order.
    pub fn end(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
