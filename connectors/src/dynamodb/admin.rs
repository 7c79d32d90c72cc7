//! Making tables, and waiting until they can be used.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_dynamodb::operation::create_table::builders::CreateTableFluentBuilder;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType,
    PointInTimeRecoverySpecification, Projection as SdkProjection, ProjectionType, ProvisionedThroughput,
    ScalarAttributeType, StreamSpecification, StreamViewType, TableStatus, TimeToLiveSpecification,
};
use tokio::time::Instant;

use super::DynamoDb;
use super::attempts::Attempts;
use super::describe::{POINT_IN_TIME_RECOVERY, TTL};
use super::error::{Doing, code};
use crate::store::{
    AdminStore, Capacity, Created, KeyAttribute, KeyKind, Name, Projection, Result, StoreError, Stream,
    TableDescription, TableSchema,
};

/// AWS makes a table with its indexes in well under a minute, and has been seen to take several.
const CREATE_LIMIT: Duration = Duration::from_secs(300);
/// Between two looks at a table that is being made.
const CREATE_PAUSE: Duration = Duration::from_millis(200);

/// The server does not know the operation, as stand-ins do not know backups.
pub(super) const UNKNOWN_OPERATION: &str = "UnknownOperationException";

#[async_trait]
impl AdminStore for DynamoDb {
    async fn tables(&self) -> Result<Vec<Name>> {
        let doing = Doing::new("list tables", &Name::from(format!("{}*", self.tables.prefix())));
        let mut names = Vec::new();
        let mut last = None;
        loop {
            let request = self.clients.repeatable.list_tables().set_exclusive_start_table_name(last);
            let answer = request.send().await.map_err(|error| doing.read_failed(&error))?;
            names.extend(answer.table_names().iter().filter_map(|name| self.tables.own_name(name)));
            last = answer.last_evaluated_table_name;
            if last.is_none() {
                return Ok(names);
            }
        }
    }

    async fn create_table(&self, schema: &TableSchema) -> Result<Created> {
        let doing = Doing::new("create table", &schema.name);
        check_ttl_is_projected(&doing, schema)?;
        let attempts = Attempts::default();
        let request = self.creation(&doing, schema)?;
        match request.customize().interceptor(attempts.clone()).send().await {
            Ok(_) => {}
            Err(error) if code(&error) == Some("ResourceInUseException") => {
                self.wait_until_active(&doing).await?;
                return self.complete(&doing, schema).await;
            }
            Err(error) => return Err(doing.write_failed(&error, &attempts)),
        }
        self.wait_until_active(&doing).await?;
        self.turn_on_ttl(schema).await?;
        let warnings = self.turn_on_recovery(schema).await?.into_iter().collect();
        self.tables.remember(schema.clone());
        Ok(Created::New { warnings })
    }

    async fn describe_table(&self, table: &Name) -> Result<Option<TableDescription>> {
        self.describe_all(&Doing::new("describe table", table)).await
    }

    async fn drop_table(&self, table: &Name) -> Result<()> {
        let doing = Doing::new("delete table", table);
        self.tables.forget(table);
        let attempts = Attempts::default();
        let request = self.clients.once.delete_table().table_name(self.tables.full_name(table));
        let sent = request.customize().interceptor(attempts.clone()).send().await;
        sent.map_err(|error| doing.write_failed(&error, &attempts))?;
        let started = Instant::now();
        while self.description(&doing).await?.is_some() {
            pause(&doing, started, "it is still there").await?;
        }
        Ok(())
    }
}

/// An index of keys only does not hold when an item ends, and would show what has ended.
fn check_ttl_is_projected(doing: &Doing, schema: &TableSchema) -> Result<()> {
    let Some(ttl) = &schema.ttl else { return Ok(()) };
    let blind = schema.indexes.iter().find(|index| {
        index.projection == Projection::KeysOnly && schema.key_names(Some(index)).all(|name| name != ttl)
    });
    blind.map_or(Ok(()), |index| {
        let name = &index.name;
        Err(doing.invalid(format_args!(
            "index '{name}' holds keys only and cannot hide what has ended by '{ttl}'; project all attributes"
        )))
    })
}

async fn pause(doing: &Doing, started: Instant, why: &str) -> Result<()> {
    if started.elapsed() > CREATE_LIMIT {
        let limit = humantime::format_duration(CREATE_LIMIT);
        return Err(StoreError::Unavailable(format!("table '{}': {why} after {limit}", doing.table())));
    }
    tokio::time::sleep(CREATE_PAUSE).await;
    Ok(())
}

impl DynamoDb {
    fn creation(&self, doing: &Doing, schema: &TableSchema) -> Result<CreateTableFluentBuilder> {
        let mut request = self
            .clients
            .once
            .create_table()
            .table_name(self.tables.full_name(&schema.name))
            .set_key_schema(Some(key_schema(doing, &schema.partition, schema.sort.as_ref())?))
            .set_attribute_definitions(Some(attribute_definitions(doing, schema)?));
        for index in &*schema.indexes {
            let projection = match index.projection {
                Projection::All => ProjectionType::All,
                Projection::KeysOnly => ProjectionType::KeysOnly,
            };
            let index = GlobalSecondaryIndex::builder()
                .index_name(index.name.as_str())
                .set_key_schema(Some(key_schema(doing, &index.partition, index.sort.as_ref())?))
                .projection(SdkProjection::builder().projection_type(projection).build())
                .set_provisioned_throughput(provisioned(doing, schema.capacity)?);
            request = request.global_secondary_indexes(index.build().map_err(|error| doing.invalid(error))?);
        }
        if schema.stream == Stream::OldAndNewImages {
            let stream = StreamSpecification::builder()
                .stream_enabled(true)
                .stream_view_type(StreamViewType::NewAndOldImages);
            request = request.stream_specification(stream.build().map_err(|error| doing.invalid(error))?);
        }
        let billing = match schema.capacity {
            Capacity::OnDemand => BillingMode::PayPerRequest,
            Capacity::Provisioned { .. } => BillingMode::Provisioned,
        };
        Ok(request.billing_mode(billing).set_provisioned_throughput(provisioned(doing, schema.capacity)?))
    }

    async fn wait_until_active(&self, doing: &Doing) -> Result<()> {
        let started = Instant::now();
        loop {
            // A table that was just made may not be seen at once.
            if let Some(table) = self.description(doing).await?
                && table.table_status() == Some(&TableStatus::Active)
            {
                return Ok(());
            }
            pause(doing, started, "it is not active").await?;
        }
    }

    /// Sets what a creation that broke off has left out: it can only be set once the table is there.
    async fn complete(&self, doing: &Doing, schema: &TableSchema) -> Result<Created> {
        let there = self.describe_all(doing).await?;
        let there = there.ok_or_else(|| StoreError::NoSuchTable { table: schema.name.clone() })?;
        let (mut turned_on, mut warnings) = (Vec::new(), Vec::new());
        let is_told = |attribute| !there.unknown.contains(&attribute);
        // One that goes by another attribute is left as it is: drift, and not for us to decide.
        if schema.ttl.is_some() && there.schema.ttl.is_none() && is_told(TTL) {
            self.turn_on_ttl(schema).await?;
            // Who has asked for its keys and its end before learns of it now.
            self.tables.forget(&schema.name);
            turned_on.push("time to live");
        }
        let recovers = there.schema.point_in_time_recovery;
        if schema.point_in_time_recovery && !recovers && is_told(POINT_IN_TIME_RECOVERY) {
            match self.turn_on_recovery(schema).await? {
                None => turned_on.push("point-in-time recovery"),
                Some(warning) => warnings.push(warning),
            }
        }
        if turned_on.is_empty() && warnings.is_empty() {
            return Ok(Created::Existing);
        }
        Ok(Created::Completed { turned_on, warnings })
    }

    async fn turn_on_ttl(&self, schema: &TableSchema) -> Result<()> {
        let Some(ttl) = &schema.ttl else { return Ok(()) };
        let doing = Doing::new("set the time to live", &schema.name);
        let specification = TimeToLiveSpecification::builder().enabled(true).attribute_name(ttl.as_str());
        let specification = specification.build().map_err(|error| doing.invalid(error))?;
        let attempts = Attempts::default();
        let request = self.clients.repeatable.update_time_to_live();
        let request = request.table_name(self.tables.full_name(&schema.name));
        let request = request.time_to_live_specification(specification);
        let sent = request.customize().interceptor(attempts.clone()).send().await;
        sent.map(drop).map_err(|error| doing.write_failed(&error, &attempts))
    }

    /// A warning if the server has no such thing.
    async fn turn_on_recovery(&self, schema: &TableSchema) -> Result<Option<String>> {
        if !schema.point_in_time_recovery {
            return Ok(None);
        }
        let doing = Doing::new("turn on point-in-time recovery", &schema.name);
        let specification =
            PointInTimeRecoverySpecification::builder().point_in_time_recovery_enabled(true).build();
        let specification = specification.map_err(|error| doing.invalid(error))?;
        let started = Instant::now();
        loop {
            let attempts = Attempts::default();
            let request = self.clients.repeatable.update_continuous_backups();
            let request = request.table_name(self.tables.full_name(&schema.name));
            let request = request.point_in_time_recovery_specification(specification.clone());
            let sent = request.customize().interceptor(attempts.clone()).send().await;
            let Err(error) = sent else { return Ok(None) };
            match code(&error) {
                Some(UNKNOWN_OPERATION) => {
                    let table = &schema.name;
                    return Ok(Some(format!("the server has no point-in-time recovery for table '{table}'")));
                }
                // So AWS says while it prepares backups of a new table.
                Some("ContinuousBackupsUnavailableException") => {
                    pause(&doing, started, "its backups are not ready").await?;
                }
                _ => return Err(doing.write_failed(&error, &attempts)),
            }
        }
    }
}

fn key_schema(
    doing: &Doing,
    partition: &KeyAttribute,
    sort: Option<&KeyAttribute>,
) -> Result<Vec<KeySchemaElement>> {
    let element = |attribute: &KeyAttribute, role: KeyType| {
        let element = KeySchemaElement::builder().attribute_name(attribute.name.as_str()).key_type(role);
        element.build().map_err(|error| doing.invalid(error))
    };
    let partition = std::iter::once(element(partition, KeyType::Hash));
    partition.chain(sort.map(|sort| element(sort, KeyType::Range))).collect()
}

/// Every attribute that is a key somewhere, once.
fn attribute_definitions(doing: &Doing, schema: &TableSchema) -> Result<Vec<AttributeDefinition>> {
    let of_indexes =
        schema.indexes.iter().flat_map(|index| std::iter::once(&index.partition).chain(&index.sort));
    let mut keys: Vec<&KeyAttribute> = Vec::new();
    for key in std::iter::once(&schema.partition).chain(&schema.sort).chain(of_indexes) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let define = |key: &KeyAttribute| {
        let kind = match key.kind {
            KeyKind::Text => ScalarAttributeType::S,
            KeyKind::Number => ScalarAttributeType::N,
            KeyKind::Bytes => ScalarAttributeType::B,
        };
        let definition =
            AttributeDefinition::builder().attribute_name(key.name.as_str()).attribute_type(kind);
        definition.build().map_err(|error| doing.invalid(error))
    };
    keys.into_iter().map(define).collect()
}

fn provisioned(doing: &Doing, capacity: Capacity) -> Result<Option<ProvisionedThroughput>> {
    let Capacity::Provisioned { read_units, write_units } = capacity else { return Ok(None) };
    let throughput = ProvisionedThroughput::builder()
        .read_capacity_units(read_units.into())
        .write_capacity_units(write_units.into());
    throughput.build().map(Some).map_err(|error| doing.invalid(error))
}
