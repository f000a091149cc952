//! Listing directories.

use std::sync::{MutexGuard, PoisonError};

use tombolo_core::fs::{Cookie, DirEntry, DirPage, File, Name, NodeId, OpenFlags};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_sys::dir::{self};
use tombolo_sys::stat::S_IFDIR;

use crate::attr::file_type;
use crate::cursor::Cursor;
use crate::files::OpenFile;
use crate::finding::Finder;
use crate::options::Submounts;
use crate::session::{LocalSession, Session};

/// A page that is made at once has room for no more entries than this: names alone, and with attributes.
const AT_ONCE: (usize, usize) = (1024, 64);

impl LocalSession {
    pub(crate) fn list(&self, cx: &Ctx, file: File, cookie: Cookie, mut page: DirPage) -> Answer<DirPage> {
        let open = match self
            .0
            .files
            .find(file)
            .and_then(|open| open.require(OpenFlags::DIRECTORY).map(|()| open))
        {
            Ok(open) => open,
            Err(error) => return Answer::err(error),
        };
        let most = if page.wants_entries() { AT_ONCE.1 } else { AT_ONCE.0 };
        // A long page would keep the thread from everybody else, and many short ones cost the caller as many round trips.
        if self.is_quick(open.node)
            && page.entries_max() <= most
            && let Some(mut cursor) = open.cursor.as_ref().and_then(|cursor| cursor.try_lock().ok())
        {
            return self.now(|session| {
                session.fill(cx, &open, &mut cursor, cookie, &mut page, most)?;
                Ok(page)
            });
        }
        self.in_pool(cx, move |session, cx| {
            let mut cursor = lock(&open)?;
            session.fill(cx, &open, &mut cursor, cookie, &mut page, usize::MAX)?;
            drop(cursor);
            Ok(page)
        })
    }
}

impl Session {
    fn fill(
        &self,
        cx: &Ctx,
        open: &OpenFile,
        cursor: &mut Cursor,
        cookie: Cookie,
        page: &mut DirPage,
        most: usize,
    ) -> Result<()> {
        cursor.go_to(open.fd(), cookie)?;
        let mut finder = Finder::new(self, cx, open.node);
        let mut count = 0;
        while let Some(listing) = &cursor.listing {
            for entry in listing.entries().skip(cursor.given) {
                if count == most || !page.fits(entry.name.len()) {
                    return Ok(());
                }
                if self.add(&mut finder, open.node, &entry, page)? {
                    count += 1;
                }
                cursor.given += 1;
                cursor.next = Cookie(entry.next.0);
            }
            if !cursor.read(open.fd())? {
                break;
            }
        }
        page.set_end();
        Ok(())
    }

    /// Adds an entry to a page on which it fits, unless there is no such file after all; whether it did.
    fn add(
        &self,
        finder: &mut Finder<'_>,
        dir: NodeId,
        entry: &dir::Entry<'_>,
        page: &mut DirPage,
    ) -> Result<bool> {
        let mut line = DirEntry {
            name: entry.name,
            fileid: entry.inode,
            file_type: file_type(entry.kind),
            cookie: Cookie(entry.next.0),
            entry: None,
        };
        let Ok(name) = Name::new(entry.name) else {
            if dir == NodeId::ROOT && entry.name == b".." {
                // What lies above the export is nobody's business.
                line.fileid = self.export.root.identity.key.inode;
            }
            return Ok(page.push(line));
        };
        let hides = self.export.options.submounts == Submounts::Hide && entry.kind == S_IFDIR;
        if !page.wants_entries() && !hides {
            return Ok(page.push(line));
        }
        match finder.find(name) {
            Ok(found) if page.wants_entries() => {
                line.fileid = found.attr.fileid;
                line.entry = Some(&found);
                Ok(page.push(line))
            }
            Ok(found) => {
                self.forget_node(found.node, 1);
                Ok(page.push(line))
            }
            // Removed since, or a mount point that does not exist here.
            Err(Error::NotFound) => Ok(false),
            // It is there, but no more can be said of it.
            Err(_) => Ok(page.push(line)),
        }
    }
}

fn lock(open: &OpenFile) -> Result<MutexGuard<'_, Cursor>> {
    let cursor = open.cursor.as_ref().ok_or(Error::NotDirectory)?;
    Ok(cursor.lock().unwrap_or_else(PoisonError::into_inner))
}
