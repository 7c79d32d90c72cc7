//! Tables as DynamoDB describes them, read back into schemas.

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndexDescription, KeySchemaElement, KeyType,
    PointInTimeRecoveryStatus, ProjectionType, ScalarAttributeType, StreamViewType,
    TableDescription as SdkTable, TimeToLiveStatus,
};

use super::DynamoDb;
use super::admin::UNKNOWN_OPERATION;
use super::error::{Doing, code};
use crate::store::{
    Capacity, IndexSchema, KeyAttribute, KeyKind, Name, Projection, Result, StoreError, Stream,
    TableDescription, TableSchema,
};

/// What the server does not tell is named so in [`TableDescription::unknown`].
pub(super) const POINT_IN_TIME_RECOVERY: &str = "point_in_time_recovery";
pub(super) const TTL: &str = "ttl";

/// What was asked, or that the server has no such operation.
enum Told<T> {
    Known(T),
    Unknown,
}

impl DynamoDb {
    /// The table as the SDK has it, or `None` if there is none.
    pub(super) async fn description(&self, doing: &Doing) -> Result<Option<SdkTable>> {
        let request = self.clients.repeatable.describe_table();
        match request.table_name(self.tables.full_name(doing.table())).send().await {
            Ok(answer) => Ok(answer.table),
            Err(error) => match doing.read_failed(&error) {
                StoreError::NoSuchTable { .. } => Ok(None),
                other => Err(other),
            },
        }
    }

    /// Enough to read the table; what costs further calls is left as it is by default.
    pub(super) async fn describe_keys_and_ttl(&self, doing: &Doing) -> Result<Option<TableSchema>> {
        let Some(table) = self.description(doing).await? else { return Ok(None) };
        let mut schema = schema_from(doing, &table)?;
        if let Told::Known(ttl) = self.ttl(doing).await? {
            schema.ttl = ttl;
        }
        Ok(Some(schema))
    }

    pub(super) async fn describe_all(&self, doing: &Doing) -> Result<Option<TableDescription>> {
        let Some(table) = self.description(doing).await? else { return Ok(None) };
        let mut schema = schema_from(doing, &table)?;
        let mut unknown = Vec::new();
        match self.ttl(doing).await? {
            Told::Known(ttl) => schema.ttl = ttl,
            Told::Unknown => unknown.push(TTL),
        }
        match self.recovery(doing).await? {
            Told::Known(on) => schema.point_in_time_recovery = on,
            Told::Unknown => unknown.push(POINT_IN_TIME_RECOVERY),
        }
        let count = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok());
        let (items, bytes) = (count(table.item_count), count(table.table_size_bytes));
        Ok(Some(TableDescription { schema, unknown, items, bytes }))
    }

    async fn ttl(&self, doing: &Doing) -> Result<Told<Option<Name>>> {
        let request = self.clients.repeatable.describe_time_to_live();
        let sent = request.table_name(self.tables.full_name(doing.table())).send().await;
        let answer = match sent {
            Err(error) if code(&error) == Some(UNKNOWN_OPERATION) => return Ok(Told::Unknown),
            sent => sent.map_err(|error| doing.read_failed(&error))?,
        };
        let description = answer.time_to_live_description;
        let on = description.filter(|description| {
            let status = description.time_to_live_status();
            matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling))
        });
        Ok(Told::Known(on.and_then(|description| description.attribute_name).map(Name::from)))
    }

    async fn recovery(&self, doing: &Doing) -> Result<Told<bool>> {
        let request = self.clients.repeatable.describe_continuous_backups();
        let sent = request.table_name(self.tables.full_name(doing.table())).send().await;
        let answer = match sent {
            Err(error) if code(&error) == Some(UNKNOWN_OPERATION) => return Ok(Told::Unknown),
            sent => sent.map_err(|error| doing.read_failed(&error))?,
        };
        let recovery = answer
            .continuous_backups_description
            .and_then(|backups| backups.point_in_time_recovery_description);
        let status = recovery.and_then(|recovery| recovery.point_in_time_recovery_status);
        Ok(Told::Known(status == Some(PointInTimeRecoveryStatus::Enabled)))
    }
}

/// All that the description of the table itself tells.
fn schema_from(doing: &Doing, table: &SdkTable) -> Result<TableSchema> {
    let keys = Keys { doing, table };
    let (partition, sort) = keys.read(table.key_schema())?;
    let indexes = table.global_secondary_indexes().iter().map(|index| index_from(&keys, index));
    let images = table.stream_specification().and_then(|stream| stream.stream_view_type());
    Ok(TableSchema {
        name: doing.table().clone(),
        partition,
        sort,
        indexes: indexes.collect::<Result<Vec<_>>>()?.into(),
        ttl: None,
        // Without both images it is no stream that could be read here.
        stream: match images {
            Some(StreamViewType::NewAndOldImages) => Stream::OldAndNewImages,
            _ => Stream::Off,
        },
        capacity: capacity_from(table),
        point_in_time_recovery: false,
    })
}

fn capacity_from(table: &SdkTable) -> Capacity {
    let billing = table.billing_mode_summary().and_then(|summary| summary.billing_mode());
    let units = |units: Option<i64>| units.and_then(|units| u32::try_from(units).ok()).unwrap_or(0);
    match (billing, table.provisioned_throughput()) {
        (Some(BillingMode::PayPerRequest), _) | (_, None) => Capacity::OnDemand,
        (_, Some(throughput)) => Capacity::Provisioned {
            read_units: units(throughput.read_capacity_units),
            write_units: units(throughput.write_capacity_units),
        },
    }
}

fn index_from(keys: &Keys<'_>, index: &GlobalSecondaryIndexDescription) -> Result<IndexSchema> {
    let (partition, sort) = keys.read(index.key_schema())?;
    let projected = index.projection().and_then(|projection| projection.projection_type());
    Ok(IndexSchema {
        name: index.index_name().unwrap_or_default().into(),
        partition,
        sort,
        // One that includes some attributes holds more than the keys, but cannot be relied on for all.
        projection: if projected == Some(&ProjectionType::All) {
            Projection::All
        } else {
            Projection::KeysOnly
        },
    })
}

/// Key attributes by their role, with their kinds from the table's list.
struct Keys<'a> {
    doing: &'a Doing,
    table: &'a SdkTable,
}

impl Keys<'_> {
    fn read(&self, elements: &[KeySchemaElement]) -> Result<(KeyAttribute, Option<KeyAttribute>)> {
        let with_role = |role: &KeyType| elements.iter().find(|element| element.key_type() == role);
        let partition =
            with_role(&KeyType::Hash).ok_or_else(|| self.doing.invalid("it has no partition key"))?;
        let sort = with_role(&KeyType::Range).map(|element| self.attribute(element)).transpose()?;
        Ok((self.attribute(partition)?, sort))
    }

    fn attribute(&self, element: &KeySchemaElement) -> Result<KeyAttribute> {
        let name = element.attribute_name();
        let definitions = self.table.attribute_definitions();
        let definition = definitions.iter().find(|definition| definition.attribute_name() == name);
        let kind = match definition.map(AttributeDefinition::attribute_type) {
            Some(ScalarAttributeType::S) => KeyKind::Text,
            Some(ScalarAttributeType::N) => KeyKind::Number,
            Some(ScalarAttributeType::B) => KeyKind::Bytes,
            _ => return Err(self.doing.invalid(format_args!("the kind of its key '{name}' is not known"))),
        };
        Ok(KeyAttribute { name: name.into(), kind })
    }
}
