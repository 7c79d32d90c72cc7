//! The eight documented tables and the one where readers of change streams keep their places, one file each: the record,
//! the schema, and one function per documented access pattern.
//!
//! Each function asks for what its pattern needs and no more: the narrowest trait, a single key or one partition, and
//! the consistency that the pattern was given (strong where a stale answer would let in a stranger or lose a message).
//! None scans. A test compares every function with the documented pattern, so that a new way to ask is a decision and
//! not an accident. Functions named `lookup` and `…_write` return the request instead of sending it, for batches and
//! transactions; the others send exactly those.
//!
//! Rejected: one generic repository with filters. It makes every query possible, and the expensive ones look like the
//! cheap ones.

mod attributes;
#[cfg(test)]
mod patterns;
#[cfg(test)]
mod recording;

pub mod chat_counters;
pub mod chat_memberships;
pub mod chats;
pub mod delivery_state;
pub mod idempotency_keys;
pub mod messages;
pub mod sessions;
pub mod stream_leases;
pub mod users;

use crate::store::{Capacity, Result, StoreError, TableSchema};

/// Every table of the product.
pub static TABLES: [&TableSchema; 9] = [
    &users::SCHEMA,
    &chats::SCHEMA,
    &chat_memberships::SCHEMA,
    &messages::SCHEMA,
    &chat_counters::SCHEMA,
    &idempotency_keys::SCHEMA,
    &delivery_state::SCHEMA,
    &sessions::SCHEMA,
    &stream_leases::SCHEMA,
];

/// Part of a list, and where to go on: pass `next` to the same function again. A part may be empty and not the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T, C> {
    pub items: Vec<T>,
    pub next: Option<C>,
}

/// What a conditional write answered, or `None` if its condition did not hold.
fn if_it_held<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(StoreError::ConditionFailed { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A table is provisioned because its traffic stays within twice the average; so that is what it gets.
const PEAK_TO_AVERAGE: u32 = 2;
/// What DynamoDB gives a table by default, and enough for the largest item (2 KB, two units) every half second.
const LEAST_UNITS: u32 = 5;

/// What a table is given that sees this many units per second on average, at 10,000 active users a day. A read of up
/// to 4 KB costs one unit, or half of one if it is eventual; a write costs one per KB.
const fn provisioned(average_read_units: u32, average_write_units: u32) -> Capacity {
    Capacity::Provisioned {
        read_units: at_least(PEAK_TO_AVERAGE * average_read_units, LEAST_UNITS),
        write_units: at_least(PEAK_TO_AVERAGE * average_write_units, LEAST_UNITS),
    }
}

const fn at_least(units: u32, least: u32) -> u32 {
    if units < least { least } else { units }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Projection, Stream};

    #[test]
    fn keys_and_indexes_are_as_documented() {
        let described = TABLES.map(|table| {
            let sort = table.sort.as_ref().map_or("-", |sort| sort.name.as_str());
            let indexes: Vec<_> = table
                .indexes
                .iter()
                .map(|index| {
                    let sort = index.sort.as_ref().map_or("-", |sort| sort.name.as_str());
                    format!(" {}({}, {sort}) {:?}", index.name, index.partition.name, index.projection)
                })
                .collect();
            format!("{}({}, {sort}){}", table.name, table.partition.name, indexes.concat())
        });
        assert_eq!(
            described,
            [
                "users(user_id, -) phone_number-index(phone_number, -) KeysOnly",
                "chats(chat_id, -)",
                "chat_memberships(chat_id, user_id) user_chats-index(user_id, chat_id) All",
                "messages(chat_id, sequence)",
                "chat_counters(chat_id, -)",
                "idempotency_keys(chat_id, client_message_id)",
                "delivery_state(user_id, chat_id)",
                "sessions(session_id, -) user_sessions-index(user_id, -) All",
                "stream_leases(group, shard)",
            ]
        );
        let index_count: usize = TABLES.iter().map(|table| table.indexes.len()).sum();
        assert_eq!(index_count, 3, "an index costs a write each time; three are justified");
        assert!(users::SCHEMA.index("phone_number-index").unwrap().projection == Projection::KeysOnly);
    }

    #[test]
    fn what_is_ephemeral_ends_and_everything_can_be_restored() {
        for table in TABLES {
            let ephemeral = ["idempotency_keys", "sessions"].contains(&table.name.as_str());
            assert_eq!(table.ttl.as_deref(), ephemeral.then_some("ttl"), "{}", table.name);
            assert!(table.point_in_time_recovery, "{}", table.name);
        }
    }

    #[test]
    fn the_predictable_tables_are_provisioned() {
        let provisioned = TABLES.iter().filter_map(|table| match table.capacity {
            Capacity::OnDemand => None,
            Capacity::Provisioned { read_units, write_units } => {
                Some((table.name.as_str(), read_units, write_units))
            }
        });
        assert_eq!(
            provisioned.collect::<Vec<_>>(),
            [("users", 20, 5), ("chats", 30, 5), ("chat_memberships", 100, 5), ("sessions", 10, 5)]
        );
    }

    #[test]
    fn what_events_tell_of_can_be_followed() {
        let streamed = TABLES.iter().filter(|table| table.stream == Stream::OldAndNewImages);
        let streamed: Vec<_> = streamed.map(|table| table.name.as_str()).collect();
        assert_eq!(streamed, ["chats", "chat_memberships", "messages"]);
    }
}
