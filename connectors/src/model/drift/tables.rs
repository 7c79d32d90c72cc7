//! Tables compared with their schemas.

use super::{Comparison, Difference};
use crate::store::{
    Capacity, IndexSchema, KeyAttribute, Name, Projection, Stream, TableDescription, TableSchema,
};

/// What is different about a table; `None` is one that is not there.
pub fn of_table(wanted: &TableSchema, described: Option<&TableDescription>) -> Vec<Difference> {
    let mut comparison = Comparison::new(format!("table '{}'", wanted.name));
    let Some(TableDescription { schema, unknown, .. }) = described else {
        comparison.differs("the table", "missing", "there");
        return comparison.found;
    };
    let is_known = |attribute| !unknown.contains(&attribute);
    comparison.compare("partition key", &schema.partition, &wanted.partition, key_words);
    comparison.compare("sort key", &schema.sort, &wanted.sort, |key| optional_key_words(key.as_ref()));
    compare_indexes(&mut comparison, schema, wanted);
    if is_known("ttl") {
        comparison.compare("TTL", &schema.ttl, &wanted.ttl, |ttl| ttl_words(ttl.as_ref()));
    }
    if is_known("stream") {
        comparison.compare("stream", &schema.stream, &wanted.stream, |stream| stream_words(*stream).into());
    }
    if is_known("capacity") {
        comparison
            .compare("capacity", &schema.capacity, &wanted.capacity, |capacity| capacity_words(*capacity));
    }
    if is_known("point_in_time_recovery") {
        let (is, should_be) = (schema.point_in_time_recovery, wanted.point_in_time_recovery);
        comparison
            .compare("point-in-time recovery", &is, &should_be, |on| if *on { "on" } else { "off" }.into());
    }
    comparison.found
}

fn compare_indexes(comparison: &mut Comparison, schema: &TableSchema, wanted: &TableSchema) {
    for index in &*wanted.indexes {
        match schema.index(&index.name) {
            Some(found) => compare_index(comparison, found, index),
            None => comparison.differs(format!("index '{}'", index.name), "missing", "there"),
        }
    }
    // It costs a write each time.
    for extra in schema.indexes.iter().filter(|index| wanted.index(&index.name).is_none()) {
        comparison.differs(format!("index '{}'", extra.name), "there", "absent");
    }
}

fn compare_index(comparison: &mut Comparison, found: &IndexSchema, wanted: &IndexSchema) {
    let of_index = |what: &str| format!("{what} of index '{}'", wanted.name);
    comparison.compare(of_index("partition key"), &found.partition, &wanted.partition, key_words);
    comparison
        .compare(of_index("sort key"), &found.sort, &wanted.sort, |key| optional_key_words(key.as_ref()));
    comparison.compare(of_index("projection"), &found.projection, &wanted.projection, |projection| {
        match projection {
            Projection::All => "all attributes",
            Projection::KeysOnly => "keys only",
        }
        .into()
    });
}

fn key_words(key: &KeyAttribute) -> String {
    format!("'{}' ({})", key.name, key.kind.name())
}

fn optional_key_words(key: Option<&KeyAttribute>) -> String {
    key.map_or_else(|| "none".into(), key_words)
}

fn ttl_words(ttl: Option<&Name>) -> String {
    ttl.map_or_else(|| "off".into(), |ttl| format!("on '{ttl}'"))
}

const fn stream_words(stream: Stream) -> &'static str {
    match stream {
        Stream::Off => "off",
        Stream::OldAndNewImages => "on with old and new images",
    }
}

fn capacity_words(capacity: Capacity) -> String {
    match capacity {
        Capacity::OnDemand => "on demand".into(),
        Capacity::Provisioned { read_units, write_units } => {
            format!("provisioned ({read_units} read, {write_units} write)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tables::{TABLES, chat_memberships, messages, sessions};

    fn described(schema: TableSchema) -> TableDescription {
        TableDescription { schema, unknown: Vec::new(), items: None, bytes: None }
    }

    /// What is said of a table that was made with one change.
    fn said(wanted: &TableSchema, change: impl FnOnce(&mut TableDescription)) -> Vec<String> {
        let mut description = described(wanted.clone());
        change(&mut description);
        of_table(wanted, Some(&description)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_table_as_in_the_model_has_no_difference() {
        for table in TABLES {
            assert_eq!(of_table(table, Some(&described(table.clone()))), []);
        }
    }

    #[test]
    fn a_missing_table_is_one_difference() {
        let found = of_table(&sessions::SCHEMA, None);
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["table 'sessions': the table is missing, and should be there"]);
    }

    #[test]
    fn keys_are_compared_by_name_and_kind() {
        let said = said(&messages::SCHEMA, |table| {
            table.schema.partition = KeyAttribute::text("room_id");
            table.schema.sort = Some(KeyAttribute::text("sequence"));
        });
        assert_eq!(
            said,
            [
                "table 'messages': partition key is 'room_id' (text), and should be 'chat_id' (text)",
                "table 'messages': sort key is 'sequence' (text), and should be 'sequence' (number)",
            ]
        );
    }

    #[test]
    fn a_key_too_many_or_too_few_is_seen() {
        let missing = said(&messages::SCHEMA, |table| table.schema.sort = None);
        assert_eq!(missing, ["table 'messages': sort key is none, and should be 'sequence' (number)"]);
        let extra = said(&sessions::SCHEMA, |table| table.schema.sort = Some(KeyAttribute::bytes("device")));
        assert_eq!(extra, ["table 'sessions': sort key is 'device' (bytes), and should be none"]);
    }

    #[test]
    fn ttl_is_compared_by_its_attribute() {
        let off = said(&sessions::SCHEMA, |table| table.schema.ttl = None);
        assert_eq!(off, ["table 'sessions': TTL is off, and should be on 'ttl'"]);
        let other = said(&sessions::SCHEMA, |table| table.schema.ttl = Some("expires".into()));
        assert_eq!(other, ["table 'sessions': TTL is on 'expires', and should be on 'ttl'"]);
        let on = said(&messages::SCHEMA, |table| table.schema.ttl = Some("ttl".into()));
        assert_eq!(on, ["table 'messages': TTL is on 'ttl', and should be off"]);
    }

    #[test]
    fn indexes_missing_and_too_many_are_seen() {
        let said = said(&chat_memberships::SCHEMA, |table| {
            let mut renamed = table.schema.indexes[0].clone();
            renamed.name = "other-index".into();
            table.schema.indexes = vec![renamed].into();
        });
        assert_eq!(
            said,
            [
                "table 'chat_memberships': index 'user_chats-index' is missing, and should be there",
                "table 'chat_memberships': index 'other-index' is there, and should be absent",
            ]
        );
    }

    #[test]
    fn an_index_is_compared_by_keys_and_projection() {
        let said = said(&chat_memberships::SCHEMA, |table| {
            let index = &mut table.schema.indexes.to_mut()[0];
            index.partition = KeyAttribute::text("chat_id");
            index.sort = None;
            index.projection = Projection::KeysOnly;
        });
        let index = "index 'user_chats-index'";
        assert_eq!(
            said,
            [
                format!(
                    "table 'chat_memberships': partition key of {index} is 'chat_id' (text), and should be 'user_id' (text)"
                ),
                format!(
                    "table 'chat_memberships': sort key of {index} is none, and should be 'chat_id' (text)"
                ),
                format!(
                    "table 'chat_memberships': projection of {index} is keys only, and should be all attributes"
                ),
            ]
        );
    }

    #[test]
    fn stream_capacity_and_recovery_are_compared() {
        let said = said(&messages::SCHEMA, |table| {
            table.schema.stream = Stream::Off;
            table.schema.capacity = Capacity::Provisioned { read_units: 7, write_units: 5 };
            table.schema.point_in_time_recovery = false;
        });
        assert_eq!(
            said,
            [
                "table 'messages': stream is off, and should be on with old and new images",
                "table 'messages': capacity is provisioned (7 read, 5 write), and should be on demand",
                "table 'messages': point-in-time recovery is off, and should be on",
            ]
        );
    }

    #[test]
    fn what_the_server_does_not_tell_is_no_difference() {
        let said = said(&sessions::SCHEMA, |table| {
            table.schema.ttl = None;
            table.schema.point_in_time_recovery = false;
            table.schema.stream = Stream::OldAndNewImages;
            table.unknown = vec!["ttl", "point_in_time_recovery"];
        });
        assert_eq!(said, ["table 'sessions': stream is on with old and new images, and should be off"]);
    }
}
