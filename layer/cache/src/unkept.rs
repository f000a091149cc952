//! Directories with more names than are cached: the first names are listed from the cache, the others by the
//! origin, a page at a time.
//!
//! A reader may continue after any cached name it was given. An uncached name gets a new position each time
//! that it is returned, beyond those of cached names. For the positions assigned last, the cache remembers
//! the origin's cookie after the name ([`Continuation`]).

use std::collections::VecDeque;

use tombolo_core::fs::{Cookie, DirEntry, DirPage};
use tombolo_core::{Error, Result};

use crate::names::DOT_DOT;
use crate::object::State;

/// Boundary between a directory's cached and uncached names, and the continuations after it.
#[derive(Debug)]
pub(crate) struct Unkept {
    /// Epoch of the cached names: the boundary is void once they are dropped.
    epoch: u64,
    /// Position of the last cached name, and the origin's cookie after it.
    last_kept: u64,
    from: Cookie,
    /// Next position to assign, and the continuations after the positions assigned last.
    next: u64,
    given: VecDeque<Continuation>,
}

/// Continuation of one reader at the origin: the origin's cookie, and the last position of the names that
/// this reader was given from the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Continuation {
    pub at: Cookie,
    pub last_kept: u64,
}

/// Lowest position of an uncached name, above those of all cached names.
const FIRST_PLACE: u64 = 1 << 40;

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
    /// Records that names from this cookie on are not cached.
    pub(crate) fn set_unkept(&mut self, from: Cookie) {
        // Names without a known target are dropped. Cached again later at its old position, such a name would
        // neither be listed after the boundary nor, to a reader already past the position, before it.
        self.names.drop_unknown();
        let (epoch, last_kept) = (self.names.epoch(), self.names.next_place() - 1);
        // Positions already given stay valid, so that their readers can continue.
        let (next, given) =
            self.unkept.take().map_or((FIRST_PLACE, VecDeque::new()), |before| (before.next, before.given));
        self.unkept = Some(Box::new(Unkept { epoch, last_kept, from, next, given }));
    }

    /// Returns `true` if the boundary is valid: the origin lists the names after it, or all names.
    pub(crate) fn has_unkept(&self) -> bool {
        let epoch = self.names.epoch();
        !self.names.is_complete() && self.unkept.as_ref().is_some_and(|unkept| unkept.epoch == epoch)
    }

    /// Returns `true` if no listing is cached, so the origin lists all names.
    pub(crate) fn keeps_no_listing(&self) -> bool {
        self.has_unkept() && self.unkept.as_ref().is_some_and(|unkept| unkept.from == Cookie::START)
    }

    /// Returns the highest position listed from the cache; `u64::MAX` unless the origin lists the others.
    pub(crate) fn last_kept_place(&self) -> u64 {
        let unkept = self.unkept.as_ref().filter(|_| self.has_unkept());
        unkept.map_or(u64::MAX, |unkept| unkept.last_kept)
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
    /// with [`Error::OutOfRange`] if it is no longer remembered.
    pub(crate) fn unkept_from(&self, cookie: Cookie) -> Option<Result<Continuation>> {
        if cookie.0 >= FIRST_PLACE {
            let after = self.unkept.as_ref().and_then(|unkept| unkept.after(cookie.0));
            return Some(after.ok_or(Error::OutOfRange));
        }
        let unkept = self.unkept.as_ref().filter(|_| self.has_unkept())?;
        let next = self.names.after(cookie.0.max(DOT_DOT)).next();
        let is_past = next.is_none_or(|(place, ..)| place > unkept.last_kept);
        let continuation = Continuation { at: unkept.from, last_kept: unkept.last_kept };
        (is_past && cookie != Cookie::START).then_some(Ok(continuation))
    }

    /// Passes the origin's entries on to a reader, except those listed from the cache and those that `hides`
    /// selects.
    pub(crate) fn pass_names_on(
        &mut self,
        there: &DirPage,
        (mut page, last_kept): (DirPage, u64),
        hides: impl Fn(&[u8]) -> bool,
    ) -> DirPage {
        for entry in there.iter() {
            let is_kept = self.names.place_of(entry.name).is_some_and(|place| place <= last_kept);
            if is_kept || matches!(entry.name, b"." | b"..") || hides(entry.name) {
                continue;
            }
            let Some(unkept) = self.unkept.as_mut() else { return page };
            if !page.push(DirEntry { cookie: Cookie(unkept.next), entry: None, ..entry }) {
                return page;
            }
            unkept.gave(Continuation { at: entry.cookie, last_kept });
        }
        if there.is_end() {
            page.set_end();
        }
        page
    }
}
