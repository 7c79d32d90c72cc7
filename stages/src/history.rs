//! That the records which come are history: told by whoever runs it again, for stages that work by time.
//!
//! A scan of the store gives records by key, and a range of the log is read as fast as it goes, one partition far ahead of
//! another: neither their order nor the clock on the wall says how far time has come. A rebuild therefore puts
//! [`History`] among the services of everything it runs. A stage such as `window` then takes every record, counts none as
//! late, and ends up with the same from whatever start and in whatever order the same records come
//! (`docs/decisions/0012-windows-in-a-rebuild.md`). The live process offers none: what comes there, comes in time.
//!
//! A record of the scan may come again from the log. A stage can only tell if it is given something that is the same in
//! both, such as `window` its `id`.

/// The records that come are history.
#[derive(Debug, Default)]
pub struct History;
