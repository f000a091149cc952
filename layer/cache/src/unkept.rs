//! Directories with more names than are cached: the first names are listed from the cache, the others by the
//! origin, a page at a time.
//!
//! A reader may continue after any entry it was given. Uncached names have positions beyond all others, each
//! used once; for the latest of them the origin's continuation is remembered.
//! others, each given once, and for the latest of them it is remembered where the origin goes on.

use std::collections::VecDeque;

use tombolo_core::fs::{Cookie, DirBudget, DirEntry, DirPage};
use tombolo_core::{Error, Result};

use crate::names::DOT_DOT;
use crate::object::State;

/// The part of a directory's names that is not kept.
#[derive(Debug)]
pub(crate) struct Unkept {
    /// Of which names the others are kept: when they are dropped it is not known what is kept.
    epoch: u64,
    /// The last place of a name that is kept, and where the origin goes on after it.
    last_kept: u64,
    from: Cookie,
    /// The place that is given next, and the origin's cookies of the latest.
    next: u64,
    given: VecDeque<Cookie>,
}

/// Kept names have lower places.
const FIRST_PLACE: u64 = 1 << 40;

/// So many cookies of the origin's are remembered of a directory.
const GIVEN_MAX: usize = 1 << 16;

impl Unkept {
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.given.capacity() * size_of::<Cookie>()
    }

    /// An entry was given the next place, to which the origin gives this cookie.
    fn gave(&mut self, cookie: Cookie) {
        if self.given.len() == GIVEN_MAX {
            self.given.pop_front();
        }
        self.given.push_back(cookie);
        self.next += 1;
    }

    /// Where the origin goes on after a place.
    fn after(&self, place: u64) -> Option<Cookie> {
        let first = self.next - self.given.len() as u64;
        self.given.get(usize::try_from(place.checked_sub(first)?).ok()?).copied()
    }
}

impl State {
    /// From here on the origin lists names that are not kept.
    pub(crate) fn set_unkept(&mut self, from: Cookie) {
        let (epoch, last_kept) = (self.names.epoch(), self.names.next_place() - 1);
        // Readers of before go on.
        let (next, given) =
            self.unkept.take().map_or((FIRST_PLACE, VecDeque::new()), |before| (before.next, before.given));
        self.unkept = Some(Box::new(Unkept { epoch, last_kept, from, next, given }));
    }

    /// Whether the first names are kept, and that there are others.
    pub(crate) fn has_unkept(&self) -> bool {
        let epoch = self.names.epoch();
        !self.names.is_complete() && self.unkept.as_ref().is_some_and(|unkept| unkept.epoch == epoch)
    }

    /// The last place of a name that is listed from here.
    pub(crate) fn last_kept_place(&self) -> u64 {
        let unkept = self.unkept.as_ref().filter(|_| self.has_unkept());
        unkept.map_or(u64::MAX, |unkept| unkept.last_kept)
    }

    /// Whether all names are known, or where those are listed that are not kept.
    pub(crate) fn shows_all_names(&self) -> bool {
        self.names.is_complete() || self.has_unkept() && !self.names.is_passing()
    }

    /// Whether a listing that has begun can go on by the names that are here.
    pub(crate) fn shows_names(&self) -> bool {
        self.names.can_go_on() || self.has_unkept()
    }

    /// Whether a listing can go on by the names that are here after this place.
    pub(crate) fn goes_on_after(&self, cookie: Cookie) -> bool {
        self.shows_names() && self.unkept_from(cookie).is_none()
    }

    /// Where the origin is to go on after a place, if the names after it are not kept.
    pub(crate) fn unkept_from(&self, cookie: Cookie) -> Option<Result<Cookie>> {
        if cookie.0 >= FIRST_PLACE {
            let after = self.unkept.as_ref().and_then(|unkept| unkept.after(cookie.0));
            return Some(after.ok_or(Error::OutOfRange));
        }
        let unkept = self.unkept.as_ref().filter(|_| self.has_unkept())?;
        let next = self.names.after(cookie.0.max(DOT_DOT)).next();
        let is_past = next.is_none_or(|(place, ..)| place > unkept.last_kept);
        (is_past && cookie != Cookie::START).then_some(Ok(unkept.from))
    }

    /// Gives entries of the origin's to a reader, but for those that are listed from here, and for those that
    /// `hides` says.
    pub(crate) fn pass_names_on(
        &mut self,
        there: &DirPage,
        mut page: DirPage,
        hides: impl Fn(&[u8]) -> bool,
    ) -> DirPage {
        // Also if names were dropped since: a reader that is given these has had only the ones that were kept
        // then.
        let last_kept = self.unkept.as_ref().map_or(u64::MAX, |unkept| unkept.last_kept);
        for entry in there.iter() {
            let is_kept = self.names.place_of(entry.name).is_some_and(|place| place <= last_kept);
            if is_kept || matches!(entry.name, b"." | b"..") || hides(entry.name) {
                continue;
            }
            let Some(unkept) = self.unkept.as_mut() else { return page };
            if !page.push(DirEntry { cookie: Cookie(unkept.next), entry: None, ..entry }) {
                return page;
            }
            unkept.gave(entry.cookie);
        }
        if there.is_end() {
            page.set_end();
        }
        page
    }
}

/// What the origin is asked for to fill a page of names.
pub(crate) fn names_only(budget: DirBudget) -> DirBudget {
    DirBudget { plus: false, ..budget }
}
