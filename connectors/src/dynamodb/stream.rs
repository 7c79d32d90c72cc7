//! The change stream of a table: shards, and reading one of them in order.
//!
//! A place in a shard is held by an iterator that ends after fifteen minutes. The reader keeps the last
//! sequence number it gave out and takes a new iterator from there, so that a slow consumer loses nothing.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_sdk_dynamodb::types::StreamSpecification;
use aws_sdk_dynamodbstreams::Client;
use aws_sdk_dynamodbstreams::operation::get_records::GetRecordsError;
use aws_sdk_dynamodbstreams::types::{Record, ShardIteratorType};

use super::DynamoDb;
use super::convert::changed_item_from;
use super::error::{Doing, code};
use crate::store::{
    Change, ChangeStream, Item, Key, Name, Result, SequenceNumber, Shard, ShardId, ShardRead, ShardReader,
    ShardStart, StoreError, TableSchema,
};

/// DynamoDB's limit for one read.
const MAX_RECORDS: usize = 1000;

/// By whom an item is removed when its time has come.
const TTL_PRINCIPAL: &str = "dynamodb.amazonaws.com";

/// How far the server's clock may be from ours. Where that matters, a change is rather told twice than lost.
const CLOCKS_APART: Duration = Duration::from_secs(300);

#[async_trait]
impl ChangeStream for DynamoDb {
    async fn shards(&self, table: &Name) -> Result<Vec<Shard>> {
        let doing = Doing::new("describe the change stream", table);
        let arn = self.stream_arn(&doing).await?;
        let mut shards = Vec::new();
        let mut last = None;
        loop {
            let request = self.clients.streams.describe_stream().stream_arn(&arn);
            let request = request.set_exclusive_start_shard_id(last);
            let answer = request.send().await.map_err(|error| doing.read_failed(&error))?;
            let Some(stream) = answer.stream_description else { return Ok(shards) };
            shards.extend(stream.shards.unwrap_or_default().into_iter().filter_map(|shard| {
                let parent = shard.parent_shard_id.map(|parent| ShardId(parent.into()));
                Some(Shard { id: ShardId(shard.shard_id?.into()), parent })
            }));
            last = stream.last_evaluated_shard_id;
            if last.is_none() {
                return Ok(shards);
            }
        }
    }

    async fn open_shard(
        &self,
        table: &Name,
        shard: &ShardId,
        start: ShardStart,
    ) -> Result<Box<dyn ShardReader>> {
        let doing = Doing::new("read the change stream", table);
        let mut reader = DynamoShard {
            client: self.clients.streams.clone(),
            arn: self.stream_arn(&doing).await?,
            schema: self.schema(table).await?,
            doing,
            shard: shard.clone(),
            opened_at: wall_clock(),
            skip_before: None,
            start,
            iterator: ShardIterator::Ended,
        };
        let kind = match &reader.start {
            ShardStart::Oldest => ShardIteratorType::TrimHorizon,
            ShardStart::Latest => ShardIteratorType::Latest,
            ShardStart::After(_) => ShardIteratorType::AfterSequenceNumber,
        };
        reader.iterator = reader.take_iterator(kind).await?;
        Ok(Box::new(reader))
    }
}

impl DynamoDb {
    async fn stream_arn(&self, doing: &Doing) -> Result<String> {
        let table = self.description(doing).await?;
        let table = table.ok_or_else(|| StoreError::NoSuchTable { table: doing.table().clone() })?;
        let streams = table.stream_specification().is_some_and(StreamSpecification::stream_enabled);
        table
            .latest_stream_arn
            .filter(|_| streams)
            .ok_or_else(|| doing.invalid("the table has none; turn it on with old and new images"))
    }
}

/// Where the reader is, as the server knows it.
enum ShardIterator {
    At(String),
    /// The shard has no more.
    Ended,
}

struct DynamoShard {
    client: Client,
    arn: String,
    schema: std::sync::Arc<TableSchema>,
    doing: Doing,
    shard: ShardId,
    opened_at: SystemTime,
    /// Set when the place of the latest was lost before anything came, and reading began again at the oldest.
    skip_before: Option<SystemTime>,
    /// Where a new iterator starts: after the last change that was given out, if there was one.
    start: ShardStart,
    iterator: ShardIterator,
}

#[async_trait]
impl ShardReader for DynamoShard {
    async fn read(&mut self, limit: usize) -> Result<ShardRead> {
        let ShardIterator::At(iterator) = &self.iterator else { return Ok(ShardRead::Ended) };
        let limit = i32::try_from(limit.clamp(1, MAX_RECORDS)).expect("a thousand fits");
        let sent = self.client.get_records().shard_iterator(iterator).limit(limit).send().await;
        let answer = match sent {
            Ok(answer) => answer,
            Err(error) => match error.as_service_error() {
                Some(GetRecordsError::ExpiredIteratorException(_)) => {
                    self.iterator = self.renewed_iterator().await?;
                    return Ok(ShardRead::Changes(Vec::new()));
                }
                // A shard is removed when nothing in it is kept any more.
                Some(
                    GetRecordsError::TrimmedDataAccessException(_)
                    | GetRecordsError::ResourceNotFoundException(_),
                ) => return Err(self.trimmed()),
                _ => return Err(self.doing.read_failed(&error)),
            },
        };
        let records = answer.records.unwrap_or_default();
        let changes = records.into_iter().map(|record| change_from(&self.doing, &self.schema, record));
        let mut changes = changes.collect::<Result<Vec<_>>>()?;
        // From here on nothing waits, so a dropped call has moved nothing.
        self.iterator = answer.next_shard_iterator.map_or(ShardIterator::Ended, ShardIterator::At);
        match changes.last() {
            Some(last) => self.start = ShardStart::After(last.sequence.clone()),
            None if matches!(self.iterator, ShardIterator::Ended) => return Ok(ShardRead::Ended),
            None => {}
        }
        changes.retain(|change| self.is_new(change));
        Ok(ShardRead::Changes(changes))
    }
}

impl DynamoShard {
    /// For an iterator that ended before its time. One of the latest that saw nothing has no place to go back
    /// to, so it reads from the oldest and leaves out what was there before.
    async fn renewed_iterator(&mut self) -> Result<ShardIterator> {
        if self.start == ShardStart::Latest {
            self.skip_before = self.opened_at.checked_sub(CLOCKS_APART);
        }
        let kind = match self.start {
            ShardStart::Oldest | ShardStart::Latest => ShardIteratorType::TrimHorizon,
            ShardStart::After(_) => ShardIteratorType::AfterSequenceNumber,
        };
        self.take_iterator(kind).await
    }

    async fn take_iterator(&self, kind: ShardIteratorType) -> Result<ShardIterator> {
        let sequence = match &self.start {
            ShardStart::After(sequence) => Some(sequence.0.to_string()),
            ShardStart::Oldest | ShardStart::Latest => None,
        };
        let request = self.client.get_shard_iterator().stream_arn(&self.arn).shard_id(self.shard.0.as_str());
        let sent = request.shard_iterator_type(kind).set_sequence_number(sequence).send().await;
        let answer = match sent {
            Ok(answer) => answer,
            // A shard is removed when nothing in it is kept any more.
            Err(error)
                if matches!(
                    code(&error),
                    Some("TrimmedDataAccessException" | "ResourceNotFoundException")
                ) =>
            {
                return Err(self.trimmed());
            }
            Err(error) => return Err(self.doing.read_failed(&error)),
        };
        Ok(answer.shard_iterator.map_or(ShardIterator::Ended, ShardIterator::At))
    }

    fn trimmed(&self) -> StoreError {
        let shard = &self.shard.0;
        let position = match &self.start {
            ShardStart::After(sequence) => format!("{} of shard '{shard}'", sequence.0),
            ShardStart::Oldest | ShardStart::Latest => format!("shard '{shard}'"),
        };
        StoreError::Trimmed { table: self.doing.table().clone(), position }
    }

    /// AWS leaves out what changes nothing; other servers may tell of it.
    fn is_new(&self, change: &Change) -> bool {
        change.old != change.new && self.skip_before.is_none_or(|before| change.at >= before)
    }
}

fn change_from(doing: &Doing, schema: &TableSchema, record: Record) -> Result<Change> {
    let incomplete =
        |what: &str| StoreError::Damaged(format!("a change of '{}' has no {what}", doing.table()));
    let by = record.user_identity;
    let expired = by.is_some_and(|by| by.principal_id.as_deref() == Some(TTL_PRINCIPAL));
    let change = record.dynamodb.ok_or_else(|| incomplete("content"))?;
    let sequence = change.sequence_number.ok_or_else(|| incomplete("sequence number"))?;
    let at = change.approximate_creation_date_time.map(SystemTime::try_from);
    let keys = changed_item_from(change.keys.unwrap_or_default())?;
    Ok(Change {
        sequence: SequenceNumber(sequence.into()),
        at: at.and_then(std::result::Result::ok).ok_or_else(|| incomplete("time"))?,
        key: key_from(schema, keys).ok_or_else(|| incomplete("key"))?,
        old: change.old_image.map(changed_item_from).transpose()?,
        new: change.new_image.map(changed_item_from).transpose()?,
        expired,
    })
}

fn key_from(schema: &TableSchema, mut keys: Item) -> Option<Key> {
    let mut named = |name: &Name| Some((name.clone(), keys.remove(name)?));
    let partition = named(&schema.partition.name)?;
    let sort = match &schema.sort {
        Some(sort) => Some(named(&sort.name)?),
        None => None,
    };
    Some(Key { partition, sort })
}

#[allow(clippy::disallowed_methods, reason = "connectors know no pipeline, whose clock it would be")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
