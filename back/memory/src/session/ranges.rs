//! File ranges: allocation, holes, copies.

use tombolo_core::fs::{AccessMask, AllocateMode, File, Ranges, Whence};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_mem::Buffer;

use super::{Session, View};
use crate::content::PAGE_BYTES;

impl Ranges for Session {
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        self.view().allocate(cx, file, offset, len, mode).into()
    }

    fn seek(&self, _cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64> {
        self.view().seek(file, offset, whence).into()
    }

    fn copy(
        &self,
        cx: &Ctx,
        from: File,
        from_offset: u64,
        to: File,
        to_offset: u64,
        len: u64,
    ) -> Answer<u64> {
        self.view().copy(cx, (from, from_offset), (to, to_offset), len).into()
    }
}

impl View<'_> {
    fn allocate(&mut self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Result<()> {
        let ino = self.check_opened_for(file, AccessMask::WRITE)?;
        if len == 0 {
            return Err(Error::InvalidArgument);
        }
        let keep_size = mode.contains(AllocateMode::KEEP_SIZE);
        let what = mode.difference(AllocateMode::KEEP_SIZE);
        let kills = self.kills_privileges(cx, false);
        let (content, space) = self.tree.content_mut(ino)?;
        match what {
            AllocateMode::PUNCH_HOLE if keep_size => content.punch(offset, len, space)?,
            AllocateMode::ZERO_RANGE => content.zero(offset, len, keep_size, space)?,
            AllocateMode::COLLAPSE_RANGE if !keep_size => content.collapse(offset, len, space)?,
            AllocateMode::INSERT_RANGE if !keep_size => content.insert(offset, len)?,
            // Nothing is ever shared, so unsharing is allocating.
            _ if what.is_empty() || what == AllocateMode::UNSHARE_RANGE => {
                content.allocate(offset, len, keep_size, space)?;
            }
            _ => return Err(Error::NotSupported),
        }
        self.data_changed(ino, kills)
    }

    fn seek(&mut self, file: File, offset: u64, whence: Whence) -> Result<u64> {
        let ino = self.opening(file)?.ino;
        let (content, _) = self.tree.content_mut(ino)?;
        match whence {
            Whence::Data => content.seek_data(offset),
            Whence::Hole => content.seek_hole(offset),
        }
    }

    fn copy(
        &mut self,
        cx: &Ctx,
        (from, from_offset): (File, u64),
        (to, to_offset): (File, u64),
        len: u64,
    ) -> Result<u64> {
        let source = self.check_opened_for(from, AccessMask::READ)?;
        let target = self.check_opened_for(to, AccessMask::WRITE)?;
        if self.opening(to)?.flags.contains(tombolo_core::fs::OpenFlags::APPEND) {
            return Err(Error::BadOpen);
        }
        let size = self.tree.content_mut(source)?.0.size();
        let len = len.min(size.saturating_sub(from_offset));
        self.tree.content_mut(target)?;
        let overlap =
            from_offset < to_offset.saturating_add(len) && to_offset < from_offset.saturating_add(len);
        if source == target && overlap {
            return Err(Error::InvalidArgument);
        }
        let buffer = Buffer::new(PAGE_BYTES as usize);
        let mut copied = 0;
        while copied < len {
            let piece = usize::try_from(len - copied).unwrap_or(usize::MAX).min(buffer.len());
            self.tree.content_mut(source)?.0.read(from_offset + copied, &buffer.sink(0..piece));
            let (content, space) = self.tree.content_mut(target)?;
            match content.write(to_offset.saturating_add(copied), &buffer.source(0..piece), space) {
                Ok(count) => copied += count as u64,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if copied > 0 {
            let kills = self.kills_privileges(cx, false);
            self.data_changed(target, kills)?;
        }
        self.tree.node_mut(source)?.update_atime();
        Ok(copied)
    }
}
