//! Cached names of a directory: those looked up, or all of them.
//!
//! Each name has a position (`place`), a number that listings use as cookie and that is never used again for
//! another name of the directory. [`Names`] also records what changes while a listing is in progress.

mod listed;
mod of_object;
mod table;
mod under_way;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use tombolo_core::fs::FileType;

use crate::store::ObjectId;
use crate::store::rows::NamesRow;
pub(crate) use listed::Listed;
pub(crate) use of_object::NamesOfObject;
use table::Table;
pub(crate) use under_way::{ChangeId, ChangesUnderWay};

/// Object that a name leads to, and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub object: ObjectId,
    pub file_type: FileType,
}

/// Cached names of a directory, by position and by name.
#[derive(Debug)]
pub(crate) struct Names {
    /// Present names, and names whose target became unknown in [`Names::drop_all`]. A name that stays, or is
    /// found again later, keeps its position, so that listings in progress continue correctly.
    table: Table,
    /// Names known to be absent, while not all names are cached.
    absent: HashSet<Box<[u8]>>,
    /// Position of the next new name.
    next_place: u64,
    /// `true` if all names of the directory are cached.
    is_complete: bool,
    /// `true` if the names were listed while the directory changed: they are returned to readers in the
    /// middle of a listing, but not used for look-ups.
    is_passing: bool,
    /// `true` while a listing is returned as it arrives: later entries get later positions.
    is_growing: bool,
    /// Incremented whenever names are dropped, so that answers to earlier requests are discarded.
    epoch: u64,
    /// `true` if all parts in the database are obsolete; and the numbers of the parts to write to it.
    drops_parts: bool,
    dirty_parts: BTreeSet<u64>,
    /// Number of listings in progress; and names learned individually since the first of them began.
    listings: usize,
    learnt: Vec<(Arc<[u8]>, Option<Target>)>,
    pub changes: ChangesUnderWay,
}

/// State of the names at the start of a listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListingMark {
    epoch: u64,
    learnt: usize,
    /// `true` if the listing's names can be returned as they arrive: each gets a position after all positions
    /// that a reader can have seen.
    pub can_grow: bool,
}

/// Cached look-up result of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Target of the name.
    Found(Target),
    /// No such name.
    Absent,
}

/// Positions of `.` and `..`.
pub(crate) const DOT: u64 = 1;
pub(crate) const DOT_DOT: u64 = 2;

/// Number of positions stored as one part, a row of the database: a change rewrites only its part.
const PART_PLACES: u64 = 1024;

/// A part to store, with its number; `None` if it has no names any more.
pub(crate) type WrittenPart = (u64, Option<Vec<u8>>);

fn part_of(place: u64) -> u64 {
    place / PART_PLACES
}

/// Maximum number of cached absent names of a directory.
const ABSENT_MAX: usize = 4096;

/// Approximate memory of an absent name, in bytes.
const ABSENT_BYTES: usize = 48;

impl Default for Names {
    fn default() -> Self {
        Self {
            table: Table::default(),
            absent: HashSet::new(),
            next_place: DOT_DOT + 1,
            is_complete: false,
            is_passing: false,
            is_growing: false,
            epoch: 0,
            drops_parts: false,
            dirty_parts: BTreeSet::new(),
            listings: 0,
            learnt: Vec::new(),
            changes: ChangesUnderWay::default(),
        }
    }
}

impl Names {
    pub(crate) fn look_up(&self, name: &[u8]) -> Option<Known> {
        if self.is_passing {
            return None;
        }
        let found = self.table.find(name).and_then(|(_, target)| target).map(Known::Found);
        let is_absent = self.is_complete || self.absent.contains(name);
        found.or_else(|| is_absent.then_some(Known::Absent))
    }

    /// Returns `true` if the names serve only readers in the middle of a listing.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_passing
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete && !self.is_passing
    }

    /// Returns `true` if a reader in the middle of a listing can continue.
    pub(crate) fn can_go_on(&self) -> bool {
        self.is_complete
    }

    /// Marks the names just listed as serving only readers in the middle of a listing.
    pub(crate) fn set_passing(&mut self) {
        self.is_passing = true;
        self.drops_parts = true;
        self.dirty_parts.clear();
    }

    /// Stores the result of a look-up requested in `epoch`. Returns `false`, and stores nothing, if names
    /// were dropped since.
    pub(crate) fn learn(&mut self, name: &[u8], known: Known, epoch: u64) -> bool {
        let is_current = epoch == self.epoch;
        if is_current {
            match known {
                Known::Found(target) => self.set(name, target),
                Known::Absent => self.set_absent(name),
            }
        }
        is_current
    }

    /// Stores a name that was created or looked up.
    pub(crate) fn set(&mut self, name: &[u8], target: Target) {
        self.note(name, Some(target));
        self.put(name, target);
    }

    /// Records that a name was removed or is absent.
    pub(crate) fn set_absent(&mut self, name: &[u8]) {
        self.note(name, None);
        self.take(name);
    }

    fn note(&mut self, name: &[u8], target: Option<Target>) {
        if self.listings > 0 {
            self.learnt.push((name.into(), target));
        }
    }

    fn put(&mut self, name: &[u8], target: Target) {
        if let Some((place, _)) = self.table.find(name) {
            if self.table.set(name, target) {
                self.dirty_parts.insert(part_of(place));
            }
            return;
        }
        self.absent.remove(name);
        self.dirty_parts.insert(part_of(self.next_place));
        self.table.push(name, self.next_place, target);
        self.next_place += 1;
    }

    fn take(&mut self, name: &[u8]) {
        self.dirty_parts.extend(self.table.remove(name).map(part_of));
        if !self.is_complete && self.absent.len() < ABSENT_MAX {
            self.absent.insert(name.into());
        }
    }

    /// Returns `true` if a listing or a change is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.listings > 0 || !self.changes.is_empty()
    }

    /// Returns `true` if the target of any name is known.
    pub(crate) fn has_any(&self) -> bool {
        self.table.from(0).next().is_some()
    }

    /// Begins a listing, which must be ended by [`Names::end_listing`].
    pub(crate) fn begin_listing(&mut self) -> ListingMark {
        self.listings += 1;
        let can_grow = !self.is_complete && !self.is_passing && self.table.unknown() == 0;
        ListingMark { epoch: self.epoch, learnt: self.learnt.len(), can_grow }
    }

    /// Ends a listing, successful or not.
    pub(crate) fn end_listing(&mut self) {
        self.listings -= 1;
        if self.listings == 0 {
            self.is_growing = false;
            self.learnt = Vec::new();
        }
    }

    /// Returns `true` if no names were dropped since the listing began, so all changes since are recorded.
    pub(crate) fn holds_since(&self, mark: ListingMark) -> bool {
        self.epoch == mark.epoch
    }

    /// Starts returning the listing's entries as they arrive, if possible.
    pub(crate) fn begin_growing(&mut self, mark: ListingMark) {
        self.is_growing = mark.can_grow && self.holds_since(mark);
    }

    pub(crate) fn is_growing(&self) -> bool {
        self.is_growing
    }

    /// Adds names found by a listing so far, except those learned individually since it began.
    pub(crate) fn grow<'a>(&mut self, listed: impl Iterator<Item = (&'a [u8], Target)>, mark: ListingMark) {
        if !self.is_growing || !self.holds_since(mark) {
            return;
        }
        self.put_unlearnt(listed, mark);
    }

    /// Adds names, except those learned individually since the listing began.
    fn put_unlearnt<'a>(&mut self, listed: impl Iterator<Item = (&'a [u8], Target)>, mark: ListingMark) {
        let learnt: HashSet<Arc<[u8]>> =
            self.learnt.iter().skip(mark.learnt).map(|(name, _)| name.clone()).collect();
        let new = listed.filter(|(name, _)| !learnt.contains(*name));
        new.for_each(|(name, target)| self.put(name, target));
    }

    /// Stores all names found by a listing, with those learned individually since it began.
    pub(crate) fn set_listed(&mut self, listed: &Listed, mark: ListingMark) {
        self.set_all(listed);
        self.put_learnt(mark);
    }

    /// Adds and removes the names that were learned individually since the listing began.
    fn put_learnt(&mut self, mark: ListingMark) {
        for (name, target) in self.learnt.split_off(mark.learnt.min(self.learnt.len())) {
            match target {
                Some(target) => self.put(&name, target),
                None => self.take(&name),
            }
            // A listing that began earlier needs them too.
            self.learnt.push((name, target));
        }
    }

    /// Adds the names found by an incomplete listing, which does not show removals, and those learned
    /// individually since it began.
    pub(crate) fn set_some(&mut self, listed: &Listed, mark: ListingMark) {
        if self.is_passing {
            // Names that served only readers of an earlier listing may be outdated.
            self.drop_all();
        }
        self.put_unlearnt(listed.iter(), mark);
        self.put_learnt(mark);
        self.is_growing = false;
    }

    /// Drops the names whose targets are unknown, with their positions.
    pub(crate) fn drop_unknown(&mut self) {
        self.table.drop_unknown();
    }

    /// Returns the position of a name, also of one whose target became unknown.
    pub(crate) fn place_of(&self, name: &[u8]) -> Option<u64> {
        self.table.find(name).map(|(place, _)| place)
    }

    /// Stores the names of a complete listing, and removes all others.
    pub(crate) fn set_all(&mut self, listed: &Listed) {
        self.table.begin_listing();
        listed.iter().for_each(|(name, target)| self.put(name, target));
        self.dirty_parts.extend(self.table.end_listing().into_iter().map(part_of));
        self.absent = HashSet::new();
        if self.is_passing {
            self.unwritten();
        }
        self.is_complete = true;
        self.is_passing = false;
        self.is_growing = false;
    }

    /// Drops all names, mostly after a change of the directory. Positions are retained for names that are
    /// added again.
    pub(crate) fn drop_all(&mut self) {
        self.table.forget();
        self.absent = HashSet::new();
        self.is_complete = false;
        self.is_passing = false;
        self.is_growing = false;
        self.epoch += 1;
        self.drops_parts = true;
        self.dirty_parts.clear();
    }

    /// Restores a stored name, in order of positions. Returns `false` if it is out of order or a duplicate.
    pub(crate) fn restore(&mut self, place: u64, name: &[u8], target: Target) -> bool {
        let fits = place >= self.next_place && self.table.find(name).is_none();
        if fits {
            self.table.push(name, place, target);
            self.next_place = place.saturating_add(1);
        }
        fits
    }

    /// Completes the restoration. With `is_complete`, all names of the directory were restored.
    pub(crate) fn restored(&mut self, is_complete: bool, next_place: u64) {
        self.next_place = self.next_place.max(next_place);
        self.is_complete = is_complete;
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.table.heap_bytes() + self.absent.capacity() * ABSENT_BYTES
    }

    pub(crate) fn next_place(&self) -> u64 {
        self.next_place
    }

    /// Returns the changes since the last call: `true` if all stored parts are obsolete, and the parts to
    /// store; a part without names is `None`, to be removed.
    pub(crate) fn take_dirty(&mut self) -> (bool, Vec<WrittenPart>) {
        let dirty = std::mem::take(&mut self.dirty_parts);
        let rows = dirty.into_iter().map(|part| {
            let names = self.table.from(part.saturating_mul(PART_PLACES));
            let mut names = names.take_while(|(place, ..)| part_of(*place) == part).peekable();
            let is_any = names.peek().is_some();
            (part, is_any.then(|| NamesRow::encoded(names)))
        });
        let rows = rows.collect();
        (std::mem::take(&mut self.drops_parts), rows)
    }

    /// Records that stored parts may be missing or obsolete, so all must be written.
    pub(crate) fn unwritten(&mut self) {
        self.drops_parts = true;
        self.dirty_parts = self.table.places().map(part_of).collect();
    }

    /// Returns the names after a position, with their own positions, in order.
    pub(crate) fn after(&self, place: u64) -> impl Iterator<Item = (u64, &[u8], Target)> {
        self.table.from(place.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(id: u64) -> Target {
        Target { object: ObjectId(id), file_type: FileType::Regular }
    }

    fn all(names: &[(Vec<u8>, Target)]) -> Listed {
        let mut listed = Listed::default();
        names.iter().for_each(|(name, target)| listed.push(name, *target));
        listed
    }

    fn listed(names: &Names, place: u64) -> Vec<(u64, Vec<u8>)> {
        names.after(place).map(|(place, name, _)| (place, name.to_vec())).collect()
    }

    #[test]
    fn name_missing_in_a_complete_listing_is_absent() {
        let mut names = Names::default();
        assert_eq!(names.look_up(b"a"), None);
        assert!(names.learn(b"b", Known::Absent, 0));
        assert_eq!(names.look_up(b"b"), Some(Known::Absent));
        names.set_all(&all(&[(b"a".to_vec(), target(5))]));
        assert_eq!(names.look_up(b"a"), Some(Known::Found(target(5))));
        assert_eq!(names.look_up(b"c"), Some(Known::Absent));
        names.set(b"c", target(6));
        names.set_absent(b"a");
        assert_eq!((names.look_up(b"a"), listed(&names, 0).len()), (Some(Known::Absent), 1));
    }

    #[test]
    fn answer_from_before_a_change_is_discarded() {
        let mut names = Names::default();
        let epoch = names.epoch();
        names.drop_all();
        assert!(!names.learn(b"a", Known::Found(target(5)), epoch));
        assert_eq!(names.look_up(b"a"), None);
    }

    #[test]
    fn streamed_listing_keeps_order_and_reverts_no_change() {
        let mut names = Names::default();
        names.set(b"known", target(1));
        let mark = names.begin_listing();
        names.begin_growing(mark);
        let all = all(&[&b"a"[..], b"known", b"gone", b"z"].map(|name| (name.to_vec(), target(1))));
        names.grow(all.iter().take(2), mark);
        let seen = listed(&names, 0);
        assert_eq!((seen.len(), names.look_up(b"z"), names.is_complete()), (2, None, false));
        names.set_absent(b"gone");
        names.grow(all.from(2), mark);
        assert_eq!(listed(&names, seen[1].0).len(), 1, "what comes later is after what was seen");
        names.set_listed(&all, mark);
        names.end_listing();
        assert_eq!(listed(&names, 0)[..2], seen);
        assert_eq!((names.look_up(b"gone"), listed(&names, 0).len()), (Some(Known::Absent), 3));
        names.drop_all();
        let mark = names.begin_listing();
        names.begin_growing(mark);
        assert!(!names.is_growing(), "names keep their places, and come back in any order");
    }

    #[test]
    fn a_part_of_a_listing_undoes_no_change() {
        let mut names = Names::default();
        let mark = names.begin_listing();
        let some = all(&[&b"gone"[..], b"replaced", b"same"].map(|name| (name.to_vec(), target(1))));
        names.set_absent(b"gone");
        names.set(b"replaced", target(2));
        names.set_some(&some, mark);
        names.end_listing();
        assert_eq!(names.look_up(b"gone"), Some(Known::Absent));
        assert_eq!(names.look_up(b"replaced"), Some(Known::Found(target(2))));
        assert_eq!(names.look_up(b"same"), Some(Known::Found(target(1))));
        names.set_passing();
        let mark = names.begin_listing();
        names.set(b"made", target(3));
        names.set_some(&all(&[(b"same".to_vec(), target(1))]), mark);
        names.end_listing();
        assert_eq!(names.look_up(b"replaced"), None, "what was only shown is not known");
        let known = [&b"same"[..], b"made"].map(|name| names.look_up(name).is_some());
        assert_eq!((known, listed(&names, 0).len()), ([true, true], 2));
    }

    #[test]
    fn a_listing_goes_on_after_the_directory_has_changed() {
        let mut names = Names::default();
        let first: Vec<_> = (0..10u8).map(|n| (vec![b'a' + n], target(n.into()))).collect();
        names.set_all(&all(&first));
        let half = listed(&names, 0)[4].0;
        names.drop_all();
        let mut again: Vec<_> = first.iter().rev().filter(|(name, _)| name != b"b").cloned().collect();
        again.push((b"new".to_vec(), target(77)));
        names.set_all(&all(&again));
        let rest: Vec<_> = listed(&names, half).into_iter().map(|(_, name)| name).collect();
        assert_eq!(rest, [&b"f"[..], b"g", b"h", b"i", b"j", b"new"].map(<[u8]>::to_vec));
    }

    #[test]
    fn only_parts_that_have_changed_are_written() {
        let (mut names, count) = (Names::default(), 3 * PART_PLACES);
        let first: Vec<_> = (0..count).map(|n| (n.to_string().into_bytes(), target(n))).collect();
        names.set_all(&all(&first));
        let parts = |names: &mut Names| {
            let (drops, parts) = names.take_dirty();
            (drops, parts.into_iter().map(|(part, row)| (part, row.is_some())).collect::<Vec<_>>())
        };
        assert_eq!(parts(&mut names), (false, vec![(0, true), (1, true), (2, true), (3, true)]));
        names.set_all(&all(&first));
        assert_eq!(parts(&mut names), (false, vec![]), "all is as it was");
        names.set_all(&all(&first[..first.len() - 4]));
        assert_eq!(parts(&mut names), (false, vec![(2, true), (3, false)]));
        names.drop_all();
        names.set_all(&all(&first[..5]));
        assert_eq!(parts(&mut names), (true, vec![(0, true), (1, false), (2, false)]));
        names.set_passing();
        names.set_all(&all(&first[..5]));
        assert_eq!(parts(&mut names), (true, vec![(0, true)]), "what only passes was not written");
    }

    #[test]
    fn names_come_and_go_as_in_a_plain_map() {
        use std::collections::BTreeMap;
        let (mut names, mut map, mut random) =
            (Names::default(), BTreeMap::<Vec<u8>, u64>::new(), fastrand::Rng::with_seed(7));
        for step in 0..20_000_u64 {
            let name = random.u32(0..if step % 4000 < 3000 { 700 } else { 20 }).to_string().into_bytes();
            match random.u32(0..100) {
                0..50 => {
                    names.set(&name, target(step));
                    map.insert(name, step);
                }
                50..99 => {
                    names.set_absent(&name);
                    map.remove(&name);
                }
                _ => {
                    names.drop_all();
                    let again: Vec<_> = map.iter().map(|(name, id)| (name.clone(), target(*id))).collect();
                    names.set_all(&all(&again));
                }
            }
            if step % 64 == 0 {
                let mut listed: Vec<_> = listed(&names, 0);
                assert!(listed.is_sorted(), "in the order of places");
                listed.sort_by(|(_, a), (_, b)| a.cmp(b));
                assert!(listed.iter().map(|(_, name)| name).eq(map.keys()), "step {step}");
                let is_same =
                    |(name, id): (&Vec<u8>, &u64)| names.look_up(name) == Some(Known::Found(target(*id)));
                assert!(map.iter().all(is_same), "step {step}");
            }
        }
        (0..2000).for_each(|n: u32| names.set_absent(n.to_string().as_bytes()));
        assert!(names.heap_bytes() < 32 << 10, "{} bytes for no name", names.heap_bytes());
    }
}
