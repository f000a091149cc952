use tombolo_core::fs::{AccessMask, File, OpenFlags, ReadDone, Write, Written};
use tombolo_core::{Ctx, Error, Result, Stability};
use tombolo_mem::{Sink, Source};

use super::View;
use crate::node::{CAPABILITY, Kind};

impl View<'_> {
    pub(super) fn read(&mut self, file: File, offset: u64, into: &Sink) -> Result<ReadDone> {
        let opening = self.opening(file)?;
        let node = self.tree.node_mut(opening.ino)?;
        let Kind::File(content) = &node.kind else { return Err(Error::IsDirectory) };
        if !opening.flags.intersects(OpenFlags::READ | OpenFlags::EXECUTE) {
            return Err(Error::BadOpen);
        }
        let done = content.read(offset, into);
        if !opening.flags.contains(OpenFlags::NO_ACCESS_TIME) {
            node.touch_atime();
        }
        Ok(done)
    }

    pub(super) fn write(&mut self, cx: &Ctx, file: File, how: &Write, from: &Source) -> Result<Written> {
        let opening = self.opening(file)?;
        if !opening.flags.contains(OpenFlags::WRITE) {
            return Err(Error::BadOpen);
        }
        if how.by_owner && self.tree.node(opening.ino)?.attr(self.tree.fsid).uid != cx.identity.uid {
            return Err(Error::WouldBlock);
        }
        let before = self.before(cx, opening.ino);
        let kills = self.kills_privileges(cx, how.kill_privileges);
        let (content, space) = self.tree.content_mut(opening.ino)?;
        let appends = opening.flags.contains(OpenFlags::APPEND) && !how.in_place;
        let offset = if appends { content.size() } else { how.offset };
        let count = content.write(offset, from, space)?;
        if count > 0 {
            let node = self.tree.node_mut(opening.ino)?;
            node.touch_mtime();
            node.xattrs.remove(CAPABILITY);
            if let Some(writer) = kills {
                node.drop_privileges(writer);
            }
        }
        // Memory has no state beyond what is answered: every write is as stable as it will ever be.
        Ok(Written { count, stability: Stability::FileSync, file: self.change(opening.ino, before) })
    }

    /// The access that an opening gives.
    pub(super) fn check_opened_for(&self, file: File, mask: AccessMask) -> Result<crate::tree::Ino> {
        let opening = self.opening(file)?;
        let reads = !mask.contains(AccessMask::READ) || opening.flags.contains(OpenFlags::READ);
        let writes = !mask.contains(AccessMask::WRITE) || opening.flags.contains(OpenFlags::WRITE);
        if reads && writes { Ok(opening.ino) } else { Err(Error::BadOpen) }
    }
}
