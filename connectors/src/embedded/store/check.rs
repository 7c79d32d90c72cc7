//! Whether what is kept of a table agrees with itself.

use fjall::{Keyspace, Readable, Snapshot};

use super::super::check::Checked;
use super::changes::entry_numbers;
use super::encoding::{index_key, row_key};
use super::read_error;
use super::table::{Index, Table, expiry_key};
use crate::store::codec::{decode_item, encode_item};
use crate::store::{Item, Result};

impl Table {
    /// Reads all of the table as it was at one moment; what is wrong is added to the findings.
    pub(in crate::embedded) fn check(&self, snapshot: &Snapshot, checked: &mut Checked) {
        if let Err(error) = self.check_rows(snapshot, checked) {
            checked.finding(format!("table '{}' cannot be read: {error}", self.name()));
        }
        if let Err(error) = self.check_changes(snapshot, checked) {
            checked.finding(format!("the change stream of '{}' cannot be read: {error}", self.name()));
        }
    }

    fn check_rows(&self, snapshot: &Snapshot, checked: &mut Checked) -> Result<()> {
        let mut in_indexes = vec![0u64; self.indexes.len()];
        let mut with_end = 0u64;
        for guard in snapshot.iter(&self.rows) {
            let (key, value) = guard.into_inner().map_err(read_error)?;
            let item = decode_item(&value)?;
            if row_key(&self.schema, &item)? != *key {
                checked.finding(format!(
                    "table '{}' has {:?} under another key",
                    self.name(),
                    self.key_of(&item)
                ));
            }
            for (index, count) in self.indexes.iter().zip(&mut in_indexes) {
                *count += u64::from(self.check_index_row(snapshot, index, &key, &item, checked)?);
            }
            with_end += u64::from(self.check_end(snapshot, &key, &item, checked)?);
            checked.rows += 1;
        }
        // each row's own entries were found, so a surplus is of rows that are not there
        for (index, expected) in self.indexes.iter().zip(in_indexes) {
            let found = count(snapshot, &index.rows)?;
            checked.index_rows += found;
            if found != expected {
                let (table, index) = (self.name(), &index.schema.name);
                checked.finding(format!(
                    "index '{index}' of '{table}' has {found} rows and should have {expected}"
                ));
            }
        }
        let found = self.expiry.as_ref().map_or(Ok(0), |expiry| count(snapshot, expiry))?;
        if found != with_end {
            checked
                .finding(format!("'{}' has notes of {found} ends and should have {with_end}", self.name()));
        }
        Ok(())
    }

    /// Whether the item belongs in the index; that it stands there as it should.
    fn check_index_row(
        &self,
        snapshot: &Snapshot,
        index: &Index,
        row: &[u8],
        item: &Item,
        checked: &mut Checked,
    ) -> Result<bool> {
        let Some(key) = index_key(&index.schema, item, row) else { return Ok(false) };
        let found = snapshot.get(&index.rows, key).map_err(read_error)?;
        let projected = self.projected(&index.schema, item);
        let expected = encode_item(&projected, projected.size());
        if found.as_deref() != Some(&expected[..]) {
            let how = if found.is_some() { "otherwise than in" } else { "not though it is in" };
            let (table, index) = (self.name(), &index.schema.name);
            let key = self.key_of(item);
            checked.finding(format!("{key:?} is in index '{index}' {how} table '{table}'"));
        }
        Ok(found.is_some())
    }

    /// What names an item. Findings are read by people who need not know what the item says.
    fn key_of(&self, item: &Item) -> Item {
        let names = self.schema.key_names(None);
        names.filter_map(|name| Some((name.clone(), item.get(name)?.clone()))).collect()
    }

    fn check_end(&self, snapshot: &Snapshot, row: &[u8], item: &Item, checked: &mut Checked) -> Result<bool> {
        let Some(expiry) = &self.expiry else { return Ok(false) };
        let Some(end) = self.schema.ttl.as_ref().and_then(|ttl| item.u64(ttl)) else { return Ok(false) };
        let noted = snapshot.contains_key(expiry, expiry_key(end, row)).map_err(read_error)?;
        if !noted {
            checked.finding(format!("the end of {:?} in '{}' is not noted", self.key_of(item), self.name()));
        }
        Ok(noted)
    }

    fn check_changes(&self, snapshot: &Snapshot, checked: &mut Checked) -> Result<()> {
        let Some(changes) = &self.changes else { return Ok(()) };
        let mut before: Option<(u8, u64)> = None;
        for guard in snapshot.iter(changes) {
            let (key, value) = guard.into_inner().map_err(read_error)?;
            let numbers = entry_numbers(&key, &value)?;
            if before.is_some_and(|(shard, last)| shard == key[0] && numbers.start <= last) {
                checked.finding(format!("changes of '{}' overlap at {}", self.name(), numbers.start));
            }
            before = Some((key[0], numbers.end - 1));
            checked.changes += numbers.end - numbers.start;
        }
        Ok(())
    }
}

fn count(snapshot: &Snapshot, keyspace: &Keyspace) -> Result<u64> {
    let mut count = 0;
    for guard in snapshot.iter(keyspace) {
        guard.value().map_err(read_error)?;
        count += 1;
    }
    Ok(count)
}
