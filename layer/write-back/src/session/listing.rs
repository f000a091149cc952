//! Directory listing: unchanged names at the cache's positions, then changed ones, by a hash of the name.
//! Positions do not depend on state that a restart would lose.

use tombolo_core::fs::{Cookie, DirEntry, DirPage, Entry, File, FileType, Name, NameBuf, NodeId, OpenFlags};
use tombolo_core::{Error, Identity, Result};

use super::{Opening, View, below_cx};
use crate::below::list;
use crate::tree::{Target, is_hidden};

/// Lower bound of the cookies of changed names, above all cookies of the cache.
const CHANGED: u64 = 1 << 62;

impl View {
    /// Fails with `NotEmpty` unless a directory is empty.
    pub(super) async fn check_empty(&self, dir: NodeId) -> Result<()> {
        let below = {
            let tree = self.shared().tree();
            let mut here = tree.names.get(&dir).into_iter().flatten();
            if here.any(|(_, place)| place.local.is_some()) {
                return Err(Error::NotEmpty);
            }
            tree.below(dir)
        };
        let Some(node) = below else { return Ok(()) };
        let (fs, cx) = (&self.shared().below, below_cx(&self.cx, Identity::ROOT));
        let is_shown = |entry: DirEntry<'_>| {
            self.is_shown_from_below(dir, entry.name) && !matches!(entry.name, b"." | b"..")
        };
        let mut is_empty = true;
        let looks_on = |page: &DirPage| {
            is_empty = !page.iter().any(is_shown);
            is_empty
        };
        list(&**fs, &cx, node, looks_on).await?;
        if is_empty { Ok(()) } else { Err(Error::NotEmpty) }
    }

    pub(super) async fn readdir(self, file: File, cookie: Cookie, mut page: DirPage) -> Result<DirPage> {
        let opening = self.session.opened_for(file, OpenFlags::DIRECTORY)?;
        if cookie.0 < CHANGED {
            let is_below = self.shared().tree().below(opening.node).is_some();
            let is_full = match is_below {
                true => self.list_below(&opening, cookie, &mut page).await?,
                false => !self.push_dots(opening.node, cookie, &mut page).await?,
            };
            if is_full {
                return Ok(page);
            }
        }
        self.list_changed(opening.node, cookie.0.max(CHANGED), &mut page).await?;
        Ok(page)
    }

    /// Adds unchanged names. Returns `false` once the cache has listed all of them; `true` if the page is
    /// full, or the cache has returned an empty page that is not the last one.
    async fn list_below(&self, opening: &Opening, mut cookie: Cookie, page: &mut DirPage) -> Result<bool> {
        let below = self.opened_below(opening).await?;
        let (fs, cx) = (&self.shared().below, self.below_cx());
        let mut part = DirPage::new(page.budget());
        loop {
            part.reset(page.budget());
            part = fs.readdir(&cx, below, cookie, part).resolve().await?;
            for listed in part.iter() {
                cookie = listed.cookie;
                let is_dot = matches!(listed.name, b"." | b"..");
                if !is_dot && !self.is_shown_from_below(opening.node, listed.name) {
                    if let Some(entry) = listed.entry {
                        fs.forget(&cx, &[(entry.node, 1)]);
                    }
                    continue;
                }
                if listed.cookie.0 >= CHANGED {
                    return Err(Error::BadCookie);
                }
                let mut entry = None;
                if let Some(found) = listed.entry {
                    fs.forget(&cx, &[(found.node, 1)]);
                    let id = self.shared().tree().local_id(found.node);
                    entry = Some(Entry { node: id, attr: self.attr(id).await? });
                }
                let fileid = match listed.name {
                    b"." => opening.node.0,
                    b".." => self.parent_of(opening.node).await?.0,
                    _ => self.shared().tree().local_id(NodeId(listed.fileid)).0,
                };
                if !page.push(DirEntry { fileid, entry: entry.as_ref(), ..listed }) {
                    return Ok(true);
                }
            }
            if part.is_end() {
                return Ok(false);
            }
            if part.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Adds changed names, and marks the end of the listing once all are added.
    async fn list_changed(&self, dir: NodeId, after: u64, page: &mut DirPage) -> Result<()> {
        let mut changed: Vec<(u64, NameBuf, Target)> = {
            let tree = self.shared().tree();
            let names = tree.names.get(&dir).into_iter().flatten();
            let shown = names.filter_map(|(name, place)| Some((place_of(name), name.clone(), place.local?)));
            shown.filter(|(place, ..)| *place > after).collect()
        };
        changed.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        for (place, name, target) in changed {
            let entry = match page.wants_entries() {
                true => self.attr(target.node).await.ok().map(|attr| Entry { node: target.node, attr }),
                false => None,
            };
            let listed = DirEntry {
                name: name.as_name().as_bytes(),
                fileid: target.node.0,
                file_type: Some(target.file_type),
                cookie: Cookie(place),
                entry: entry.as_ref(),
            };
            if !page.push(listed) {
                return Ok(());
            }
        }
        page.set_end();
        Ok(())
    }

    /// Adds `.` and `..` of a directory that the origin lacks. Returns `true` if they fit.
    async fn push_dots(&self, dir: NodeId, cookie: Cookie, page: &mut DirPage) -> Result<bool> {
        let parent = self.parent_of(dir).await?;
        for (place, name, id) in [(1, &b"."[..], dir), (2, b"..", parent)] {
            let file_type = Some(FileType::Directory);
            let dot = DirEntry { name, fileid: id.0, file_type, cookie: Cookie(place), entry: None };
            if place > cookie.0 && !page.push(dot) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns `true` if a name listed by the cache is shown at its position: it has no local record and is
    /// not hidden.
    fn is_shown_from_below(&self, dir: NodeId, name: &[u8]) -> bool {
        let Ok(name) = Name::new(name) else { return true };
        let name = name.to_owned();
        !is_hidden(&name) && self.shared().tree().place(dir, &name).is_none()
    }
}

/// Returns the cookie of a changed name: FNV-1a, reduced to the free bits.
fn place_of(name: &NameBuf) -> u64 {
    let hash = name.as_name().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    CHANGED | (hash >> 2).max(1)
}
