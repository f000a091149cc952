//! Where a listing of a directory is.

use std::os::fd::BorrowedFd;

use tombolo_core::fs::Cookie;
use tombolo_core::{Error, Result};
use tombolo_sys::dir::{self, Cookie as SysCookie, Listing};

/// What is read of a directory at a time.
const BUFFER_BYTES: usize = 16 << 10;

/// Where a listing is: the entries read but not yet given out follow `next`.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub listing: Option<Listing>,
    pub given: usize,
    pub next: Cookie,
}

impl Default for Cursor {
    fn default() -> Self {
        Self { listing: None, given: 0, next: Cookie::START }
    }
}

impl Cursor {
    /// Makes `cookie` the place to go on from.
    pub fn go_to(&mut self, fd: BorrowedFd<'_>, cookie: Cookie) -> Result<()> {
        // A listing that starts anew shows the directory as it is now.
        if self.listing.is_some() && self.next == cookie && cookie != Cookie::START {
            return Ok(());
        }
        dir::seek(fd, SysCookie(cookie.0)).map_err(|_| Error::BadCookie)?;
        self.listing.get_or_insert_with(|| Listing::with_size(BUFFER_BYTES)).clear();
        self.given = 0;
        self.next = cookie;
        Ok(())
    }

    /// Reads on; false at the end of the directory, where the buffer is given back.
    pub fn read(&mut self, fd: BorrowedFd<'_>) -> Result<bool> {
        self.given = 0;
        let Some(listing) = &mut self.listing else { return Ok(false) };
        let more = listing.fill(fd)?;
        if !more {
            self.listing = None;
        }
        Ok(more)
    }
}
