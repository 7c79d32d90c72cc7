//! Whether what is kept of a topic agrees with itself.

use bytes::Bytes;
use fjall::{Readable, Snapshot};

use super::super::check::Checked;
use super::chunk::ChunkCursor;
use super::read_error;
use super::topic::{StoredTopic, base_offset, chunk_key};
use crate::log::Result;

impl StoredTopic {
    /// Reads all of the topic as it was at one moment; what is wrong is added to the findings.
    pub(in crate::embedded) fn check(&self, snapshot: &Snapshot, checked: &mut Checked) {
        for partition in 0..self.partition_count() {
            if let Err(error) = self.check_partition(snapshot, partition, checked) {
                checked.finding(format!("{}/{partition} cannot be read: {error}", self.name()));
            }
        }
    }

    fn check_partition(&self, snapshot: &Snapshot, partition: u32, checked: &mut Checked) -> Result<()> {
        let mut expected = None;
        let all = chunk_key(partition, 0)..=chunk_key(partition, u64::MAX);
        for guard in snapshot.range(&self.chunks, all) {
            let (key, chunk) = guard.into_inner().map_err(read_error)?;
            let base = base_offset(&key)?;
            if expected.is_some_and(|expected| expected != base) {
                checked.finding(format!("{}/{partition} has a gap or overlap at {base}", self.name()));
            }
            let mut cursor = ChunkCursor::new(base, Bytes::from(chunk))?;
            while cursor.next()?.is_some() {
                checked.records += 1;
            }
            expected = Some(cursor.next_offset());
        }
        Ok(())
    }
}
