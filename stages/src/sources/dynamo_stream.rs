//! `dynamo-stream`: what changes in a table, with the items before and after.
//!
//! Pipelines of one group share the table's shards by lease (`courant_connectors::stream`), in one process or in several:
//! changes of an item come in order, to one of them, and after a crash again from the last that was done. A position is
//! the number of a change in its shard; the group's places are in the store, so a commit of the runtime is a write
//! there, refused if the shard is another's by now.
//!
//! Where changes are not kept any more, the whole table is scanned in their place; such records say so.

use async_trait::async_trait;
use courant_connectors::model::tables::{TABLES, stream_leases};
use courant_connectors::store::{Change, Name, ShardId, Stream};
use courant_connectors::stream::{Handed, StreamEvent, StreamStart};
use courant_pipeline::spec::{BuildContext, Built, Level, Mode, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch};
use courant_pipeline::units::Span;
use courant_pipeline::{Payload, Record, Source, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::{Backends, access};
use crate::changes::{CHANGE, ChangeKind, TableChange};
use crate::stream_group::{self, StreamGroup, StreamMember, default_lease};

pub static SPEC: StageSpec = StageSpec::source::<Config>("dynamo-stream", CHANGE)
    .summary("reads what changes in a table, and shares the table's shards with others of its group")
    .example("[[pipeline.stage]]\nkind = \"dynamo-stream\"\nparams = { table = \"messages\", group = \"audit\" }\n");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The table to follow. It must have a stream with old and new images.
    pub table: String,
    /// Who reads: pipelines of one group, in any process, share the shards among them, and a group goes on where it was.
    /// The pipeline's name if left out.
    #[serde(default)]
    pub group: Option<String>,
    /// The attributes that name an item, partition key first. Only for tables that are not the product's.
    #[serde(default)]
    pub keys: Vec<String>,
    /// Where a group begins that has never read.
    #[serde(default)]
    pub start: Start,
    /// How long a worker that gives no sign of life keeps its shards before others take them over.
    #[serde(default = "default_lease")]
    pub lease: Span,
}

/// Where a new group begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// With everything that the stream still holds, which is a day.
    #[default]
    Oldest,
    /// With what happens from now on.
    Latest,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let keys = self.check()?;
        let declared = [
            access(Level::Store, Mode::Stream, &self.table),
            // in place of changes that are lost
            access(Level::Store, Mode::Scan, &self.table),
            access(Level::Store, Mode::Read, &self.table),
            access(Level::Store, Mode::Keep, &stream_leases::SCHEMA.name),
        ];
        let mut built = Built::source(DynamoStream {
            table: self.table.as_str().into(),
            group: StreamGroup::of(context, self.group, self.lease),
            keys,
            start: self.start,
            backends: Backends::of(context, &declared),
            member: None,
        });
        built.access.extend(declared);
        Ok(built)
    }
}

impl Config {
    /// The names of the table's keys, if nothing is wrong.
    fn check(&self) -> Result<Vec<Name>, Vec<Problem>> {
        let mut problems = stream_group::problems(self.group.as_deref(), self.lease);
        let known = TABLES.into_iter().find(|schema| schema.name == *self.table);
        if known.is_some_and(|schema| schema.stream == Stream::Off) {
            let streamed = TABLES.iter().filter(|schema| schema.stream != Stream::Off);
            let names: Vec<_> = streamed.map(|schema| format!("`{}`", schema.name)).collect();
            let problem = Problem::new("table", format!("the table `{}` has no change stream", self.table));
            problems.push(problem.help(format!("of the product's tables {} have one", names.join(", "))));
        }
        let keys: Vec<Name> = match known {
            Some(schema) => schema.key_names(None).cloned().collect(),
            None => self.keys.iter().map(|name| Name::from(name.as_str())).collect(),
        };
        if !(1..=2).contains(&keys.len()) {
            let message = format!("what names an item of `{}` is not known", self.table);
            let help = "name its partition key, and its sort key if it has one, like `keys = [\"id\"]`";
            problems.push(Problem::new("keys", message).help(help));
        }
        if problems.is_empty() { Ok(keys) } else { Err(problems) }
    }
}

struct DynamoStream {
    table: Name,
    group: StreamGroup,
    keys: Vec<Name>,
    start: Start,
    backends: Backends,
    member: Option<StreamMember>,
}

#[async_trait]
impl Source for DynamoStream {
    fn identity(&self) -> String {
        format!("stream:{}:{}", self.group.name(), self.table)
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Source
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        let store = self.backends.store()?;
        let (source, table, keys) = (self.identity(), self.table.clone(), self.keys.clone());
        let mut options = self.group.options(&source, self.group.name(), table, keys).await?;
        options.start = match self.start {
            Start::Oldest => StreamStart::Oldest,
            Start::Latest => StreamStart::Latest,
        };
        self.member = Some(self.group.join(store, options));
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let Some(member) = &mut self.member else {
            return Err(StageError::fatal("follow the table", "the source is not open"));
        };
        match member.next(max).await? {
            StreamEvent::Changes(handed) => Ok(Read::Batch(batch(&self.table, handed))),
            StreamEvent::Gone(shards) => Ok(Read::Gone(shards.iter().map(partition).collect())),
        }
    }

    async fn commit(&mut self, positions: &Positions) -> Result<(), StageError> {
        let Some(member) = &mut self.member else { return Ok(()) };
        let done = positions.iter().map(|(partition, number)| (ShardId(partition.as_str().into()), *number));
        member.done(done).await
    }

    async fn close(&mut self) -> Result<(), StageError> {
        match self.member.take() {
            Some(member) => member.close().await,
            None => Ok(()),
        }
    }
}

fn partition(shard: &ShardId) -> Partition {
    Partition::from(shard.0.as_str())
}

fn batch(table: &Name, handed: Handed) -> ReadBatch {
    let mut batch = ReadBatch::new(partition(&handed.shard), handed.changes.len());
    for (number, change) in handed.changes {
        let key = TableChange::partition_key(&change.key);
        let record =
            Record::new(Payload::value(table_change(table, change, handed.is_scanned))).with_key(key);
        batch.push(record, number);
    }
    batch
}

fn table_change(table: &Name, change: Change, is_scanned: bool) -> TableChange {
    let kind = match (&change.old, &change.new) {
        _ if is_scanned => ChangeKind::Scanned,
        (_, None) if change.expired => ChangeKind::Expired,
        (_, None) => ChangeKind::Removed,
        (None, Some(_)) => ChangeKind::Inserted,
        (Some(_), Some(_)) => ChangeKind::Modified,
    };
    let Change { at, key, old, new, .. } = change;
    TableChange { table: table.clone(), kind, at, key: key.into_item(), old, new }
}

#[cfg(test)]
mod tests;
