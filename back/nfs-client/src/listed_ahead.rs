//! Directories received with the listing of a parent (LIST), retained for a tree walk.
//!
//! Used only for callers that walk a tree
//! ([`Ctx::lists_subdirectories`](tombolo_core::Ctx::lists_subdirectories)), which learn the age of the data.
//! A change of any directory by this session discards all of them.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tombolo_core::{Identity, lock};
use tombolo_wire_nfs3::FileHandleBuf;

use crate::calls::ListedDir;

/// Approximate memory limit in bytes; the oldest entries are evicted.
const BYTES_MAX: usize = 8 << 20;

/// Lifetime after receipt, not after the request: over a slow connection, which profits most, the transfer
/// alone may take longer.
const STAY_MAX: Duration = Duration::from_secs(3);

/// Retained directories.
#[derive(Debug, Default)]
pub(crate) struct ListedAhead(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    dirs: HashMap<FileHandleBuf, PrefetchedDir>,
    /// Directories from the oldest on, including ones that were taken or replaced.
    order: VecDeque<(FileHandleBuf, Instant)>,
    bytes: usize,
    /// Number of changes of directories by this session, each of which discarded all entries.
    changes: u64,
}

/// Number of directory changes by this session before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangeCount(u64);

/// A complete listing of a directory.
#[derive(Debug)]
pub(crate) struct PrefetchedDir {
    pub listed: ListedDir,
    /// Time of the call that returned it.
    pub asked: Instant,
    received: Instant,
    /// User that was permitted to list it.
    user: Identity,
}

impl ListedAhead {
    /// Returns the count to pass to [`keep`](Self::keep). Read it before the call to the server, so that a
    /// change during the call is noticed.
    pub(crate) fn change_count(&self) -> ChangeCount {
        ChangeCount(lock(&self.0).changes)
    }

    /// Stores directories that a call has returned, unless this session has changed a directory since
    /// `change_count` was read.
    pub(crate) fn keep(
        &self,
        dirs: Vec<ListedDir>,
        user: &Identity,
        (asked, received): (Instant, Instant),
        change_count: ChangeCount,
    ) {
        let mut state = lock(&self.0);
        if change_count.0 != state.changes {
            return;
        }
        for listed in dirs {
            let (dir, bytes) = (listed.dir, listed.listing.heap_bytes());
            let prefetched = PrefetchedDir { listed, asked, received, user: user.clone() };
            state.bytes += bytes;
            if let Some(before) = state.dirs.insert(dir, prefetched) {
                state.bytes -= before.listed.listing.heap_bytes();
            }
            state.order.push_back((dir, asked));
        }
        while state.bytes > BYTES_MAX || state.order.len() > 2 * state.dirs.len() + 64 {
            let Some((dir, asked)) = state.order.pop_front() else { break };
            if state.dirs.get(&dir).is_some_and(|prefetched| prefetched.asked == asked) {
                state.take(&dir);
            }
        }
    }

    /// Takes a recently received directory, if it was listed for this user.
    pub(crate) fn take(&self, dir: &FileHandleBuf, user: &Identity, now: Instant) -> Option<PrefetchedDir> {
        let mut state = lock(&self.0);
        if state.dirs.get(dir)?.user != *user {
            return None;
        }
        let prefetched = state.take(dir)?;
        (now.saturating_duration_since(prefetched.received) < STAY_MAX).then_some(prefetched)
    }

    /// Discards all directories after a change of a directory, and those that pending calls return.
    pub(crate) fn names_change(&self) {
        let mut state = lock(&self.0);
        let before = std::mem::take(&mut *state);
        state.changes = before.changes + 1;
        drop(state);
        drop(before);
    }
}

impl State {
    fn take(&mut self, dir: &FileHandleBuf) -> Option<PrefetchedDir> {
        let prefetched = self.dirs.remove(dir)?;
        self.bytes -= prefetched.listed.listing.heap_bytes();
        Some(prefetched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_wire_nfs3::FileHandle;
    use tombolo_wire_nfs3::args::AccessBits;

    use crate::calls::Listing;

    fn handle(number: u32) -> FileHandleBuf {
        FileHandle::new(&number.to_be_bytes()).expect("a handle").to_owned()
    }

    fn dir(number: u32, entries: usize) -> ListedDir {
        let listing = Listing::of_names((0..entries).map(|n| format!("{n}")));
        ListedDir { dir: handle(number), access: AccessBits::READ, listing }
    }

    fn user(uid: u32) -> Identity {
        Identity { uid, gid: uid, groups: None }
    }

    #[test]
    fn prefetched_directory_is_returned_once_to_its_user() {
        let (ahead, now) = (ListedAhead::default(), Instant::now());
        let keep = |number| ahead.keep(vec![dir(number, 3)], &user(1), (now, now), ahead.change_count());
        keep(1);
        assert!(ahead.take(&handle(1), &user(2), now).is_none());
        assert_eq!(ahead.take(&handle(1), &user(1), now).expect("kept").listed.listing.entries.len(), 3);
        assert!(ahead.take(&handle(1), &user(1), now).is_none());
        keep(2);
        assert!(ahead.take(&handle(2), &user(1), now + STAY_MAX).is_none());
        assert_eq!(lock(&ahead.0).bytes, 0);
    }

    #[test]
    fn name_change_drops_prefetched_and_pending_directories() {
        let (ahead, now) = (ListedAhead::default(), Instant::now());
        let before = ahead.change_count();
        ahead.keep(vec![dir(1, 3)], &user(1), (now, now), before);
        ahead.names_change();
        ahead.keep(vec![dir(2, 3)], &user(1), (now, now), before);
        assert!([1, 2].iter().all(|&number| ahead.take(&handle(number), &user(1), now).is_none()));
        ahead.keep(vec![dir(3, 3)], &user(1), (now, now), ahead.change_count());
        assert!(ahead.take(&handle(3), &user(1), now).is_some());
    }

    #[test]
    fn prefetched_directories_are_bounded_and_evicted_oldest_first() {
        let (ahead, now) = (ListedAhead::default(), Instant::now());
        for number in 0..3000 {
            ahead.keep(vec![dir(number, 100)], &user(1), (now, now), ahead.change_count());
            assert!(lock(&ahead.0).bytes <= BYTES_MAX);
        }
        assert!(ahead.take(&handle(0), &user(1), now).is_none());
        assert!(ahead.take(&handle(2999), &user(1), now).is_some());
        for _ in 0..10_000 {
            ahead.keep(vec![dir(1, 0)], &user(1), (now, now), ahead.change_count());
        }
        assert!(lock(&ahead.0).order.len() < 10_000);
    }
}
