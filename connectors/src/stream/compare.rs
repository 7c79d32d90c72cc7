//! What a list of shards says beside the leases of a group. Plain data in, plain data out.

use crate::model::tables::stream_leases::{Lease, SCAN};
use crate::store::{Shard, ShardId};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Compared<'a> {
    /// Shards that have no lease yet, parents before their children.
    pub(super) new: Vec<&'a Shard>,
    /// Parents of those that were neither listed nor known: they came and went unseen. Before the first look there is
    /// none to miss.
    pub(super) unseen: Vec<&'a ShardId>,
    /// Leases of shards that were not read to their end and are not listed any more.
    pub(super) gone: Vec<&'a Lease>,
    /// Those of shards that were, and that nobody needs to know of any more.
    pub(super) over: Vec<&'a Lease>,
}

impl<'a> Compared<'a> {
    pub(super) fn of(listed: &'a [Shard], leases: &'a [Lease]) -> Self {
        let is_listed = |shard: &ShardId| listed.iter().any(|other| other.id == *shard);
        let is_known = |shard: &ShardId| leases.iter().any(|lease| lease.shard == *shard);
        let new: Vec<&Shard> = listed.iter().filter(|shard| !is_known(&shard.id)).collect();
        let parents = new.iter().filter_map(|shard| shard.parent.as_ref());
        let unseen = parents.filter(|parent| !leases.is_empty() && !is_listed(parent) && !is_known(parent));
        let unlisted = || leases.iter().filter(|lease| lease.shard.0 != SCAN && !is_listed(&lease.shard));
        Self {
            unseen: unseen.collect(),
            gone: unlisted().filter(|lease| !lease.has_ended()).collect(),
            over: unlisted().filter(|lease| lease.has_ended() && lease.holder.is_none()).collect(),
            new: parents_first(new),
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.new.is_empty() && self.gone.is_empty() && self.over.is_empty()
    }
}

/// A shard whose parent has no lease is taken for one whose parent is done, so parents are written first.
fn parents_first(mut shards: Vec<&Shard>) -> Vec<&Shard> {
    let mut sorted = Vec::with_capacity(shards.len());
    while !shards.is_empty() {
        let waits: Vec<ShardId> = shards.iter().map(|shard| shard.id.clone()).collect();
        let is_free = |shard: &&Shard| shard.parent.as_ref().is_none_or(|parent| !waits.contains(parent));
        let (free, rest): (Vec<_>, Vec<_>) = shards.into_iter().partition(is_free);
        if free.is_empty() {
            // Parents in a circle: no store has such, and any order is as good.
            sorted.extend(rest);
            break;
        }
        sorted.extend(free);
        shards = rest;
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tables::stream_leases::{At, Place};

    fn shard(id: &str, parent: Option<&str>) -> Shard {
        Shard { id: ShardId(id.into()), parent: parent.map(|parent| ShardId(parent.into())) }
    }

    fn lease(shard: &str, at: At) -> Lease {
        Lease {
            shard: ShardId(shard.into()),
            parent: None,
            holder: None,
            term: 1,
            beat: 1,
            wanted_by: None,
            place: Place { count: 0, at },
        }
    }

    #[test]
    fn parents_come_before_their_children() {
        let listed =
            [shard("c", Some("b")), shard("b", Some("a")), shard("d", Some("gone")), shard("a", None)];
        let compared = Compared::of(&listed, &[]);
        let order: Vec<&str> = compared.new.iter().map(|shard| shard.id.0.as_str()).collect();
        assert_eq!(order, ["d", "a", "b", "c"]);
        assert!(compared.unseen.is_empty(), "whoever begins has missed nothing");
        let circle = [shard("x", Some("y")), shard("y", Some("x"))];
        assert_eq!(Compared::of(&circle, &[]).new.len(), 2);
    }

    #[test]
    fn what_is_not_listed_is_lost_or_over() {
        let mut held = lease("held", At::Ended);
        held.holder = Some("wrk_1".into());
        let leases = [lease("here", At::Begin), lease("lost", At::Begin), lease("done", At::Ended), held];
        let listed = [shard("here", None), shard("child", Some("missed"))];
        let compared = Compared::of(&listed, &leases);
        assert_eq!((compared.gone, compared.over), (vec![&leases[1]], vec![&leases[2]]));
        assert_eq!(compared.unseen, [&ShardId("missed".into())]);
        let leases = [lease("here", At::Begin), lease(SCAN, At::Ended)];
        assert!(Compared::of(&listed[..1], &leases).is_nothing());
    }
}
