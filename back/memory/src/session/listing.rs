use tombolo_core::fs::{Cookie, DirEntry, DirPage, File, FileType};
use tombolo_core::{Error, Result};

use super::View;
use crate::directory::{COOKIE_DOT, COOKIE_DOT_DOT};

impl View<'_> {
    pub(super) fn readdir(&mut self, file: File, cookie: Cookie, mut page: DirPage) -> Result<DirPage> {
        let opening = self.opening(file)?;
        let node = self.tree.node(opening.ino)?;
        let parent = node.directory()?.parent();
        if node.nlink == 0 {
            return Err(Error::NotFound);
        }
        for (name, own, fileid) in [(&b"."[..], COOKIE_DOT, opening.ino), (b"..", COOKIE_DOT_DOT, parent)] {
            let file_type = Some(FileType::Directory);
            let entry = DirEntry { name, fileid: fileid.0, file_type, cookie: Cookie(own), entry: None };
            if cookie.0 < own && !page.push(entry) {
                return Ok(page);
            }
        }
        // The look-ups that the page counts change the tree, so each step finds its entry anew.
        let mut after = cookie.0.max(COOKIE_DOT_DOT);
        loop {
            let next = self.tree.node(opening.ino)?.directory()?.after(after).next();
            let Some((own, name, ino)) = next.map(|(own, name, ino)| (own, name.clone(), ino)) else { break };
            if !page.fits(name.len()) {
                return Ok(page);
            }
            let file_type = self.tree.file_type(ino);
            // A session that may know no more nodes still gets the names.
            let entry = if page.wants_entries() { self.remember(ino).ok() } else { None };
            let pushed = page.push(DirEntry {
                name: &name,
                fileid: ino.0,
                file_type,
                cookie: Cookie(own),
                entry: entry.as_ref(),
            });
            debug_assert!(pushed, "the page said that the entry fits");
            after = own;
        }
        page.set_end();
        Ok(page)
    }
}
