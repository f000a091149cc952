//! Listing directories.

use std::sync::PoisonError;

use tombolo_core::fs::{Cookie, DirEntry, DirPage, Entry, File, OpenFlags};
use tombolo_core::{Error, Result};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, attr};

use super::openings::Opening;
use super::view::View;
use crate::client::{ListedEntry, Listing};

/// What is asked for at a time, in bytes.
const PAGE_BYTES: u32 = 8192;
/// The same with attributes and handles.
const PLUS_BYTES: u32 = 32 << 10;

impl View<'_> {
    /// Fills a page.
    pub fn readdir(&self, file: File, cookie: Cookie, mut page: DirPage) -> Result<DirPage> {
        let opening = self.fs.openings.made_for(file, OpenFlags::DIRECTORY)?;
        let mut cookie = Cookie3(cookie.0);
        loop {
            let listing = self.some(&opening, cookie, page.wants_entries())?;
            for listed in &listing.entries {
                if !self.push(&mut page, listed)? {
                    return Ok(page);
                }
                cookie = listed.cookie;
            }
            if listing.eof {
                page.set_end();
                return Ok(page);
            }
            if listing.entries.is_empty() {
                return Err(Error::io("the server lists nothing, and the directory does not end"));
            }
        }
    }

    /// READDIR or READDIRPLUS from a cookie on.
    fn some(&self, opening: &Opening, cookie: Cookie3, plus: bool) -> Result<Listing> {
        let verifier = match cookie {
            Cookie3(0) => CookieVerifier::default(),
            _ => self.verifier(opening)?,
        };
        let dir = &opening.handle;
        let listing = match plus {
            true => self.ask(|nfs| nfs.readdirplus(dir, cookie, verifier, PAGE_BYTES, PLUS_BYTES)),
            false => self.ask(|nfs| nfs.readdir(dir, cookie, verifier, PAGE_BYTES)),
        }?;
        *opening.verifier.lock().unwrap_or_else(PoisonError::into_inner) = Some(listing.verifier);
        Ok(listing)
    }

    /// The verifier of the directory's cookies. A cookie without one starts the listing again.
    fn verifier(&self, opening: &Opening) -> Result<CookieVerifier> {
        let known = *opening.verifier.lock().unwrap_or_else(PoisonError::into_inner);
        known.map_or_else(|| self.some(opening, Cookie3(0), false).map(|listing| listing.verifier), Ok)
    }

    /// False when the page is full.
    fn push(&self, page: &mut DirPage, listed: &ListedEntry) -> Result<bool> {
        if !page.fits(listed.name.len()) {
            return Ok(false);
        }
        let is_dot = [&b"."[..], b".."].contains(&listed.name.as_slice());
        let entry: Option<Entry> = match (page.wants_entries() && !is_dot, listed.handle) {
            (true, Some(handle)) => Some(self.entry(handle, listed.attributes)?),
            _ => None,
        };
        Ok(page.push(DirEntry {
            name: &listed.name,
            fileid: listed.fileid,
            file_type: listed.attributes.map(|fattr| attr::file_type(fattr.file_type)),
            cookie: Cookie(listed.cookie.0),
            entry: entry.as_ref(),
        }))
    }
}
