//! Reading and writing.

use tombolo_core::fs::{File, FileType, OpenFlags, ReadDone, Write, Written};
use tombolo_core::{Error, Result, Stability};
use tombolo_mem::{Sink, Source};
use tombolo_wire_nfs3::attr;

use super::view::View;

impl View<'_> {
    /// Reads until the sink is full or the file ends, in as many calls as the server wants.
    pub fn read(&self, file: File, offset: u64, into: &Sink) -> Result<ReadDone> {
        let opening = self.fs.openings.made_for(file, OpenFlags::READ)?;
        let mut count = 0;
        loop {
            let want = u32::try_from(into.len() - count).unwrap_or(u32::MAX).min(self.fs.read_max);
            let at = offset.saturating_add(count as u64);
            let piece = self.ask(|nfs| nfs.read(&opening.handle, at, want))?;
            if piece.bytes.len() > want as usize {
                return Err(Error::io("the server sent more than was asked for"));
            }
            count += into.write_at(count, &piece.bytes);
            if piece.eof || count == into.len() {
                return Ok(ReadDone { count, eof: piece.eof });
            }
            if piece.bytes.is_empty() {
                return Err(Error::io("the server read nothing, and the file does not end"));
            }
        }
    }

    /// Writes once. Appending is a look and a write, as every client does it: others may come in between.
    pub fn write(&self, file: File, how: &Write, from: &Source) -> Result<Written> {
        let opening = self.fs.openings.made_for(file, OpenFlags::WRITE)?;
        let flags = opening.flags;
        let offset = match flags.contains(OpenFlags::APPEND) && !how.in_place {
            true => self.attr(&opening.handle)?.size,
            false => how.offset,
        };
        let asked = if flags.contains(OpenFlags::SYNC) {
            Stability::FileSync
        } else if flags.contains(OpenFlags::DATA_SYNC) {
            how.stability.max(Stability::DataSync)
        } else {
            how.stability
        };
        let data = from.to_vec(self.fs.write_max as usize);
        let ok = self.ask(|nfs| nfs.write(&opening.handle, offset, &data, attr::stable_how(asked)))?;
        let stability = attr::stability(ok.committed);
        Ok(Written { count: ok.count as usize, stability, file: self.change(&ok.file_wcc) })
    }

    /// COMMIT of all of a file. A directory is stable as soon as a change is answered (RFC 1813 §4.8).
    pub fn sync(&self, file: File) -> Result<()> {
        let opening = self.fs.openings.of(file)?;
        if self.attr(&opening.handle)?.file_type != FileType::Regular {
            return Ok(());
        }
        self.ask(|nfs| nfs.commit(&opening.handle, 0, 0)).map(|_| ())
    }
}
