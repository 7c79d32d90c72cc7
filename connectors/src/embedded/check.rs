//! Reading everything once, to see that it can be read and that its parts agree.
//!
//! Rows, indexes, ends and changes of a table, and the chunks of a topic, are written together and should never differ;
//! this is how one knows. It looks at one moment of the whole folder, beside reads and writes.

use super::Engine;
use super::care::{CareError, Progress, blocking};

/// What a check has read, and what was wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    pub rows: u64,
    pub index_rows: u64,
    pub changes: u64,
    pub records: u64,
    /// In words; empty if all is well.
    pub findings: Vec<String>,
}

impl Checked {
    pub(super) fn finding(&mut self, what: String) {
        /// One damaged block can make a finding of every row in it.
        const ENOUGH: usize = 100;
        if self.findings.len() < ENOUGH {
            self.findings.push(what);
        }
    }
}

impl Engine {
    /// Reads every table, index and topic and compares them.
    pub async fn check(&self, mut progress: impl FnMut(Progress<'_>) + Send) -> Result<Checked, CareError> {
        let snapshot = self.shared.moment();
        let (tables, topics) = (self.shared.tables(), self.shared.topics());
        let of = tables.len() + topics.len();
        let mut checked = Checked::default();
        for (done, table) in tables.values().enumerate() {
            progress(Progress { what: table.name(), done, of });
            let (table, snapshot) = (table.clone(), snapshot.clone());
            checked = blocking(move || {
                table.check(&snapshot, &mut checked);
                checked
            })
            .await;
        }
        for (done, topic) in topics.values().enumerate() {
            progress(Progress { what: topic.name().as_str(), done: tables.len() + done, of });
            let (topic, snapshot) = (topic.clone(), snapshot.clone());
            checked = blocking(move || {
                topic.check(&snapshot, &mut checked);
                checked
            })
            .await;
        }
        Ok(checked)
    }
}
