//! Who should have which shard. Plain data in, a plan out.
//!
//! Whoever has less than its share takes what is free, and when nothing is, asks the one that has the most. Nobody
//! gives away unasked, so two that come at the same time settle by who wrote first. What was let go for somebody is
//! theirs to take: the one who let it go would be faster.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::WorkerId;
use crate::model::tables::stream_leases::{Lease, SCAN};
use crate::store::ShardId;

/// What a worker does next about leases that it does not hold.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan<'a> {
    pub(super) take: Vec<&'a Lease>,
    pub(super) ask_for: Option<&'a Lease>,
}

pub(super) struct Standing<'a> {
    pub(super) leases: &'a [Lease],
    pub(super) is_scanning: bool,
    pub(super) me: &'a WorkerId,
    pub(super) held: &'a BTreeSet<ShardId>,
    /// Whose holders have given no sign of life for too long.
    pub(super) expired: &'a BTreeSet<ShardId>,
}

impl<'a> Standing<'a> {
    pub(super) fn plan(&self) -> Plan<'a> {
        if self.is_scanning {
            return self.plan_scan();
        }
        let readable: Vec<&Lease> = self.leases.iter().filter(|lease| self.is_readable(lease)).collect();
        let mut by_holder: BTreeMap<&WorkerId, Vec<&'a Lease>> = BTreeMap::from([(self.me, Vec::new())]);
        for lease in &readable {
            if let Some(holder) = self.holder(lease) {
                by_holder.entry(holder).or_default().push(lease);
            }
            // Who asks is one of us, although it may have nothing yet.
            if let Some(asking) = self.asking(lease) {
                by_holder.entry(asking).or_default();
            }
        }
        let workers = by_holder.len();
        let most = readable.len().div_ceil(workers);
        let mine = self.held.len();
        let is_free = |lease: &&&'a Lease| self.holder(lease).is_none() && !self.held.contains(&lease.shard);
        let free = || readable.iter().filter(is_free).copied();
        let ours = free().filter(|lease| self.asking(lease) == Some(self.me));
        let anybodys = free().filter(|lease| self.asking(lease).is_none());
        let mut take: Vec<&Lease> = ours.collect();
        take.extend(anybodys.take(most.saturating_sub(mine + take.len())));
        let is_short = take.is_empty() && mine < readable.len() / workers;
        let asked = readable.iter().any(|lease| lease.wanted_by.as_ref() == Some(self.me));
        let ask_for = (is_short && !asked).then(|| {
            let richest = by_holder.values().max_by_key(|leases| leases.len())?;
            (richest.len() > most.min(mine + 1))
                .then(|| richest.iter().find(|lease| lease.wanted_by.is_none()))?
        });
        Plan { take, ask_for: ask_for.flatten().copied() }
    }

    /// The scan begins when nobody reads a shard any more.
    fn plan_scan(&self) -> Plan<'a> {
        let is_scan = |lease: &&Lease| lease.shard.0 == SCAN;
        let busy = self
            .leases
            .iter()
            .filter(|lease| !is_scan(lease))
            .any(|lease| self.held.contains(&lease.shard) || self.holder(lease).is_some());
        let scan = self.leases.iter().find(is_scan).filter(|scan| {
            !busy && !scan.has_ended() && self.holder(scan).is_none() && !self.held.contains(&scan.shard)
        });
        Plan { take: scan.into_iter().collect(), ask_for: None }
    }

    /// Who reads a shard now. One of ours that we do not know of is left over from an earlier life, or from a write
    /// whose outcome we never heard.
    fn holder(&self, lease: &'a Lease) -> Option<&'a WorkerId> {
        let holder = lease.holder.as_ref()?;
        let left_over = holder == self.me && !self.held.contains(&lease.shard);
        (!left_over && !self.expired.contains(&lease.shard)).then_some(holder)
    }

    /// Who asks for a shard, unless it did not take it for too long.
    fn asking(&self, lease: &'a Lease) -> Option<&'a WorkerId> {
        lease.wanted_by.as_ref().filter(|_| !self.expired.contains(&lease.shard))
    }

    fn is_readable(&self, lease: &Lease) -> bool {
        let parent_is_done = lease.parent.as_ref().is_none_or(|parent| {
            let parent = self.leases.iter().find(|lease| lease.shard == *parent);
            parent.is_none_or(Lease::has_ended)
        });
        lease.shard.0 != SCAN && !lease.has_ended() && parent_is_done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tables::stream_leases::{At, Place};

    fn lease(shard: &str, holder: Option<&str>) -> Lease {
        Lease {
            shard: ShardId(shard.into()),
            parent: None,
            holder: holder.map(WorkerId::from),
            term: 1,
            beat: 1,
            wanted_by: None,
            place: Place { count: 0, at: At::Begin },
        }
    }

    /// What `me` takes, and what it asks for.
    fn plan(
        leases: &[Lease],
        held: &[&str],
        expired: &[&str],
        is_scanning: bool,
    ) -> (Vec<String>, Option<String>) {
        let set = |names: &[&str]| names.iter().map(|name| ShardId((*name).into())).collect::<BTreeSet<_>>();
        let (held, expired, me) = (set(held), set(expired), WorkerId::from("me"));
        let plan = Standing { leases, is_scanning, me: &me, held: &held, expired: &expired }.plan();
        let name = |lease: &Lease| lease.shard.0.to_string();
        (plan.take.iter().map(|lease| name(lease)).collect(), plan.ask_for.map(name))
    }

    #[test]
    fn who_is_alone_takes_everything_that_can_be_read() {
        let mut child = lease("c", None);
        child.parent = Some(ShardId("a".into()));
        let mut leases = vec![lease("a", None), lease("b", None), child];
        assert_eq!(plan(&leases, &[], &[], false), (vec!["a".into(), "b".into()], None), "a child waits");
        leases[0].place.at = At::Ended;
        assert_eq!(plan(&leases, &["b"], &[], false), (vec!["c".into()], None));
        leases.remove(0);
        assert_eq!(plan(&leases, &[], &[], false).0, ["b", "c"], "a parent that is forgotten was done");
    }

    #[test]
    fn what_others_have_is_shared_by_asking() {
        let four = |holders: [Option<&str>; 4]| -> Vec<Lease> {
            ["a", "b", "c", "d"].iter().zip(holders).map(|(shard, holder)| lease(shard, holder)).collect()
        };
        let theirs = four([Some("you"); 4]);
        assert_eq!(plan(&theirs, &[], &[], false), (vec![], Some("a".into())));
        let mut asked = theirs.clone();
        asked[0].wanted_by = Some("me".into());
        assert_eq!(plan(&asked, &[], &[], false), (vec![], None), "one at a time");
        let one_free = four([None, Some("you"), Some("you"), Some("you")]);
        assert_eq!(plan(&one_free, &[], &[], false), (vec!["a".into()], None));
        let even = four([Some("me"), Some("me"), Some("you"), Some("you")]);
        assert_eq!(plan(&even, &["a", "b"], &[], false), (vec![], None));
        let three = four([Some("me"), Some("you"), Some("you"), Some("they")]);
        assert_eq!(
            plan(&three, &["a"], &[], false),
            (vec![], None),
            "nobody gains by going round in circles"
        );
    }

    #[test]
    fn what_is_let_go_for_somebody_is_theirs() {
        let mut leases = [lease("a", None), lease("b", Some("me")), lease("c", None)];
        leases[0].wanted_by = Some("you".into());
        assert_eq!(plan(&leases, &["b"], &[], false), (vec!["c".into()], None), "of three two");
        assert_eq!(plan(&leases, &["b"], &["a"], false).0, ["a", "c"], "unless they never come");
        leases[0].wanted_by = Some("me".into());
        assert_eq!(plan(&leases, &["b"], &[], false).0, ["a", "c"]);
        let mut all_mine = [lease("a", Some("me")), lease("b", Some("me")), lease("c", None)];
        all_mine[0].wanted_by = Some("you".into());
        assert_eq!(
            plan(&all_mine, &["a", "b"], &[], false).0,
            [] as [String; 0],
            "they are two, although one has none"
        );
    }

    #[test]
    fn the_dead_leave_what_they_had() {
        let leases = [lease("a", Some("dead")), lease("b", Some("dead")), lease("c", Some("me"))];
        assert_eq!(plan(&leases, &["c"], &["a"], false).0, ["a"]);
        assert_eq!(plan(&leases, &["c"], &["a", "b"], false).0, ["a", "b"]);
        assert_eq!(
            plan(&leases, &[], &["a", "b"], false).0,
            ["a", "b", "c"],
            "so does an earlier life of its own"
        );
    }

    #[test]
    fn a_scan_waits_until_no_shard_is_read() {
        let leases = [lease("a", Some("you")), lease(SCAN, None), lease("b", None)];
        assert_eq!(plan(&leases, &[], &[], true), (vec![], None));
        assert_eq!(plan(&leases, &[], &["a"], true).0, [SCAN]);
        assert_eq!(plan(&leases, &["b"], &["a"], true).0, [] as [String; 0], "neither by itself");
        assert_eq!(plan(&leases, &[], &["a"], false).0, ["a", "b"], "and otherwise there is none");
    }
}
