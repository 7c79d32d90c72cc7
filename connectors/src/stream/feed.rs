//! One shard of a worker: what was read of it, handed out, and done.

use std::collections::VecDeque;
use std::time::SystemTime;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::read::{Cursor, Found, FoundChange};
use super::shared::{Part, Window};
use super::wall_clock;
use crate::model::tables::stream_leases::{At, Place};
use crate::store::Change;

pub(super) struct Feed {
    pub(super) term: u64,
    pub(super) window: Window,
    valid_until: Instant,
    is_leaving: bool,
    /// What is done, and what of that is written.
    place: Place,
    written: Place,
    /// Behind everything that was read.
    read_to: Place,
    /// The number of the last change that was handed out or passed over.
    count: u64,
    /// Read and not handed out. Filled again when it is empty.
    waiting: VecDeque<Waiting>,
    /// Handed out or passed over, and not done.
    open: VecDeque<Open>,
    reading: Reading,
    has_ended: bool,
    /// Since when reads fail.
    failing_since: Option<SystemTime>,
    is_releasing: bool,
    /// Ends what is under way with the feed.
    stopped: CancellationToken,
    _stops: DropGuard,
}

/// A change, or only a place to come to.
struct Waiting {
    change: Option<Change>,
    behind: Option<At>,
}

struct Open {
    number: u64,
    /// When it happened; none if it was passed over.
    handed_out: Option<SystemTime>,
    /// The place once this and everything before is done. Within a page of a scan there is none.
    behind: Option<At>,
}

enum Reading {
    Ready {
        from: Instant,
        cursor: Cursor,
    },
    UnderWay,
    /// To its end, or because changes are lost, or because it is let go.
    Over,
}

/// What a feed is to do.
pub(super) enum Next {
    Read(Place, Cursor),
    Release(Place),
    /// Nothing before this.
    At(Instant),
    /// Nothing before something else happens.
    Waits,
}

impl Feed {
    pub(super) fn new(part: Part) -> Self {
        let stopped = CancellationToken::new();
        Self {
            term: part.term,
            window: part.window,
            valid_until: part.valid_until,
            is_leaving: part.is_leaving,
            written: part.place.clone(),
            read_to: part.place.clone(),
            count: part.place.count,
            place: part.place,
            waiting: VecDeque::new(),
            open: VecDeque::new(),
            reading: Reading::Ready { from: Instant::now(), cursor: Cursor::default() },
            has_ended: false,
            failing_since: None,
            is_releasing: false,
            _stops: stopped.clone().drop_guard(),
            stopped,
        }
    }

    /// As the lease is now.
    pub(super) fn follow(&mut self, part: &Part) {
        (self.valid_until, self.is_leaving) = (part.valid_until, part.is_leaving);
    }

    pub(super) fn stopped(&self) -> CancellationToken {
        self.stopped.clone()
    }

    pub(super) fn next(&mut self, now: Instant) -> Next {
        if self.is_releasing {
            return Next::Waits;
        }
        if self.is_leaving && matches!(self.reading, Reading::UnderWay) {
            // Whoever takes over is the only one who reads then.
            self.stopped.cancel();
            return Next::Waits;
        }
        let is_handed_out = self.has_ended && self.waiting.is_empty();
        if self.open.is_empty() && (self.is_leaving || is_handed_out) {
            self.is_releasing = true;
            let at = if is_handed_out { At::Ended } else { self.place.at.clone() };
            return Next::Release(Place { count: self.place.count, at });
        }
        if self.is_leaving || !self.waiting.is_empty() || self.valid_until <= now {
            return Next::Waits;
        }
        match std::mem::replace(&mut self.reading, Reading::UnderWay) {
            Reading::Ready { from, cursor } if from > now => {
                self.reading = Reading::Ready { from, cursor };
                Next::At(from)
            }
            Reading::Ready { cursor, .. } => Next::Read(self.read_to.clone(), cursor),
            other => {
                self.reading = other;
                Next::Waits
            }
        }
    }

    pub(super) fn found(&mut self, cursor: Cursor, found: Found) {
        self.failing_since = None;
        match found {
            Found::Ended => self.has_ended = true,
            Found::Changes(changes) => {
                for FoundChange { change, is_passed_over } in changes {
                    let behind = Some(At::After(change.sequence.clone()));
                    self.waiting.push_back(Waiting { change: (!is_passed_over).then_some(change), behind });
                }
            }
            Found::Page(items, behind) => {
                self.has_ended = behind == At::Ended;
                let waiting = items.into_iter().map(|change| Waiting { change: Some(change), behind: None });
                self.waiting.extend(waiting);
                self.waiting.push_back(Waiting { change: None, behind: Some(behind) });
            }
        }
        self.reading =
            if self.has_ended { Reading::Over } else { Reading::Ready { from: Instant::now(), cursor } };
        if let Some(behind) = self.waiting.back().and_then(|last| last.behind.clone()) {
            self.read_to.at = behind;
        }
    }

    /// After a read that was called off, since the shard is to be let go.
    pub(super) fn called_off(&mut self) {
        self.reading = Reading::Over;
    }

    /// After a read that failed: again from there on, with a new reader.
    pub(super) fn read_failed(&mut self, again_at: Instant) {
        self.reading = Reading::Ready { from: again_at, cursor: Cursor::default() };
        self.failing_since.get_or_insert_with(wall_clock);
    }

    pub(super) fn release_failed(&mut self) {
        self.is_releasing = false;
    }

    /// Changes are lost: what was handed out before is done, and nothing more is read.
    pub(super) fn stop(&mut self) {
        self.reading = Reading::Over;
    }

    /// The next changes with their numbers, if there are any and the lease is surely ours.
    pub(super) fn hand_out(&mut self, max: usize, now: Instant) -> Option<Vec<(u64, Change)>> {
        if self.is_leaving || self.valid_until <= now {
            return None;
        }
        let mut handed = Vec::new();
        while handed.len() < max
            && let Some(Waiting { change, behind }) = self.waiting.pop_front()
        {
            // An end of a page is no change, and has no number.
            self.count += u64::from(change.is_some() || matches!(behind, Some(At::After(_))));
            let handed_out = change.as_ref().map(|change| change.at);
            self.open(Open { number: self.count, handed_out, behind });
            handed.extend(change.map(|change| (self.count, change)));
        }
        self.settle(None);
        (!handed.is_empty()).then_some(handed)
    }

    /// What is passed over in a row is one step, so that nothing grows while a change before it waits to be done.
    fn open(&mut self, next: Open) {
        match self.open.back_mut() {
            Some(last) if last.handed_out.is_none() && next.handed_out.is_none() => *last = next,
            _ => self.open.push_back(next),
        }
    }

    pub(super) fn done(&mut self, through: u64) {
        self.settle(Some(through));
    }

    /// Moves the place over what is done, and over what was passed over behind it.
    fn settle(&mut self, through: Option<u64>) {
        let is_done =
            |open: &Open| open.handed_out.is_none() || through.is_some_and(|done| open.number <= done);
        while self.open.front().is_some_and(is_done)
            && let Some(open) = self.open.pop_front()
        {
            if let Some(at) = open.behind {
                self.place = Place { count: open.number, at };
            }
        }
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// An end is written when the shard is let go, in one step.
    pub(super) fn is_unwritten(&self) -> bool {
        self.place != self.written && self.place.at != At::Ended
    }

    pub(super) fn wrote(&mut self, place: Place) {
        self.written = place;
    }

    /// When the oldest change happened that was read and is not done, or since when nothing can be read.
    pub(super) fn behind_since(&self) -> Option<SystemTime> {
        let mut waiting = self.waiting.iter().filter_map(|waiting| waiting.change.as_ref());
        let read = self.open.iter().find_map(|open| open.handed_out).or_else(|| Some(waiting.next()?.at));
        [read, self.failing_since].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::Timestamp;
    use crate::store::{Item, Key, SequenceNumber};

    const BEGIN: Timestamp = Timestamp::from_unix_millis(0);

    fn part(is_leaving: bool) -> Part {
        Part {
            term: 1,
            place: Place { count: 0, at: At::Begin },
            valid_until: Instant::now() + Duration::from_secs(60),
            is_leaving,
            window: Window { since: BEGIN, scanned_until: BEGIN },
        }
    }

    fn found(sequences: std::ops::RangeInclusive<u64>, is_passed_over: bool) -> Found {
        let change = |sequence: u64| Change {
            sequence: SequenceNumber(sequence.to_string().into()),
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(sequence),
            key: Key::new("k", "a"),
            old: None,
            new: Some(Item::new().with("k", "a")),
            expired: false,
        };
        let changes = sequences.map(|sequence| FoundChange { change: change(sequence), is_passed_over });
        Found::Changes(changes.collect())
    }

    fn handed(feed: &mut Feed, max: usize) -> Vec<u64> {
        let handed = feed.hand_out(max, Instant::now()).unwrap_or_default();
        handed.into_iter().map(|(number, _)| number).collect()
    }

    fn at(count: u64) -> Place {
        Place { count, at: At::After(SequenceNumber(count.to_string().into())) }
    }

    #[test]
    fn the_place_moves_over_what_is_done() {
        let mut feed = Feed::new(part(false));
        feed.found(Cursor::default(), found(1..=2, false));
        feed.found(Cursor::default(), found(3..=3, true));
        feed.found(Cursor::default(), found(4..=4, false));
        assert_eq!((handed(&mut feed, 2), handed(&mut feed, 9)), (vec![1, 2], vec![4]));
        assert!(!feed.is_unwritten(), "nothing is done");
        feed.done(1);
        assert_eq!((feed.place(), feed.is_unwritten()), (&at(1), true));
        feed.done(2);
        assert_eq!(feed.place(), &at(3), "and over what was passed over behind it");
        assert_eq!(feed.behind_since(), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(4)));
        feed.done(4);
        assert_eq!((feed.place(), feed.behind_since()), (&at(4), None));
    }

    #[test]
    fn what_is_passed_over_does_not_pile_up() {
        let mut feed = Feed::new(part(false));
        feed.found(Cursor::default(), found(1..=1, false));
        assert_eq!(handed(&mut feed, 9), [1]);
        for thousand in 0..3 {
            feed.found(Cursor::default(), found(thousand * 1000 + 2..=thousand * 1000 + 1001, true));
            assert_eq!(handed(&mut feed, 9), [0; 0]);
        }
        assert_eq!(feed.open.len(), 2);
        feed.done(1);
        assert_eq!(feed.place(), &at(3001));
    }

    #[test]
    fn a_shard_is_let_go_when_nothing_of_it_is_open_and_nobody_reads_it() {
        let mut feed = Feed::new(part(false));
        feed.found(Cursor::default(), found(1..=2, false));
        assert_eq!(handed(&mut feed, 1), [1]);
        assert_eq!(handed(&mut feed, 1), [2]);
        assert!(matches!(feed.next(Instant::now()), Next::Read(..)));
        feed.follow(&part(true));
        assert!(matches!(feed.next(Instant::now()), Next::Waits) && feed.stopped().is_cancelled());
        feed.called_off();
        feed.done(1);
        assert!(matches!(feed.next(Instant::now()), Next::Waits), "one is not done");
        feed.done(2);
        let Next::Release(place) = feed.next(Instant::now()) else { panic!("it is to be let go") };
        assert_eq!(place, at(2));
        assert!(matches!(feed.next(Instant::now()), Next::Waits), "once");
    }

    #[test]
    fn what_was_read_and_not_handed_out_is_left_to_who_has_the_shard_next() {
        let mut feed = Feed::new(part(false));
        feed.found(Cursor::default(), found(1..=3, false));
        assert_eq!(handed(&mut feed, 1), [1]);
        feed.done(1);
        feed.follow(&part(true));
        let Next::Release(place) = feed.next(Instant::now()) else { panic!("nothing of it is open") };
        assert_eq!(place, at(1));
    }

    #[test]
    fn without_a_sign_of_life_nothing_is_handed_out() {
        let mut feed = Feed::new(part(false));
        feed.found(Cursor::default(), found(1..=2, false));
        let late = Instant::now() + Duration::from_secs(61);
        assert!(feed.hand_out(9, late).is_none());
        assert!(matches!(feed.next(late), Next::Waits), "nor read");
        assert_eq!(handed(&mut feed, 9), [1, 2], "unless one comes");
    }
}
