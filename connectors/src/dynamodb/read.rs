//! Single items, pages of one partition, and pages of a whole table.

use async_trait::async_trait;

use super::DynamoDb;
use super::convert::{Attributes, item_from, key_to_attributes, to_attributes};
use super::error::Doing;
use super::expression::{Placeholders, holds_nothing, outside};
use super::tables::unless_ended;
use crate::store::{
    Consistency, Direction, Get, Item, Page, PageToken, Query, ReadStore, Result, Scan, ScanStore,
    TableSchema,
};

#[async_trait]
impl ReadStore for DynamoDb {
    async fn get(&self, get: Get) -> Result<Option<Item>> {
        let schema = self.schema(&get.table).await?;
        let doing = Doing::new("get item", &get.table);
        let answer = self
            .clients
            .repeatable
            .get_item()
            .table_name(self.tables.full_name(&get.table))
            .set_key(Some(key_to_attributes(get.key)))
            .consistent_read(is_strong(get.consistency))
            .send()
            .await
            .map_err(|error| doing.read_failed(&error))?;
        let item = answer.item.map(item_from).transpose()?;
        Ok(item.and_then(|item| unless_ended(&schema, item)))
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        self.get_in_batches(gets).await
    }

    async fn query(&self, query: Query) -> Result<Page> {
        let schema = self.schema(&query.table).await?;
        let doing = Doing::new("query", &query.table).with_index(query.index.as_ref());
        if query.range.as_ref().is_some_and(|range| holds_nothing(&range.within)) {
            return Ok(Page::default());
        }
        let mut placeholders = Placeholders::default();
        let (name, value) = &query.partition;
        let key_condition = placeholders.key_condition((name, value), query.range.as_ref());
        let (names, values) = placeholders.into_parts();
        let answer = self
            .clients
            .repeatable
            .query()
            .table_name(self.tables.full_name(&query.table))
            .set_index_name(query.index.as_ref().map(ToString::to_string))
            .key_condition_expression(key_condition)
            .set_expression_attribute_names(names)
            .set_expression_attribute_values(values)
            .scan_index_forward(query.direction == Direction::Forward)
            .set_limit(limit(&doing, query.limit)?)
            .set_exclusive_start_key(query.start_after.map(|token| to_attributes(token.0)))
            .consistent_read(is_strong(query.consistency) && query.index.is_none())
            .send()
            .await
            .map_err(|error| doing.read_failed(&error))?;
        let mut page = page(&schema, answer.items.unwrap_or_default(), answer.last_evaluated_key)?;
        if let Some(range) = &query.range {
            page.items.retain(|item| !outside(&range.within, item.get(&range.attribute)));
        }
        Ok(page)
    }
}

#[async_trait]
impl ScanStore for DynamoDb {
    async fn scan(&self, scan: Scan) -> Result<Page> {
        let schema = self.schema(&scan.table).await?;
        let doing = Doing::new("scan", &scan.table);
        let number = |of_segment: u32| {
            i32::try_from(of_segment).map_err(|_| doing.invalid("a table has at most 1000000 segments"))
        };
        let answer = self
            .clients
            .repeatable
            .scan()
            .table_name(self.tables.full_name(&scan.table))
            .segment(number(scan.segment.index)?)
            .total_segments(number(scan.segment.of)?)
            .set_limit(limit(&doing, scan.limit)?)
            .set_exclusive_start_key(scan.start_after.map(|token| to_attributes(token.0)))
            .consistent_read(is_strong(scan.consistency))
            .send()
            .await
            .map_err(|error| doing.read_failed(&error))?;
        page(&schema, answer.items.unwrap_or_default(), answer.last_evaluated_key)
    }
}

pub(super) fn is_strong(consistency: Consistency) -> bool {
    consistency == Consistency::Strong
}

/// More than fits is the same as no limit: a page ends after a megabyte anyway.
fn limit(doing: &Doing, limit: Option<u32>) -> Result<Option<i32>> {
    match limit {
        Some(0) => Err(doing.invalid("a page has a limit of at least one item")),
        Some(limit) => Ok(Some(i32::try_from(limit).unwrap_or(i32::MAX))),
        None => Ok(None),
    }
}

fn page(schema: &TableSchema, items: Vec<Attributes>, last: Option<Attributes>) -> Result<Page> {
    let mut kept = Vec::with_capacity(items.len());
    for attributes in items {
        kept.extend(unless_ended(schema, item_from(attributes)?));
    }
    let next = last.filter(|last| !last.is_empty()).map(item_from).transpose()?.map(PageToken);
    Ok(Page { items: kept, next })
}
