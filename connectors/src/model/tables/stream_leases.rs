//! Table `stream_leases`: who reads which shard of a table's changes, and how far each was read.
//!
//! Not in the documented model, since it is nobody's data: a group of workers keeps its places here, as a consumer
//! group does in the log. A lease has a *term*, which rises each time somebody takes it, and a *beat*, which rises with
//! every sign of life of its holder. Every write of a holder rests on its term: one that was replaced changes nothing
//! any more, whatever it still believes. Whoever waits for a lease watches the beat with a clock of its own; no two
//! clocks are compared.
//!
//! Beside its shards a group has a row of its own, and one for the scan that stands in for changes that are not kept
//! any more. All rows of a group are one partition, so one query tells where everybody is.

use std::borrow::Cow;

use super::attributes::Attributes;
use crate::model::{Timestamp, WorkerId};
use crate::store::{
    Capacity, Condition, Consistency, Item, Key, KeyAttribute, Name, Query, ReadStore, Result,
    SequenceNumber, ShardId, Stream, TableSchema, Update, Value, Write,
};

const TABLE: Name = Name::new_static("stream_leases");

pub static SCHEMA: TableSchema = TableSchema {
    name: TABLE,
    partition: KeyAttribute::text("group"),
    sort: Some(KeyAttribute::text("shard")),
    indexes: Cow::Borrowed(&[]),
    ttl: None,
    stream: Stream::Off,
    capacity: Capacity::OnDemand,
    point_in_time_recovery: true,
};

/// The rows of a group that are no shard of a stream; no shard has such a name.
const GROUP_ROW: &str = "@group";
pub const SCAN: &str = "@scan";

/// What holds for all workers of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Changes before this are not the group's.
    pub since: Timestamp,
    /// Changes up to this may be older than what a scan gave.
    pub scanned_until: Timestamp,
    /// A scan is under way, and no shard is read.
    pub is_scanning: bool,
    /// How many scans there were.
    pub scans: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub shard: ShardId,
    /// Read to its end before this one.
    pub parent: Option<ShardId>,
    /// Who reads it, if anybody.
    pub holder: Option<WorkerId>,
    pub term: u64,
    pub beat: u64,
    /// Who asks the holder to let go, and is to have it then.
    pub wanted_by: Option<WorkerId>,
    pub place: Place,
}

/// How much of a shard is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// As many changes, counted from the first one that the group was given.
    pub count: u64,
    pub at: At,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// Nothing was read.
    Begin,
    /// Nothing is done; this was the first change there was.
    From(SequenceNumber),
    After(SequenceNumber),
    /// Of a scan: the page that ended with this key.
    Page(Item),
    Ended,
}

impl Lease {
    pub fn has_ended(&self) -> bool {
        self.place.at == At::Ended
    }

    /// The rows of a group are read together; whatever else is in one does not matter.
    fn from_item(item: &Item) -> Result<Self> {
        let read = Attributes::of(&SCHEMA, item);
        let shard = |name: &str| read.optional(name, Attributes::text);
        let sequence = |name: &str| Ok(shard(name)?.map(|text| SequenceNumber(text.into())));
        let at = if read.optional("ended", Attributes::bool)?.unwrap_or(false) {
            At::Ended
        } else if let Some(Value::Map(cursor)) = item.get("cursor") {
            At::Page(cursor.iter().map(|(name, value)| (Name::from(name.as_str()), value.clone())).collect())
        } else if let Some(after) = sequence("after")? {
            At::After(after)
        } else {
            sequence("first")?.map_or(At::Begin, At::From)
        };
        Ok(Self {
            shard: ShardId(read.text("shard")?.into()),
            parent: shard("parent")?.map(|parent| ShardId(parent.into())),
            holder: read.optional("holder", Attributes::id)?,
            term: read.u64("term")?,
            beat: read.u64("beat")?,
            wanted_by: read.optional("wanted_by", Attributes::id)?,
            place: Place { count: read.u64("count")?, at },
        })
    }
}

impl Group {
    fn from_item(item: &Item) -> Result<Self> {
        let read = Attributes::of(&SCHEMA, item);
        Ok(Self {
            since: read.time("since")?,
            scanned_until: read.time("scanned_until")?,
            is_scanning: read.bool("scanning")?,
            scans: read.u64("scans")?,
        })
    }
}

fn key(group: &str, shard: &str) -> Key {
    Key::new("group", group).and("shard", shard)
}

/// A group as it stands: its own row, if it has begun, and its leases. Strong: what is seen decides who reads.
pub async fn of_group(store: &dyn ReadStore, group: &str) -> Result<(Option<Group>, Vec<Lease>)> {
    let (mut found, mut leases) = (None, Vec::new());
    let mut query = Query::new(TABLE, "group", group);
    query.consistency = Consistency::Strong;
    loop {
        let page = store.query(query.clone()).await?;
        for item in &page.items {
            if item.text("shard") == Some(GROUP_ROW) {
                found = Some(Group::from_item(item)?);
            } else {
                leases.push(Lease::from_item(item)?);
            }
        }
        if page.next.is_none() {
            return Ok((found, leases));
        }
        query.start_after = page.next;
    }
}

/// Begins a group that has not.
pub fn begin_write(group: &str, since: Timestamp) -> Write {
    let item = key(group, GROUP_ROW).into_item().with("since", since);
    let item =
        item.with("scanned_until", Timestamp::from_unix_millis(0)).with("scanning", false).with("scans", 0);
    Write::put(TABLE, item).only_if(Condition::missing("group"))
}

/// A shard that the group has not seen.
pub fn add_write(group: &str, shard: &ShardId, parent: Option<&ShardId>) -> Write {
    let item = key(group, &shard.0).into_item().with_some("parent", parent.map(|parent| parent.0.as_str()));
    Write::put(TABLE, item.with("term", 0).with("beat", 0).with("count", 0))
        .only_if(Condition::missing("group"))
}

/// Takes a lease that was seen like this; refused if it has changed since.
pub fn take_write(group: &str, seen: &Lease, worker: &WorkerId) -> Write {
    let update = Update::new().set("holder", worker).add("term", 1).add("beat", 1).remove("wanted_by");
    let unchanged = Condition::equals("term", seen.term).and(Condition::equals("beat", seen.beat));
    Write::update(TABLE, key(group, &seen.shard.0), update).only_if(unchanged)
}

/// Asks the holder of a lease to let it go.
pub fn want_write(group: &str, seen: &Lease, worker: &WorkerId) -> Write {
    let update = Update::new().set("wanted_by", worker);
    let held = Condition::equals("term", seen.term).and(Condition::exists("holder"));
    Write::update(TABLE, key(group, &seen.shard.0), update).only_if(held)
}

/// A lease as its holder knows it.
#[derive(Debug, Clone, Copy)]
pub struct Hold<'a> {
    pub group: &'a str,
    pub shard: &'a ShardId,
    pub worker: &'a WorkerId,
    pub term: u64,
}

impl Hold<'_> {
    /// A sign of life.
    pub fn renew_write(self) -> Write {
        self.write(Update::new())
    }

    /// How far the holder came; a sign of life, too.
    pub fn note_write(self, place: &Place) -> Write {
        self.write(placed(Update::new(), place))
    }

    /// The holder lets go; whoever asked for it still does.
    pub fn release_write(self, place: &Place) -> Write {
        self.write(placed(Update::new().remove("holder"), place))
    }

    fn write(self, update: Update) -> Write {
        let ours = Condition::equals("holder", self.worker).and(Condition::equals("term", self.term));
        Write::update(TABLE, key(self.group, &self.shard.0), update.add("beat", 1)).only_if(ours)
    }

    /// Lets go of a scan that has come to its end: shards are read again, and changes up to this moment with care.
    pub fn end_scan_writes(self, scans: u64, until: Timestamp) -> [Write; 2] {
        let update = Update::new().set("scanning", false).set("scanned_until", until);
        let this_scan = Condition::equals("scans", scans).and(Condition::equals("scanning", true));
        let ended = Place { count: 0, at: At::Ended };
        let group = Write::update(TABLE, key(self.group, GROUP_ROW), update).only_if(this_scan);
        [group, self.release_write(&ended)]
    }
}

fn placed(update: Update, place: &Place) -> Update {
    let update = update.set("count", place.count);
    match &place.at {
        At::Begin => update,
        At::From(first) => update.set("first", first.0.as_str()),
        At::After(after) => update.set("after", after.0.as_str()).remove("first"),
        At::Page(cursor) => {
            let cursor = cursor.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
            update.set("cursor", Value::Map(cursor))
        }
        At::Ended => update.set("ended", true),
    }
}

/// What became of a shard whose changes were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It is there: it is read from what is left.
    Part,
    /// It is gone.
    Whole,
}

/// Begins a scan, unless another has been begun since the group was seen like this; one transaction.
pub fn begin_scan_writes(group: &str, seen: &Group, lost: &[(&Lease, Lost)]) -> Vec<Write> {
    let update = Update::new().set("scanning", true).add("scans", 1);
    let unchanged = Condition::equals("scans", seen.scans).and(Condition::equals("scanning", false));
    let scan = Update::new().add("term", 1).add("beat", 1).set("count", 0);
    let scan = scan.remove("cursor").remove("ended").remove("holder").remove("wanted_by");
    let mut writes = vec![
        Write::update(TABLE, key(group, GROUP_ROW), update).only_if(unchanged),
        Write::update(TABLE, key(group, SCAN), scan),
    ];
    writes.extend(lost.iter().map(|(lease, lost)| {
        let update =
            Update::new().remove("after").remove("first").add("term", 1).add("beat", 1).remove("holder");
        let update = if *lost == Lost::Whole { update.set("ended", true) } else { update };
        let seen = Condition::equals("term", lease.term);
        Write::update(TABLE, key(group, &lease.shard.0), update).only_if(seen)
    }));
    writes
}

/// Forgets a shard that is done, and that the store has forgotten.
pub fn forget_write(group: &str, seen: &Lease) -> Write {
    let done = Condition::equals("term", seen.term).and(Condition::equals("ended", true));
    Write::delete(TABLE, key(group, &seen.shard.0)).only_if(done)
}

/// The lease as it is after a write of its holder that returned it.
pub fn after_write(written: Option<&Item>) -> Result<Option<Lease>> {
    written.map(Lease::from_item).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(item: Option<Item>, write: &Write) -> Option<Item> {
        if !write.condition().is_none_or(|condition| condition.holds(item.as_ref())) {
            return None;
        }
        match write {
            Write::Put { item, .. } => Some(item.clone()),
            Write::Update { update, key, .. } => {
                Some(update.apply(item.unwrap_or_else(|| key.clone().into_item())).unwrap())
            }
            other => panic!("{other:?}"),
        }
    }

    fn lease(item: &Item) -> Lease {
        Lease::from_item(item).unwrap()
    }

    #[test]
    fn who_was_replaced_changes_nothing_any_more() {
        let (shard, old, new) = (ShardId("s-1".into()), WorkerId::from("wrk_1"), WorkerId::from("wrk_2"));
        let free = apply(None, &add_write("g", &shard, None)).unwrap();
        let taken = apply(Some(free.clone()), &take_write("g", &lease(&free), &old)).unwrap();
        let hold = Hold { group: "g", shard: &shard, worker: &old, term: lease(&taken).term };
        let place = |count: u64| Place { count, at: At::After(SequenceNumber(count.to_string().into())) };
        let noted = apply(Some(taken.clone()), &hold.note_write(&place(7))).unwrap();
        assert_eq!((lease(&noted).place, lease(&noted).beat), (place(7), 2));

        assert!(
            apply(Some(noted.clone()), &take_write("g", &lease(&taken), &new)).is_none(),
            "it has a sign of life"
        );
        let replaced = apply(Some(noted.clone()), &take_write("g", &lease(&noted), &new)).unwrap();
        assert_eq!(lease(&replaced).place, place(7), "read on from there");
        for late in [hold.note_write(&place(9)), hold.renew_write(), hold.release_write(&place(9))] {
            assert!(apply(Some(replaced.clone()), &late).is_none(), "{late:?}");
        }
    }

    #[test]
    fn places_read_back() {
        let (shard, worker) = (ShardId(SCAN.into()), WorkerId::from("wrk_1"));
        let hold = Hold { group: "g", shard: &shard, worker: &worker, term: 1 };
        let free = apply(None, &add_write("g", &shard, Some(&ShardId("p".into())))).unwrap();
        let mut item = apply(Some(free.clone()), &take_write("g", &lease(&free), &worker)).unwrap();
        let sequence = || SequenceNumber("300000000000000499659".into());
        let page = Item::new().with("chat_id", "chat_1").with("sequence", 5);
        for at in [At::From(sequence()), At::After(sequence()), At::Page(page), At::Ended] {
            let place = Place { count: 3, at };
            item = apply(Some(item), &hold.note_write(&place)).unwrap();
            assert_eq!(lease(&item).place, place);
        }
        assert!(lease(&item).has_ended() && lease(&item).parent == Some(ShardId("p".into())));
    }
}
