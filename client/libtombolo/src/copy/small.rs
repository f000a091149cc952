//! The copy of a file that is read and written in one piece.

use tombolo_core::Error;
use tombolo_core::fs::{Create, Exclusive, Mode, NewMode, OpenFlags, Write};

use crate::buffer_pool::Lease;
use crate::file::File;
use crate::node::Node;

use super::entry::{Entry, Trouble};
use super::event::Step;
use super::{PIECE_BYTES, Work, attributes};

/// Piece size for files that report size 0 but may have contents (proc(5)), in bytes.
const UNSAID_BYTES: usize = 16 << 10;

impl Work {
    /// Copies a file of at most one piece. A target that does not exist is created under its own name, and
    /// removed if writing it fails.
    pub(super) async fn small(&self, entry: &Entry, replaces: bool) -> Result<Node, Trouble> {
        let said = usize::try_from(entry.attr.size).unwrap_or(PIECE_BYTES);
        let size = if said == 0 { UNSAID_BYTES } else { said };
        let room = self.room(size).await;
        let source = entry.from.open(OpenFlags::READ).await.map_err(reading)?;
        let lease = self.buffers.lend(size);
        let read = source.read_at(0, lease.sink(0..size)).resolve().await.map_err(reading)?;
        let mode = attributes::first_mode(&self.options, &entry.attr);
        if !replaces {
            match create(entry, entry.name(), mode, Exclusive::Yes).await {
                Ok(target) => {
                    let filled = self.fill(entry, &source, &target, &lease, read.count).await;
                    if filled.is_err() && !is_only_attributes(&filled) {
                        entry.clean_up(entry.name()).await;
                    }
                    drop(room);
                    return filled.map(|()| target.node().clone());
                }
                // Another process has created the file since the target was examined; or this process has,
                // and the request was resent after its answer was lost.
                Err(Error::Exists) => {}
                Err(error) => return Err((Step::Make, error)),
            }
        }
        let (part, _claim) = entry.part(self)?;
        let target =
            create(entry, part.as_name(), mode, Exclusive::No).await.map_err(|error| (Step::Make, error))?;
        let filled = self.fill(entry, &source, &target, &lease, read.count).await;
        let complete = filled.is_ok() || is_only_attributes(&filled);
        let renamed = if complete { entry.rename(&part).await } else { Ok(()) };
        if !complete || renamed.is_err() {
            entry.clean_up(part.as_name()).await;
        }
        filled.and(renamed).map(|()| target.node().clone())
    }

    /// Writes the data read, continues to the end of a file that reports size 0, and sets the attributes.
    async fn fill(
        &self,
        entry: &Entry,
        source: &File,
        target: &File,
        lease: &Lease,
        count: usize,
    ) -> Result<(), Trouble> {
        let how = Write { stability: self.options.small_files, retainable: true, ..Write::default() };
        write_all(target, how, lease, 0..count).await?;
        self.counters.wrote(count);
        if entry.attr.size == 0 && count > 0 {
            self.rest(source, target, count as u64).await?;
        }
        if count > 0 {
            target.flush().resolve().await.map_err(writing)?;
        }
        let Some(made) = target.attr_found() else { return Ok(()) };
        match attributes::to_preserve(self, &entry.attr, made, target.node().tree()) {
            Some(set) => attributes::apply(self, set, |set| target.set_attr(set)).await,
            None => Ok(()),
        }
    }

    /// Copies the remainder of a file from `offset` to its end.
    async fn rest(&self, source: &File, target: &File, mut offset: u64) -> Result<(), Trouble> {
        loop {
            let lease = self.buffers.lend(UNSAID_BYTES);
            let into = lease.sink(0..UNSAID_BYTES);
            let count = source.read_at(offset, into).resolve().await.map_err(reading)?.count;
            if count == 0 {
                return Ok(());
            }
            let how = Write { offset, retainable: true, ..Write::default() };
            write_all(target, how, &lease, 0..count).await?;
            self.counters.wrote(count);
            offset += count as u64;
        }
    }
}

/// Writes a range of a buffer, in as many writes as needed.
pub(super) async fn write_all(
    target: &File,
    how: Write,
    lease: &Lease,
    range: std::ops::Range<usize>,
) -> Result<(), Trouble> {
    let (mut at, mut offset) = (range.start, how.offset);
    while at < range.end {
        let how = Write { offset, ..how };
        let written = target.write_at(&how, lease.source(at..range.end)).resolve().await.map_err(writing)?;
        if written.count == 0 {
            return Err(writing(Error::io("a write stored no data")));
        }
        at += written.count;
        offset += written.count as u64;
    }
    Ok(())
}

pub(super) async fn create(
    entry: &Entry,
    name: tombolo_core::fs::Name<'_>,
    mode: Mode,
    exclusive: Exclusive,
) -> Result<File, Error> {
    let dir = entry.dir().map_err(|(_, error)| error)?;
    let truncates = if exclusive == Exclusive::No { OpenFlags::TRUNCATE } else { OpenFlags::empty() };
    let mode = NewMode { mode, umask: dir.tree().umask() };
    dir.create(name, Create { mode, flags: OpenFlags::WRITE | truncates, exclusive }).await
}

fn is_only_attributes(outcome: &Result<(), Trouble>) -> bool {
    matches!(outcome, Err((Step::Attributes | Step::Owner, _)))
}

pub(super) fn reading(error: Error) -> Trouble {
    (Step::Read, error)
}

pub(super) fn writing(error: Error) -> Trouble {
    (Step::Write, error)
}
