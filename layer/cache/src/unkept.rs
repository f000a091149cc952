//! Directories with more names than are cached: the cached names are listed from the cache, the others by the
//! origin, a page at a time (docs/decisions/cache-layer.md).
//!
//! Invariant: all names that the origin orders before [`Unkept::from`] are cached. The origin may order a new
//! name anywhere, so one created through this cache is cached at once; after any other change of the
//! directory all names are dropped, which voids the boundary. A reader is therefore given all cached names,
//! also those cached since the boundary was set, and then the origin's names from `from` on, except those
//! that it was given from the cache.
//!
//! A reader may continue after any cached name it was given. An uncached name gets a new position each time
//! that it is returned, beyond those of cached names. For the positions assigned last, the cache remembers
//! the origin's cookie after the name ([`Continuation`]).

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;

use tombolo_core::fs::{Cookie, DirEntry, DirPage};
use tombolo_core::{Error, Result};

use crate::names::DOT_DOT;
use crate::object::State;

/// Boundary in the origin's order of a directory's names, and the continuations of readers after it.
#[derive(Debug)]
pub(crate) struct Unkept {
    /// Epoch of the cached names: the boundary is void once they are dropped.
    epoch: u64,
    /// The origin's cookie at which the listing that set the boundary stopped.
    from: Cookie,
    /// Next position to assign to an uncached name.
    next: u64,
    /// Continuations after the uncached names returned last: the last one is after position `next - 1`.
    given: VecDeque<Continuation>,
}

/// Continuation of one reader at the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Continuation {
    /// The origin's cookie to continue after.
    pub at: Cookie,
    /// Last position that this reader was given from the cache. It was given all names cached up to it, and
    /// none with a later position.
    pub last_kept: u64,
}

/// Lowest position of an uncached name, above those of all cached names.
const FIRST_PLACE: u64 = 1 << 40;

/// Number of different first positions of a directory's uncached names, at distances of [`FIRST_PLACE`]. All
/// positions stay below 2^61.
const FIRSTS: u64 = 1 << 20;

/// Returns a random first position, so that a position of an earlier process or object is no one else's.
fn first_place() -> u64 {
    FIRST_PLACE * (1 + RandomState::new().hash_one(()) % FIRSTS)
}

/// Maximum number of continuations per directory.
const GIVEN_MAX: usize = 1 << 16;

impl Unkept {
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.given.capacity() * size_of::<Continuation>()
    }

    /// Records that an entry was given the next position.
    fn gave(&mut self, continuation: Continuation) {
        if self.given.len() == GIVEN_MAX {
            self.given.pop_front();
        }
        self.given.push_back(continuation);
        self.next += 1;
    }

    /// Returns the continuation after a position; `None` if it is no longer remembered.
    fn after(&self, place: u64) -> Option<Continuation> {
        let first = self.next - self.given.len() as u64;
        self.given.get(usize::try_from(place.checked_sub(first)?).ok()?).copied()
    }
}

impl State {
    /// Sets the boundary, after a listing cached all names that the origin orders before this cookie.
    pub(crate) fn set_unkept(&mut self, from: Cookie) {
        // A dropped name that the listing did not find again, so that its target is unknown, loses its
        // position. If it were cached again there, a reader already past the position would miss it: neither
        // the cache nor the origin's part, which omits names at such positions, would list it.
        self.names.drop_unknown();
        let epoch = self.names.epoch();
        // Positions already given stay valid, so that their readers can continue.
        let (next, given) = self
            .unkept
            .take()
            .map_or_else(|| (first_place(), VecDeque::new()), |before| (before.next, before.given));
        self.unkept = Some(Box::new(Unkept { epoch, from, next, given }));
    }

    /// Returns `true` if the boundary is valid: the origin lists the names that are not cached.
    pub(crate) fn has_unkept(&self) -> bool {
        let epoch = self.names.epoch();
        !self.names.is_complete() && self.unkept.as_ref().is_some_and(|unkept| unkept.epoch == epoch)
    }

    /// Returns `true` if no listing is cached, so the origin lists all names.
    pub(crate) fn keeps_no_listing(&self) -> bool {
        self.has_unkept() && self.unkept.as_ref().is_some_and(|unkept| unkept.from == Cookie::START)
    }

    /// Returns `true` if all names are cached, or the origin lists the others.
    pub(crate) fn shows_all_names(&self) -> bool {
        self.names.is_complete() || self.has_unkept() && !self.names.is_passing()
    }

    /// Returns `true` if a listing in progress can continue from the cached names.
    pub(crate) fn shows_names(&self) -> bool {
        self.names.can_go_on() || self.has_unkept()
    }

    /// Returns `true` if a listing can continue after this position from the cached names alone.
    pub(crate) fn goes_on_after(&self, cookie: Cookie) -> bool {
        self.shows_names() && self.unkept_from(cookie).is_none()
    }

    /// Returns the continuation at the origin after a position, if the names after it are not cached; fails
    /// with [`Error::BadCookie`] if it is no longer remembered.
    pub(crate) fn unkept_from(&self, cookie: Cookie) -> Option<Result<Continuation>> {
        if cookie.0 >= FIRST_PLACE {
            let after = self.unkept.as_ref().and_then(|unkept| unkept.after(cookie.0));
            return Some(after.ok_or(Error::BadCookie));
        }
        let unkept = self.unkept.as_ref().filter(|_| self.has_unkept())?;
        let is_past = cookie.0 >= DOT_DOT && self.names.after(cookie.0).next().is_none();
        is_past.then_some(Ok(Continuation { at: unkept.from, last_kept: cookie.0 }))
    }

    /// Passes the origin's entries on to a reader, except those at positions up to `last_kept`, which it was
    /// given from the cache, and those that `hides` selects. Breaks if the reader's page is full.
    pub(crate) fn pass_names_on(
        &mut self,
        there: &DirPage,
        (mut page, last_kept): (DirPage, u64),
        hides: impl Fn(&[u8]) -> bool,
    ) -> ControlFlow<DirPage, DirPage> {
        for entry in there.iter() {
            let is_kept = self.names.place_of(entry.name).is_some_and(|place| place <= last_kept);
            if is_kept || matches!(entry.name, b"." | b"..") || hides(entry.name) {
                continue;
            }
            let Some(unkept) = self.unkept.as_mut() else {
                return ControlFlow::Break(page);
            };
            if !page.push(DirEntry { cookie: Cookie(unkept.next), entry: None, ..entry }) {
                return ControlFlow::Break(page);
            }
            unkept.gave(Continuation { at: entry.cookie, last_kept });
        }
        if there.is_end() {
            page.set_end();
        }
        ControlFlow::Continue(page)
    }
}
