//! Writes to the local disk and the journal.

use std::sync::Arc;

use tombolo_core::fs::{File, OpenFlags, Write, Written};
use tombolo_core::{Error, Result, Stability};
use tombolo_mem::Source;

use super::View;
use super::attributes::drop_privileges;
use crate::data_file::DataFile;
use crate::sums::Blocks;

/// Maximum length of a write stored in the journal itself, where one flush makes rows and data stable.
const JOURNALED_BYTES_MAX: usize = 16 << 10;

/// Maximum length of a write by the calling thread; longer ones would delay others.
const AT_ONCE_BYTES_MAX: usize = 1 << 20;

impl View {
    pub(super) async fn write(self, file: File, how: Write, from: Source) -> Result<Written> {
        let opening = self.session.opened_for(file, OpenFlags::WRITE)?;
        let (id, len) = (opening.node, from.len() as u64);
        if len == 0 {
            let attr = self.attr(id).await?;
            return Ok(Written { count: 0, stability: Stability::FileSync, file: self.told(&attr, attr) });
        }
        self.shared().wait_for_room(len).await?;
        let appends = opening.flags.contains(OpenFlags::APPEND) && !how.in_place;
        let stability = match () {
            () if opening.flags.contains(OpenFlags::SYNC) => Stability::FileSync,
            () if opening.flags.contains(OpenFlags::DATA_SYNC) => how.stability.max(Stability::DataSync),
            () => how.stability,
        };
        let _alone = match appends {
            true => Some(self.shared().append_alone(id).await),
            false => None,
        };
        let (change, ticket) = loop {
            let epoch = self.shared().tree().epoch;
            let attr = self.attr(id).await?;
            let _inside = self.shared().gate.enter().await;
            let begun = {
                let mut tree = self.shared().tree();
                match tree.epoch == epoch {
                    false => None,
                    true => {
                        let size = tree.touch(id, &attr).attr.size;
                        let offset = if appends { size } else { how.offset };
                        let file = tree.top_layer(id).ok_or(Error::NoSpace)?.file.clone();
                        Some((offset, file))
                    }
                }
            };
            let Some((offset, data)) = begun else { continue };
            let end = offset.checked_add(len).filter(|end| *end <= self.session.profile.file_size_max);
            let end = end.ok_or(Error::FileTooLarge)?;
            // A change that would be refused later must not write a byte.
            self.shared().journal.check()?;
            self.to_disk(data.clone(), offset, from.clone()).await?;
            let journaled = (from.len() <= JOURNALED_BYTES_MAX).then(|| (offset, from.to_vec(from.len())));
            let (change, ticket) = self.shared().change(|tree| {
                // A conflict found meanwhile has moved the data to a copy.
                if tree.top_file(id).is_none_or(|top| top.generation != data.generation) {
                    return Ok(None);
                }
                let before = tree.touch(id, &attr).attr;
                if appends && before.size != offset {
                    return Ok(None);
                }
                let top = tree.top_layer(id).ok_or(Error::NoSpace)?;
                let delta = top.extents.insert(offset..end);
                let blocks = Blocks::of(&data, &top.extents, &(offset..end));
                let added = delta.added.max(0).cast_unsigned();
                tree.record_write(&data, (blocks, delta), journaled);
                let node = tree.touch(id, &attr);
                node.attr.size = node.attr.size.max(end);
                node.attr.blocks += added.div_ceil(512);
                node.touch_mtime(&self.cx.identity);
                node.drop_capability();
                if how.kill_privileges || !self.cx.identity.is_root() {
                    drop_privileges(node, Some(&self.cx.identity));
                }
                Ok(Some(self.told(&before, node.attr)))
            })?;
            if let Some(change) = change {
                break (change, ticket);
            }
        };
        if stability >= Stability::DataSync {
            self.shared().journal.stable(ticket).await?;
        }
        Ok(Written { count: len as usize, stability, file: change })
    }

    /// Writes to the local disk: on the calling thread as long as that has been fast, because two thread
    /// switches cost more than a small write.
    async fn to_disk(&self, data: Arc<DataFile>, offset: u64, from: Source) -> Result<()> {
        let shared = self.shared();
        if from.len() <= AT_ONCE_BYTES_MAX && shared.write_pace.is_quick() {
            return shared.write_pace.timed(|| data.write(offset, from));
        }
        let session = self.session.clone();
        shared.in_pool(move || session.shared.write_pace.timed(|| data.write(offset, from))).await
    }

    /// Makes all changes so far stable on the local disk.
    pub(super) async fn sync(self) -> Result<()> {
        self.shared().journal.all_stable().await
    }
}
