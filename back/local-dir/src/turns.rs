//! Turns of changes in a directory, so that the attributes from before and after one tell of that change
//! alone.
//!
//! An NFS client goes by them (RFC 1813 §2.6, `wcc_data`): if those from before are the ones that it knows,
//! it takes those from after for its own and keeps its listing for good. Changes that overlap would hide each
//! other so. They take turns where that is quick. Where one takes longer (it frees much space, say), the
//! others go on beside it, and none of them tells what was before.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tombolo_core::Ctx;
use tombolo_core::Want;
use tombolo_core::fs::{Attr, Change, WeakAttr};
use tombolo_sys::stat;

use crate::attr::attr_of;
use crate::state::{Location, Session};
use crate::table::Key;

/// A change waits so long for its turn: some times what one takes, and less than a thread could spare that
/// serves others.
const WAIT_MAX: Duration = Duration::from_micros(500);

/// The directories of an export that are being changed.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    ended: Condvar,
    /// A caller has wanted attributes from before once. Until then nothing is kept.
    are_wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    under_way: HashMap<Key, UnderWay>,
    waiting: usize,
}

/// The changes of a directory that are under way.
#[derive(Debug, Default)]
struct UnderWay {
    count: usize,
    /// There was more than one at a time.
    overlap: bool,
}

/// A change that is under way.
#[derive(Debug)]
pub(crate) struct Turn<'a, const N: usize> {
    turns: &'a Turns,
    dirs: [Option<Key>; N],
}

impl Turns {
    /// Begins a change of these directories. One of which attributes from before are `wanted` waits for
    /// others for a moment.
    pub fn begin<const N: usize>(&self, dirs: [Key; N], wanted: bool) -> Turn<'_, N> {
        let mut turn = Turn { turns: self, dirs: [None; N] };
        if !self.are_wanted.load(Ordering::Relaxed) {
            if !wanted {
                return turn;
            }
            self.are_wanted.store(true, Ordering::Relaxed);
        }
        let mut state = self.state();
        if wanted && state.is_any_under_way(&dirs) {
            state.waiting += 1;
            let is_busy = |state: &mut State| state.is_any_under_way(&dirs);
            let waited = self.ended.wait_timeout_while(state, WAIT_MAX, is_busy);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
        for (at, dir) in dirs.into_iter().enumerate() {
            if !turn.dirs.contains(&Some(dir)) {
                turn.dirs[at] = Some(dir);
                let under_way = state.under_way.entry(dir).or_default();
                under_way.overlap |= under_way.count > 0;
                under_way.count += 1;
            }
        }
        turn
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_any_under_way(&self, dirs: &[Key]) -> bool {
        dirs.iter().any(|dir| self.under_way.contains_key(dir))
    }
}

impl<const N: usize> Turn<'_, N> {
    /// Tests if no other change of its directories has been under way beside it.
    pub fn is_alone(&self) -> bool {
        let state = self.turns.state();
        self.dirs.iter().flatten().all(|dir| state.under_way.get(dir).is_some_and(|dir| !dir.overlap))
    }
}

impl<const N: usize> Drop for Turn<'_, N> {
    fn drop(&mut self) {
        if self.dirs.iter().all(Option::is_none) {
            return;
        }
        let mut state = self.turns.state();
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

/// A change of directories, and what they were before if that is asked for.
pub(crate) struct Around<'a, const N: usize> {
    turn: Turn<'a, N>,
    dirs: [&'a Location; N],
    wanted: bool,
    before: [Option<WeakAttr>; N],
}

impl Session {
    /// Begins a change of directories.
    pub(crate) fn around<'a, const N: usize>(&'a self, cx: &Ctx, dirs: [&'a Location; N]) -> Around<'a, N> {
        let wanted = cx.want.contains(Want::CHANGE_ATTRS);
        let turn = self.export.turns.begin(dirs.map(|dir| dir.identity.key), wanted);
        let before = dirs.map(|dir| told(dir).filter(|_| wanted).as_ref().map(WeakAttr::from));
        Around { turn, dirs, wanted, before }
    }
}

impl<const N: usize> Around<'_, N> {
    /// Ends the change. What each directory was before is left out where another change may be in between.
    pub fn changes(self) -> [Change; N] {
        if !self.wanted {
            return [Change::default(); N];
        }
        let mut before = self.before.into_iter();
        let changes = self.dirs.map(|dir| Change { before: before.next().flatten(), after: told(dir) });
        let is_alone = self.turn.is_alone();
        changes.map(|change| Change { before: change.before.filter(|_| is_alone), ..change })
    }
}

fn told(dir: &Location) -> Option<Attr> {
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
        assert!(turns.state().under_way.is_empty());
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
        assert!(turns.state().under_way.is_empty());
    }

    #[test]
    fn nothing_is_kept_before_it_is_wanted() {
        let turns = Turns::default();
        let _first = turns.begin([key(1)], false);
        assert!(turns.state().under_way.is_empty());
    }
}
