//! Gets, queries and scans, straight from the engine below.
//!
//! Every read sees every finished write, and sees it at one moment. Gets and queries are done where they are called: nearly all find their block
//! in memory, and handing them to another thread would cost more than the rest. Scans go to a thread for blocking
//! work.

use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;
use fjall::{Keyspace, Readable as _, Snapshot};

use super::super::Engine;
use super::encoding::{
    SortKeyIs, after_prefix, check_key, index_key, index_prefix, partition_prefix, push_sort,
    push_sort_prefix, row_key, segment_bounds,
};
use super::read_error;
use super::table::Table;
use crate::store::codec::decode_item;
use crate::store::{
    Direction, Get, IndexSchema, Item, KeyAttribute, MAX_PAGE_BYTES, MAX_PARTITION_KEY_BYTES,
    MAX_SORT_KEY_BYTES, Name, PackedItem, Page, PageToken, Query, ReadStore, Result, Scan, ScanStore,
    SortRange, StoreError, Value, Within,
};

#[async_trait]
impl ReadStore for Engine {
    async fn get(&self, get: Get) -> Result<Option<Item>> {
        self.get_at(&self.shared.moment(), &get)
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        let moment = self.shared.moment();
        gets.iter().map(|get| self.get_at(&moment, get)).collect()
    }

    async fn query(&self, query: Query) -> Result<Page> {
        let table = self.table(&query.table)?;
        let read = RangeRead::for_query(&table, &query)?;
        unpacked(read.page(&self.shared.moment(), &table, self.shared.clock.since_1970())?)
    }
}

#[async_trait]
impl ScanStore for Engine {
    async fn scan(&self, scan: Scan) -> Result<Page> {
        self.scan_as(scan, unpacked).await
    }

    async fn scan_packed(&self, scan: Scan) -> Result<Page<PackedItem>> {
        self.scan_as(scan, Ok).await
    }
}

impl Engine {
    async fn scan_as<I: Send + 'static>(
        &self,
        scan: Scan,
        make: fn(Page<PackedItem>) -> Result<Page<I>>,
    ) -> Result<Page<I>> {
        let table = self.table(&scan.table)?;
        let now = self.shared.clock.since_1970();
        let moment = self.shared.moment();
        let read = tokio::task::spawn_blocking(move || {
            make(RangeRead::for_scan(&table, &scan)?.page(&moment, &table, now)?)
        });
        read.await.map_err(|error| StoreError::Unavailable(format!("a scan ended early: {error}")))?
    }

    fn get_at(&self, moment: &Snapshot, get: &Get) -> Result<Option<Item>> {
        let table = self.table(&get.table)?;
        let row = super::prepared::checked_row(&table, &get.key)?;
        let Some(bytes) = moment.get(&table.rows, row).map_err(read_error)? else { return Ok(None) };
        let item = decode_item(&bytes)?;
        let ended = table.schema.has_ended(&item, self.shared.clock.since_1970());
        Ok((!ended).then_some(item))
    }
}

type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A range of rows to be read in one direction.
struct RangeRead<'a> {
    rows: &'a Keyspace,
    index: Option<&'a IndexSchema>,
    range: KeyRange,
    direction: Direction,
    limit: Option<u32>,
}

impl<'a> RangeRead<'a> {
    fn for_query(table: &'a Table, query: &Query) -> Result<Self> {
        let index = query.index.as_ref().map(|name| table.index(name)).transpose()?;
        let (rows, partition, sort) = match index {
            Some(index) => (&index.rows, &index.schema.partition, index.schema.sort.as_ref()),
            None => (&table.rows, &table.schema.partition, table.schema.sort.as_ref()),
        };
        check_limit(query.limit)?;
        let (name, value) = &query.partition;
        check_named(&table.schema.name, partition, name)?;
        check_key(&table.schema.name, partition, value, MAX_PARTITION_KEY_BYTES)?;
        let (prefix, place) = match index {
            Some(_) => (index_prefix(value), SortKeyIs::Followed),
            None => (partition_prefix(value), SortKeyIs::Last),
        };
        let mut range = match &query.range {
            Some(wanted) => sort_bounds(&table.schema.name, sort, wanted, &prefix, place)?,
            None => whole_prefix(&prefix),
        };
        if let Some(PageToken(last)) = &query.start_after {
            let last = token_key(table, index.map(|index| &index.schema), last)?;
            match query.direction {
                Direction::Forward => range.0 = Bound::Excluded(last),
                Direction::Backward => range.1 = Bound::Excluded(last),
            }
        }
        let index = index.map(|index| &index.schema);
        Ok(Self { rows, index, range, direction: query.direction, limit: query.limit })
    }

    fn for_scan(table: &'a Table, scan: &Scan) -> Result<Self> {
        let segment = scan.segment;
        if segment.of == 0 || segment.index >= segment.of {
            return Err(StoreError::Invalid(format!(
                "there is no segment {} of {}",
                segment.index, segment.of
            )));
        }
        check_limit(scan.limit)?;
        let (start, end) = segment_bounds(segment);
        let start = match &scan.start_after {
            Some(PageToken(last)) => Bound::Excluded(token_key(table, None, last)?),
            None => Bound::Included(start),
        };
        let range = (start, end.map_or(Bound::Unbounded, Bound::Excluded));
        Ok(Self { rows: &table.rows, index: None, range, direction: Direction::Forward, limit: scan.limit })
    }

    fn page(self, moment: &Snapshot, table: &Table, now: Duration) -> Result<Page<PackedItem>> {
        if is_empty(&self.range) {
            return Ok(Page::default());
        }
        let mut rows = moment.range::<Vec<u8>, _>(self.rows, self.range);
        let limit = self.limit.map_or(usize::MAX, |limit| limit as usize);
        let (mut page, mut looked_at, mut bytes) = (Page::default(), 0, 0);
        let mut next = || match self.direction {
            Direction::Forward => rows.next(),
            Direction::Backward => rows.next_back(),
        };
        while let Some(row) = next() {
            let value = row.value().map_err(read_error)?;
            let item = PackedItem::encoded(value);
            looked_at += 1;
            bytes += item.len();
            if looked_at >= limit || bytes >= MAX_PAGE_BYTES {
                page.next = Some(token_of(table, self.index, &item.unpack()?));
            }
            if !table.schema.has_packed_ended(&item, now)? {
                page.items.push(item);
            }
            if page.next.is_some() {
                break;
            }
        }
        Ok(page)
    }
}

fn unpacked(page: Page<PackedItem>) -> Result<Page> {
    let items = page.items.iter().map(PackedItem::unpack).collect::<Result<_>>()?;
    Ok(Page { items, next: page.next })
}

fn check_limit(limit: Option<u32>) -> Result<()> {
    if limit == Some(0) {
        return Err(StoreError::Invalid("a page's limit is at least 1".to_owned()));
    }
    Ok(())
}

fn check_named(table: &Name, attribute: &KeyAttribute, name: &Name) -> Result<()> {
    if attribute.name != *name {
        let wanted = &attribute.name;
        return Err(StoreError::Invalid(format!(
            "a query of table '{table}' names the key '{wanted}', and not '{name}'"
        )));
    }
    Ok(())
}

fn whole_prefix(prefix: &[u8]) -> KeyRange {
    let end = after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(prefix.to_vec()), end)
}

/// The rows of a partition whose sort keys are wanted.
fn sort_bounds(
    table: &Name,
    sort: Option<&KeyAttribute>,
    wanted: &SortRange,
    prefix: &[u8],
    place: SortKeyIs,
) -> Result<KeyRange> {
    let sort = sort.ok_or_else(|| StoreError::Invalid(format!("table '{table}' has no sort key here")))?;
    check_named(table, sort, &wanted.attribute)?;
    let check = |value: &Value| check_key(table, sort, value, MAX_SORT_KEY_BYTES);
    let key = |value: &Value| {
        let mut key = prefix.to_vec();
        push_sort(value, place, &mut key);
        key
    };
    match &wanted.within {
        Within::Prefix(value) => {
            check(value)?;
            if matches!(value, Value::Number(_)) {
                return Err(StoreError::Invalid(format!("the number '{}' has no prefix", sort.name)));
            }
            let mut key = prefix.to_vec();
            push_sort_prefix(value, place, &mut key);
            Ok(whole_prefix(&key))
        }
        Within::Bounds(from, to) => {
            for value in [from, to] {
                if let Bound::Included(value) | Bound::Excluded(value) = value {
                    check(value)?;
                }
            }
            let (first, last) = whole_prefix(prefix);
            // In an index other rows continue a sort key, so one is left out by going behind all that begin with it.
            let behind = |value: &Value| match place {
                SortKeyIs::Last => Bound::Excluded(key(value)),
                SortKeyIs::Followed => after_prefix(&key(value)).map_or(Bound::Unbounded, Bound::Included),
            };
            let start = match from {
                Bound::Unbounded => first,
                Bound::Included(value) => Bound::Included(key(value)),
                Bound::Excluded(value) => behind(value),
            };
            let end = match (to, place) {
                (Bound::Unbounded, _) => last,
                (Bound::Excluded(value), _) => Bound::Excluded(key(value)),
                (Bound::Included(value), SortKeyIs::Last) => Bound::Included(key(value)),
                (Bound::Included(value), SortKeyIs::Followed) => {
                    after_prefix(&key(value)).map_or(Bound::Unbounded, Bound::Excluded)
                }
            };
            Ok((start, end))
        }
    }
}

/// Whether a range holds nothing whatever the rows; the engine below takes no such range.
fn is_empty(range: &KeyRange) -> bool {
    match (&range.0, &range.1) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => {
            start >= end
        }
        _ => false,
    }
}

fn token_of(table: &Table, index: Option<&IndexSchema>, item: &Item) -> PageToken {
    let names = table.schema.key_names(index);
    PageToken(names.filter_map(|name| Some((name.clone(), item.get(name)?.clone()))).collect())
}

fn token_key(table: &Table, index: Option<&IndexSchema>, last: &Item) -> Result<Vec<u8>> {
    let row = row_key(&table.schema, last)?;
    match index {
        None => Ok(row),
        Some(index) => index_key(index, last, &row).ok_or_else(|| {
            StoreError::Invalid(format!("a page token of index '{}' needs its keys", index.name))
        }),
    }
}
