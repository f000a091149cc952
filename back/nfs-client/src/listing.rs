//! Progress of a listing: its last page, detection of cycles, and the names already returned if it must
//! restart.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use tombolo_core::fs::Cookie;
use tombolo_wire_nfs3::{CookieVerifier, Procedure};

use crate::calls::{ListedEntry, Listing};
use crate::nodes::Epoch;

/// Listing state of an opening between pages.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Verifier of the directory's cookies.
    pub verifier: Option<CookieVerifier>,
    /// Last page from the server; callers consume it in smaller ones.
    page: Option<Page>,
    circle: Circle,
    /// Names on the pages before the last.
    given: Arc<Given>,
}

/// Maximum number of names remembered of a listing, which bounds its memory. A longer listing cannot be
/// restarted.
const GIVEN_MAX: usize = 1 << 18;

/// Hashes of the names that were already returned to callers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    names: HashSet<u64>,
    hasher: RandomState,
    /// `true` if some names are missing.
    is_partial: bool,
    /// `true` if the listing was restarted, so that pages repeat names.
    pub repeats: bool,
}

/// A page from the server.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// Cookie after which the page begins in the caller's listing.
    pub start: Cookie,
    /// Position requested from the server, which differs from `start` after a restart of the listing.
    pub from: Cookie,
    pub listing: Arc<Listing>,
    /// `true` if the page was requested with attributes.
    pub plus: bool,
    pub procedure: Procedure,
    pub asked: Instant,
    /// Epoch of the directory when the page was received.
    pub epoch: Epoch,
    /// Count of the directory's changes before the request.
    pub changes: u64,
}

/// Detection of listings without end, by a repeated cookie.
#[derive(Debug, Default)]
struct Circle {
    /// Cookie compared with later ones (Brent's cycle detection: replaced after twice as many pages each
    /// time).
    reference: Option<Cookie>,
    pages: u64,
    /// Number of pages at which `reference` is replaced.
    until: u64,
}

impl Page {
    /// Returns the entries after `cookie`, if it is a cookie of this page or its start.
    pub(crate) fn behind(&self, cookie: Cookie) -> Option<&[ListedEntry]> {
        let entries = &self.listing.entries;
        match self.index_of(cookie) {
            Some(index) => entries.get(index + 1..),
            None => (cookie == self.start).then_some(entries),
        }
    }

    fn index_of(&self, cookie: Cookie) -> Option<usize> {
        self.listing.entries.iter().position(|entry| entry.cookie.0 == cookie.0)
    }
}

impl Progress {
    /// Returns the last page, if it has entries or the end after `cookie`, and attributes if `plus` requires
    /// them.
    pub(crate) fn page_behind(&self, cookie: Cookie, plus: bool) -> Option<Page> {
        let page = self.page.as_ref().filter(|page| page.plus || !plus)?;
        let behind = page.behind(cookie)?;
        (!behind.is_empty() || page.listing.eof).then(|| page.clone())
    }

    /// Stores a page; fails with a description if it is invalid.
    pub(crate) fn take(&mut self, page: Page) -> Result<(), &'static str> {
        let entries = &page.listing.entries;
        if entries.is_empty() && !page.listing.eof {
            return Err("empty page before the end of the directory");
        }
        let repeats = |entry: &ListedEntry| entry.cookie.0 == page.from.0;
        if entries.iter().any(repeats)
            || entries.windows(2).any(|pair| matches!(pair, [a, b] if a.cookie == b.cookie))
        {
            return Err("repeated cookie in a page");
        }
        let last = self.page.as_ref().and_then(|page| page.listing.entries.last());
        if last.is_none_or(|last| last.cookie.0 != page.start.0) {
            // Only consecutive pages can loop, so a seek by the caller resets the detection.
            self.circle = Circle::default();
        }
        let before = self.page.as_ref().filter(|_| page.start != Cookie::START);
        match before.map(|before| (before, before.index_of(page.start))) {
            // Continues from an entry of the last page: the last one or an earlier one.
            Some((before, Some(index))) => {
                let behind = before.listing.entries.get(..=index).unwrap_or_default();
                Arc::make_mut(&mut self.given).add(&before.listing, behind);
            }
            // The same page was requested again.
            Some((before, None)) if before.start == page.start => {}
            _ => self.given = Arc::new(Given { is_partial: page.start != Cookie::START, ..Given::default() }),
        }
        if let Some(last) = entries.last()
            && self.circle.closes_at(Cookie(last.cookie.0))
        {
            return Err("listing loops");
        }
        self.verifier = Some(page.listing.verifier);
        self.page = Some(page);
        Ok(())
    }
}

impl Progress {
    /// Returns the names up to this position, to be skipped in a listing from the start if the server no
    /// longer knows the position. `None` if some are missing, or the position is not of the last page.
    pub(crate) fn given_until(&self, cookie: Cookie) -> Option<Arc<Given>> {
        let page = self.page.as_ref()?;
        let mut given = Given::clone(&self.given);
        match page.index_of(cookie) {
            Some(index) => given.add(&page.listing, page.listing.entries.get(..=index)?),
            None if cookie == page.start => {}
            None => return None,
        }
        given.repeats = true;
        (!given.is_partial).then(|| Arc::new(given))
    }

    /// Stores the first page with new names, or the last page, after a restart of the listing.
    pub(crate) fn take_anew(&mut self, page: Page, given: Arc<Given>) -> Result<(), &'static str> {
        (self.page, self.circle) = (None, Circle::default());
        self.take(page)?;
        self.given = given;
        Ok(())
    }

    /// Returns the names that pages may repeat; `None` unless the listing was restarted.
    pub(crate) fn repeated(&self) -> Option<Arc<Given>> {
        self.given.repeats.then(|| self.given.clone())
    }
}

impl Given {
    fn add(&mut self, listing: &Listing, entries: &[ListedEntry]) {
        self.is_partial |= self.names.len() + entries.len() > GIVEN_MAX;
        if self.is_partial {
            self.names = HashSet::new();
        } else {
            self.names.extend(entries.iter().map(|entry| self.hasher.hash_one(listing.name(entry))));
        }
    }

    /// Removes from a page the names that were already returned. Returns their number.
    pub(crate) fn leave_out(&self, listing: &mut Listing) -> usize {
        let all = std::mem::take(&mut listing.entries);
        let count = all.len();
        let is_new = |entry: &ListedEntry| !self.names.contains(&self.hasher.hash_one(listing.name(entry)));
        let entries: Vec<_> = all.into_iter().filter(is_new).collect();
        listing.entries = entries;
        count - listing.entries.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }
}

impl Circle {
    fn closes_at(&mut self, cookie: Cookie) -> bool {
        if self.reference == Some(cookie) {
            return true;
        }
        self.pages += 1;
        if self.pages > self.until {
            self.until = self.pages.saturating_mul(2);
            self.reference = Some(cookie);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_loop_is_detected() {
        for (tail, length) in [(0, 1), (0, 5), (7, 1), (7, 3), (100, 40)] {
            let mut circle = Circle::default();
            let cookies = (0..tail).chain((0..10 * (tail + length)).map(|n| tail + n % length));
            assert!(cookies.map(|n| Cookie(n + 1)).any(|cookie| circle.closes_at(cookie)), "{tail} {length}");
        }
        let mut circle = Circle::default();
        assert!(!(1..100_000).any(|n| circle.closes_at(Cookie(n))));
    }
    /// Returns a page of the entries after `start`, whose cookies count them.
    fn page(start: u64, entries: u64, plus: bool) -> Page {
        let mut listing = Listing::of_names((1..=entries).map(|n| format!("name-{}", start + n)));
        listing.entries.iter_mut().zip(start + 1..).for_each(|(entry, cookie)| entry.cookie.0 = cookie);
        listing.eof = false;
        Page {
            start: Cookie(start),
            from: Cookie(start),
            listing: Arc::new(listing),
            plus,
            procedure: if plus { Procedure::Readdirplus } else { Procedure::Readdir },
            asked: Instant::now(),
            epoch: Epoch::default(),
            changes: 0,
        }
    }

    #[test]
    fn names_before_a_switch_in_mid_page_are_remembered() {
        let mut progress = Progress::default();
        progress.take(page(0, 10, false)).expect("a page");
        assert!(progress.page_behind(Cookie(4), true).is_none(), "another kind of page is wanted");
        // The second page is asked for twice, the fourth goes on from within the third.
        for (start, entries, plus) in [(4, 6, true), (4, 8, true), (12, 5, true), (15, 5, true)] {
            progress.take(page(start, entries, plus)).expect("a page");
        }
        for (place, count) in [(15, 15), (17, 17), (20, 20)] {
            assert_eq!(progress.given_until(Cookie(place)).expect("all are known").len(), count);
        }
        assert!(progress.given_until(Cookie(14)).is_none(), "a place of no page");
        progress.take(page(500, 5, true)).expect("a page");
        assert!(progress.given_until(Cookie(505)).is_none(), "a jump");
        progress.take(page(0, 5, true)).expect("a page");
        assert_eq!(progress.given_until(Cookie(3)).expect("it starts again").len(), 3);
    }
}
