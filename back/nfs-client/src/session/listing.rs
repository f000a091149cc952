//! Listing directories.

use std::sync::{Arc, PoisonError};

use tombolo_core::fs::{Cookie, DirEntry, DirPage, Entry, File, Name, OpenFlags};
use tombolo_core::{Error, Result};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, Procedure, Reply, Status, attr, status};

use super::view::View;
use crate::calls::{Listing, Registration};
use crate::listing::{Page, Progress};
use crate::openings::Opening;

impl View {
    /// Fills a page from what the server gives in pages of its own size.
    pub(super) async fn readdir(self, file: File, cookie: Cookie, mut page: DirPage) -> Result<DirPage> {
        let opening = self.session.openings.made_for(file, OpenFlags::DIRECTORY)?;
        let plus = page.wants_entries() && self.session.nodes.takes_listed();
        let mut cookie = cookie;
        loop {
            let known = self.progress(&opening, |progress| match cookie {
                // From the start it is a new listing, with what is there now.
                Cookie::START => None,
                _ => progress.page_behind(cookie, plus),
            });
            let given = match known {
                Some(given) => given,
                None => self.fetch_page(&opening, cookie, plus).await?,
            };
            for listed in given.behind(cookie).unwrap_or_default() {
                if !self.push(&mut page, plus, &opening, &given, listed)? {
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

    async fn fetch_page(&self, opening: &Opening, cookie: Cookie, plus: bool) -> Result<Page> {
        let verifier = match cookie {
            Cookie::START => CookieVerifier::default(),
            _ => self.verifier(opening).await?,
        };
        let (asked, changes) = (self.now(), opening.node.changes());
        let (listing, procedure) = self.some(opening, (Cookie3(cookie.0), verifier), plus).await?;
        self.absorb(&opening.node, &listing.dir_attributes, asked);
        let epoch = opening.node.epoch();
        let page = Page { start: cookie, listing: Arc::new(listing), plus, procedure, asked, epoch, changes };
        self.progress(opening, |progress| progress.take(page.clone()))
            .map_err(|what| self.session.nfs.invalid_reply(procedure, what))?;
        Ok(page)
    }

    /// READDIRPLUS, or READDIR where a server has no more to give.
    async fn some(
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
        match self.on(&opening.node, |dir| nfs.readdir(&self.caller, dir, from)).await? {
            Reply::Ok(listing) => Ok((listing, Procedure::Readdir)),
            Reply::Failed(failed, _) => Err(status::from_status(failed)),
        }
    }

    /// The verifier of the directory's cookies. A cookie without one starts the listing again.
    async fn verifier(&self, opening: &Opening) -> Result<CookieVerifier> {
        if let Some(verifier) = self.progress(opening, |progress| progress.verifier) {
            return Ok(verifier);
        }
        let start = (Cookie3(Cookie::START.0), CookieVerifier::default());
        self.some(opening, start, false).await.map(|(listing, _)| listing.verifier)
    }

    /// With its node, if `plus`. False when the page is full.
    fn push(
        &self,
        page: &mut DirPage,
        plus: bool,
        opening: &Opening,
        given: &Page,
        listed: &Registration,
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
        // The names of a directory that was changed since may lead elsewhere: they are looked up.
        let is_current = opening.node.changes() == given.changes;
        let mut entry = None;
        if let (Some(name), Some(handle), Some(fattr), true) =
            (name, listed.handle, listed.attributes, plus && is_current)
        {
            let node = self.session.nodes.enter_listed(handle, &fattr, given.asked, self.now())?;
            self.session.nodes.record(&node, &opening.node, &name.to_owned(), given.epoch);
            match node.is_doubtful() {
                false => entry = Some(Entry { node: node.id, attr: node.known() }),
                // The page contradicts other replies: the next use asks the server.
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
        look(&mut opening.listing.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
