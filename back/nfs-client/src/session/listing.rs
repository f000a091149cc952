//! Directory listings.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_core::fs::{Cookie, DirEntry, DirPage, Entry, File, Name, OpenFlags, WeakAttr};
use tombolo_core::{Error, Result, lock};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, Procedure, Reply, Status, attr, status};

use super::view::View;
use crate::calls::{Extent, LISTING_ACCESS, ListedDir, ListedEntry, Listing, Subtree, answered};
use crate::listed_ahead::PrefetchedDir;
use crate::listing::{Given, Page, Progress};
use crate::nodes::{FoundBy, Node};
use crate::openings::Opening;

/// Size of a reply for a tree walk, in bytes: small, because a tree walk has several calls in flight.
const SUBTREE_BYTES: u32 = 64 << 10;

/// Maximum number of restarts for one page, if a directory changes continuously.
const ANEW_MAX: usize = 8;

/// Maximum size of a LIST reply outside a tree walk, in bytes. Servers return no more.
const LARGE_PAGE_BYTES_MAX: u32 = 256 << 10;

/// A caller's request for pages of a listing.
#[derive(Clone, Copy)]
struct PageRequest<'a> {
    opening: &'a Opening,
    plus: bool,
    /// Space of the caller, in bytes.
    room_bytes: usize,
}

impl View {
    /// Fills a page from the server's pages.
    pub(super) async fn readdir(self, file: File, cookie: Cookie, mut page: DirPage) -> Result<DirPage> {
        let opening = self.session.openings.made_for(file, OpenFlags::DIRECTORY)?;
        let plus = page.wants_entries() && self.session.nodes.takes_listed();
        let request = PageRequest { opening: &opening, plus, room_bytes: page.budget().size_bytes };
        let (mut cookie, begun) = (cookie, self.now());
        loop {
            let known = self.progress(&opening, |progress| match cookie {
                // A listing from the start must be current.
                Cookie::START => None,
                _ => progress.page_behind(cookie, plus),
            });
            let is_known = known.is_some();
            let given = match known {
                Some(given) => given,
                None => self.next_page(request, cookie).await?,
            };
            if given.asked < begun {
                page.set_asked(page.asked().map_or(given.asked, |asked| asked.min(given.asked)));
            }
            let listed = if is_known { given.behind(cookie) } else { Some(&given.listing.entries[..]) };
            for listed in listed.unwrap_or_default() {
                if !self.push(&mut page, request, &given, listed)? {
                    return Ok(page);
                }
                cookie = Cookie(listed.cookie.0);
            }
            if given.listing.eof {
                page.set_end();
                return Ok(page);
            }
            if !page.is_empty() {
                return Ok(page);
            }
        }
    }

    /// Requests the page after a cookie. If the server no longer knows the cookie, because the directory has
    /// changed or the server was restarted, the directory is listed again and names already returned are
    /// skipped.
    async fn next_page(&self, request: PageRequest<'_>, cookie: Cookie) -> Result<Page> {
        let repeated = self.progress(request.opening, |progress| progress.repeated());
        let page = match repeated.filter(|_| cookie != Cookie::START) {
            None => self.page_from(request, cookie).await,
            Some(given) => self.page_without(&given, request, (cookie, cookie)).await,
        };
        let (page, given) = match page {
            Err(Error::BadCookie) if cookie != Cookie::START => {
                let (page, given) = self.page_anew(request, cookie).await?;
                (page, Some(given))
            }
            page => (page?, None),
        };
        let procedure = page.procedure;
        self.progress(request.opening, |progress| match given {
            None => progress.take(page.clone()),
            Some(given) => progress.take_anew(page.clone(), given),
        })
        .map_err(|what| self.session.nfs.invalid_reply(procedure, what))?;
        Ok(page)
    }

    /// Lists the directory from its start, without the names that the caller had received up to `cookie`.
    async fn page_anew(&self, request: PageRequest<'_>, cookie: Cookie) -> Result<(Page, Arc<Given>)> {
        let given = self.progress(request.opening, |progress| progress.given_until(cookie));
        let given = given.ok_or(Error::BadCookie)?;
        for _ in 0..ANEW_MAX {
            match self.page_without(&given, request, (cookie, Cookie::START)).await {
                Err(Error::BadCookie) => {}
                page => return Ok((page?, given)),
            }
        }
        Err(Error::BadCookie)
    }

    /// Requests pages from `from` on until one has new names or is the last, for a caller at position `start`
    /// of its listing.
    async fn page_without(
        &self,
        given: &Given,
        request: PageRequest<'_>,
        (start, mut from): (Cookie, Cookie),
    ) -> Result<Page> {
        let mut left_out = 0;
        loop {
            let mut page = self.page_from(request, from).await?;
            page.start = start;
            let listing = Arc::make_mut(&mut page.listing);
            let last = listing.entries.last().map(|last| Cookie(last.cookie.0));
            left_out += given.leave_out(listing);
            self.progress(request.opening, |progress| progress.verifier = Some(listing.verifier));
            if !listing.entries.is_empty() || listing.eof {
                return Ok(page);
            }
            match last.filter(|last| *last != from && left_out <= given.len()) {
                Some(last) => from = last,
                None => return Err(self.session.nfs.invalid_reply(page.procedure, "listing loops")),
            }
        }
    }

    /// Requests one page: by LIST if it is with attributes and large or for a tree walk, and the server has
    /// the side program; otherwise by READDIRPLUS or READDIR. A directory received with its parent takes no
    /// call.
    async fn page_from(
        &self,
        PageRequest { opening, plus, room_bytes }: PageRequest<'_>,
        cookie: Cookie,
    ) -> Result<Page> {
        let is_large = room_bytes > self.session.nfs.sizes().listing as usize;
        let has_side_program = self.session.has_side_program.load(Ordering::Relaxed);
        let page = match plus && has_side_program && (is_large || self.lists_subdirectories) {
            false => None,
            true => match self.page_ahead(opening, cookie) {
                Some(page) => Some(page),
                None => self.fetch_large_page(opening, cookie, room_bytes).await?,
            },
        };
        match page {
            Some(page) => Ok(page),
            None => self.fetch_page(opening, cookie, plus).await,
        }
    }

    async fn fetch_page(&self, opening: &Opening, cookie: Cookie, plus: bool) -> Result<Page> {
        let from = (Cookie3(cookie.0), self.verifier(opening, cookie).await?);
        let (asked, changes) = (self.now(), opening.node.changes());
        let (listing, procedure) = self.call_readdir(opening, from, plus).await?;
        self.absorb(&opening.node, &listing.dir_attributes, asked);
        let epoch = opening.node.epoch();
        let (start, from) = (cookie, cookie);
        Ok(Page { start, from, listing: Arc::new(listing), plus, procedure, asked, epoch, changes })
    }

    /// Calls LIST. Subdirectories in the reply are retained for the tree walk. Returns `None` if the server
    /// does not have the side program any more.
    async fn fetch_large_page(
        &self,
        opening: &Opening,
        cookie: Cookie,
        room_bytes: usize,
    ) -> Result<Option<Page>> {
        let (session, node) = (&self.session, &opening.node);
        let from = (Cookie3(cookie.0), self.verifier(opening, cookie).await?);
        let bytes_max = match self.lists_subdirectories {
            true => SUBTREE_BYTES,
            false => u32::try_from(room_bytes).unwrap_or(u32::MAX).min(LARGE_PAGE_BYTES_MAX),
        };
        let extent = Extent { bytes_max, with_subtree: self.lists_subdirectories };
        let (asked, changes, change_count) =
            (self.now(), node.changes(), session.listed_ahead.change_count());
        let answer = self.on(node, |dir| session.nfs.list(&self.caller, dir, from, extent)).await?;
        let Subtree { top, below } = match answer {
            Reply::Ok(subtree) => subtree,
            Reply::Failed(Status::NotSupp, _) => {
                session.has_side_program.store(false, Ordering::Relaxed);
                return Ok(None);
            }
            Reply::Failed(failed, _) => return Err(status::from_status(failed)),
        };
        self.absorb(node, &top.listing.dir_attributes, asked);
        session.listed_ahead.keep(below, &self.caller.identity, (asked, self.now()), change_count);
        Ok(Some(self.large_page(node, cookie, top, (asked, changes))))
    }

    /// Returns a page from LIST, and caches the caller's permissions in the directory.
    fn large_page(
        &self,
        node: &Node,
        cookie: Cookie,
        listed: ListedDir,
        (asked, changes): (Instant, u64),
    ) -> Page {
        node.grant(&self.caller.identity, LISTING_ACCESS, listed.access, asked);
        let (start, from, listing, epoch) = (cookie, cookie, Arc::new(listed.listing), node.epoch());
        Page { start, from, listing, plus: true, procedure: Procedure::Readdirplus, asked, epoch, changes }
    }

    /// Returns a directory received with its parent, unless a newer version is known.
    fn page_ahead(&self, opening: &Opening, cookie: Cookie) -> Option<Page> {
        if cookie != Cookie::START || !self.lists_subdirectories {
            return None;
        }
        let node = &opening.node;
        let changes = node.changes();
        let PrefetchedDir { listed, asked, .. } =
            self.session.listed_ahead.take(&node.handle(), &self.caller.identity, self.now())?;
        let told = listed.listing.dir_attributes.as_ref().map(attr::attr)?;
        self.absorb(node, &listed.listing.dir_attributes, asked);
        if node.changes() != changes || WeakAttr::from(&told) != WeakAttr::from(&node.told()) {
            return None;
        }
        Some(self.large_page(node, cookie, listed, (asked, changes)))
    }

    /// Calls READDIRPLUS if `plus` and if the server supports it, otherwise READDIR.
    async fn call_readdir(
        &self,
        opening: &Opening,
        from: (Cookie3, CookieVerifier),
        plus: bool,
    ) -> Result<(Listing, Procedure)> {
        let nfs = &self.session.nfs;
        if plus {
            let call = |dir| nfs.readdirplus(&self.caller, dir, from);
            match self.on(&opening.node, call).await? {
                Reply::Ok(listing) => return Ok((listing, Procedure::Readdirplus)),
                Reply::Failed(Status::NotSupp, _) => {}
                Reply::Failed(failed, _) => return Err(status::from_status(failed)),
            }
        }
        let reply = self.on(&opening.node, |dir| nfs.readdir(&self.caller, dir, from)).await?;
        Ok((answered(reply)?, Procedure::Readdir))
    }

    /// Returns the verifier of the directory's cookies. If none is known, requests the first page for it.
    async fn verifier(&self, opening: &Opening, cookie: Cookie) -> Result<CookieVerifier> {
        if cookie == Cookie::START {
            return Ok(CookieVerifier::default());
        }
        if let Some(verifier) = self.progress(opening, |progress| progress.verifier) {
            return Ok(verifier);
        }
        let start = (Cookie3(Cookie::START.0), CookieVerifier::default());
        self.call_readdir(opening, start, false).await.map(|(listing, _)| listing.verifier)
    }

    /// Adds an entry, with its node if `plus`. Returns `false` if the page is full.
    fn push(
        &self,
        page: &mut DirPage,
        PageRequest { opening, plus, .. }: PageRequest<'_>,
        given: &Page,
        listed: &ListedEntry,
    ) -> Result<bool> {
        let bytes = given.listing.name(listed);
        if !page.fits(bytes.len()) {
            return Ok(false);
        }
        let name = match bytes {
            b"." | b".." => None,
            _ => Some(Name::new(bytes).map_err(|_| {
                let what = "invalid entry name";
                self.session.nfs.invalid_reply(given.procedure, what)
            })?),
        };
        // If the directory has changed since the request, its names may have other targets, so no nodes are
        // returned for them and the caller looks them up.
        let is_current = opening.node.changes() == given.changes;
        let mut entry = None;
        if let (Some(name), Some(handle), Some(fattr), true) =
            (name, listed.handle, listed.attributes, plus && is_current)
        {
            let node = self.session.nodes.enter(FoundBy::Listing, handle, &fattr, given.asked, self.now())?;
            self.session.nodes.record(&node, &opening.node, &name.to_owned(), given.epoch);
            match node.is_expired() {
                false => entry = Some(Entry { node: node.id, attr: node.known() }),
                // The page contradicts other replies: the next use queries the server.
                true => self.session.nodes.forget(&[(node.id, 1)]),
            }
        }
        let pushed = page.push(DirEntry {
            name: bytes,
            fileid: listed.fileid,
            file_type: listed.attributes.map(|fattr| attr::file_type(fattr.file_type)),
            cookie: Cookie(listed.cookie.0),
            entry: entry.as_ref(),
        });
        match (pushed, entry) {
            (false, Some(entry)) => {
                self.session.nodes.forget(&[(entry.node, 1)]);
                Err(Error::OutOfRange)
            }
            (pushed, _) => Ok(pushed),
        }
    }

    fn progress<T>(&self, opening: &Opening, look: impl FnOnce(&mut Progress) -> T) -> T {
        look(&mut lock(&opening.listing))
    }
}
