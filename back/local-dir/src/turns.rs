//! Serialization of changes in a directory, so that the attributes before and after a change show that change
//! alone.
//!
//! NFS clients depend on these attributes (RFC 1813 §2.6, `wcc_data`): a client that has cached the
//! attributes from before the change adopts the ones from after it, and keeps its cached listing. Overlapping
//! changes would hide each other, so changes are serialized while that is quick. If a change takes long (it
//! frees much space, for example), other changes proceed, and no change that overlaps another returns
//! attributes from before it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tombolo_core::Want;
use tombolo_core::fs::{Attr, Change, WeakAttr};
use tombolo_core::{Ctx, lock};
use tombolo_sys::stat;

use crate::attr::attr_of;
use crate::state::{Location, Session};
use crate::table::Key;

/// Maximum wait for other changes of a directory to end: several times the duration of a change, and little
/// enough for a thread that serves other requests.
const WAIT_MAX: Duration = Duration::from_micros(500);

/// Changes in progress, by directory.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<TurnState>,
    ended: Condvar,
    /// `true` once a caller has requested attributes from before a change. Until then nothing is recorded.
    are_wanted: AtomicBool,
    /// Number of unrecorded changes in progress, in any directory: those begun before `are_wanted`.
    unrecorded: AtomicUsize,
}

#[derive(Debug, Default)]
struct TurnState {
    under_way: HashMap<Key, UnderWay>,
    waiting: usize,
}

/// Changes in progress in one directory.
#[derive(Debug, Default)]
struct UnderWay {
    count: usize,
    /// `true` if there was more than one at a time.
    overlap: bool,
}

/// A change in progress in `N` directories; it ends on drop. An unrecorded one has none.
#[derive(Debug)]
pub(crate) struct Turn<'a, const N: usize> {
    turns: &'a Turns,
    dirs: [Option<Key>; N],
}

impl Turns {
    /// Begins a change of these directories. If `wanted` (attributes from before the change are requested),
    /// first waits for other changes of these directories to end, at most [`WAIT_MAX`].
    pub fn begin<const N: usize>(&self, dirs: [Key; N], wanted: bool) -> Turn<'_, N> {
        let mut turn = Turn { turns: self, dirs: [None; N] };
        if !self.are_wanted.load(Ordering::SeqCst) {
            if wanted {
                self.are_wanted.store(true, Ordering::SeqCst);
            } else if self.begin_unrecorded() {
                return turn;
            }
        }
        let mut state = lock(&self.state);
        if wanted && state.is_any_under_way(&dirs) {
            state.waiting += 1;
            let is_busy = |state: &mut TurnState| state.is_any_under_way(&dirs);
            let waited = self.ended.wait_timeout_while(state, WAIT_MAX, is_busy);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
        let overlaps_unrecorded = self.unrecorded.load(Ordering::SeqCst) > 0;
        for (at, dir) in dirs.into_iter().enumerate() {
            if !turn.dirs.contains(&Some(dir)) {
                turn.dirs[at] = Some(dir);
                let under_way = state.under_way.entry(dir).or_default();
                under_way.overlap |= under_way.count > 0 || overlaps_unrecorded;
                under_way.count += 1;
            }
        }
        turn
    }

    /// Counts a change as unrecorded; `false` if changes must be recorded by now. `are_wanted` is checked
    /// after counting: either this check finds it set, or the first recorded change finds the count.
    fn begin_unrecorded(&self) -> bool {
        self.unrecorded.fetch_add(1, Ordering::SeqCst);
        let is_unrecorded = !self.are_wanted.load(Ordering::SeqCst);
        if !is_unrecorded {
            self.unrecorded.fetch_sub(1, Ordering::SeqCst);
        }
        is_unrecorded
    }
}

impl TurnState {
    fn is_any_under_way(&self, dirs: &[Key]) -> bool {
        dirs.iter().any(|dir| self.under_way.contains_key(dir))
    }
}

impl<const N: usize> Turn<'_, N> {
    /// Returns `true` if no other change of its directories has overlapped it.
    pub fn is_alone(&self) -> bool {
        let state = lock(&self.turns.state);
        self.dirs.iter().flatten().all(|dir| state.under_way.get(dir).is_some_and(|dir| !dir.overlap))
    }
}

impl<const N: usize> Drop for Turn<'_, N> {
    fn drop(&mut self) {
        if self.dirs.iter().all(Option::is_none) {
            self.turns.unrecorded.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let mut state = lock(&self.turns.state);
        for dir in self.dirs.iter().flatten() {
            if let Some(under_way) = state.under_way.get_mut(dir) {
                under_way.count -= 1;
                if under_way.count == 0 {
                    state.under_way.remove(dir);
                }
            }
        }
        let is_waited_for = state.waiting > 0;
        drop(state);
        if is_waited_for {
            self.turns.ended.notify_all();
        }
    }
}

/// A change of directories, with their attributes from before if requested.
pub(crate) struct Around<'a, const N: usize> {
    turn: Turn<'a, N>,
    dirs: [&'a Location; N],
    wanted: bool,
    before: [Option<WeakAttr>; N],
}

impl Session {
    /// Begins a change of directories, and reads their attributes if the caller has requested those from
    /// before.
    pub(crate) fn around<'a, const N: usize>(&'a self, cx: &Ctx, dirs: [&'a Location; N]) -> Around<'a, N> {
        let wanted = cx.want.contains(Want::CHANGE_ATTRS);
        let turn = self.export.turns.begin(dirs.map(|dir| dir.identity.key), wanted);
        let before = dirs.map(|dir| attributes_of(dir).filter(|_| wanted).as_ref().map(WeakAttr::from));
        Around { turn, dirs, wanted, before }
    }
}

impl<const N: usize> Around<'_, N> {
    /// Ends the change. Omits the attributes from before if another change may have overlapped.
    pub fn changes(self) -> [Change; N] {
        if !self.wanted {
            return [Change::default(); N];
        }
        let mut before = self.before.into_iter();
        let changes =
            self.dirs.map(|dir| Change { before: before.next().flatten(), after: attributes_of(dir) });
        let is_alone = self.turn.is_alone();
        changes.map(|change| Change { before: change.before.filter(|_| is_alone), ..change })
    }
}

fn attributes_of(dir: &Location) -> Option<Attr> {
    stat::stat(dir.fd()).ok().map(|stat| attr_of(&stat))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn key(inode: u64) -> Key {
        Key { inode, device: 1, mount: 0 }
    }

    #[test]
    fn changes_that_overlap_are_not_alone() {
        let turns = Turns::default();
        let one = turns.begin([key(1)], true);
        let beside = turns.begin([key(2)], true);
        assert!(one.is_alone() && beside.is_alone(), "of different directories");
        let other = turns.begin([key(1)], false);
        assert!(!one.is_alone() && !other.is_alone());
        drop(one);
        assert!(!other.is_alone(), "the other may have begun in its time");
        drop(other);
        let both = turns.begin([key(1), key(1)], true);
        assert!(both.is_alone(), "those are over, and it is one directory");
        drop(both);
        let late = turns.begin([key(2), key(1)], true);
        assert!(!late.is_alone() && !beside.is_alone(), "one of its two is being changed");
        drop((late, beside));
        assert!(lock(&turns.state).under_way.is_empty());
    }

    #[test]
    fn changes_take_turns() {
        let turns = Turns::default();
        let count = Mutex::new((0, 0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let turn = turns.begin([key(1)], true);
                        count.lock().unwrap().0 += 1;
                        let seen = count.lock().unwrap().0;
                        thread::yield_now();
                        let is_as_it_was = count.lock().unwrap().0 == seen;
                        assert!(is_as_it_was || !turn.is_alone());
                        count.lock().unwrap().1 += usize::from(turn.is_alone());
                    }
                });
            }
        });
        let (all, alone) = *count.lock().unwrap();
        assert!(all == 4000 && alone > 0, "{alone} of {all}");
        assert!(lock(&turns.state).under_way.is_empty());
    }

    #[test]
    fn changes_that_overlap_an_unrecorded_one_are_not_alone() {
        let turns = Turns::default();
        let unrecorded = turns.begin([key(1)], false);
        assert!(lock(&turns.state).under_way.is_empty(), "nothing is kept before it is wanted");
        for _ in 0..2 {
            assert!(!turns.begin([key(1)], true).is_alone(), "an earlier change is in progress");
        }
        drop(unrecorded);
        assert!(turns.begin([key(1)], true).is_alone());
    }
}
