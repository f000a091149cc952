//! Reads and writes.

use std::sync::Arc;

use tombolo_core::fs::{Change, File, OpenFlags, PermissionCheck, ReadDone, WeakAttr, Write, Written};
use tombolo_core::{Answer, Ctx, Error, Result, Stability, Want, or_answer};
use tombolo_mem::{Buffer, Sink, Source};
use tombolo_sys::Errno;
use tombolo_sys::creds::WithoutSetId;
use tombolo_sys::open::disable_direct;
use tombolo_sys::rw::{self, TransferFlags};
use tombolo_sys::stat::{self, S_ISUGID};

use crate::acting::{Acting, dropping_set_id};
use crate::attr::attr_of;
use crate::files::OpenFile;
use crate::state::{LocalSession, Session};
use crate::window::ChangedFile;

/// Largest transfer on the calling thread (one or two tenths of a millisecond).
const INLINE_BYTES_MAX: usize = 1 << 20;

/// Opening flags that make I/O wait for a disk: uncached or stable.
pub(crate) const SLOW_FLAGS: OpenFlags = OpenFlags::DIRECT.union(OpenFlags::SYNC).union(OpenFlags::DATA_SYNC);

impl LocalSession {
    pub(crate) fn transfer_in(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        let open = or_answer!(self.opening(file, OpenFlags::READ));
        let mut done = 0;
        if into.len() <= INLINE_BYTES_MAX && !open.flags.contains(OpenFlags::DIRECT) {
            let read = || read_from_memory(&open, offset, &into);
            match self.0.reading(open.node, open.fd(), read) {
                Ok(Progress::Complete(answer)) => return Answer::ok(answer),
                Ok(Progress::Partial(count)) => done = count,
                Err(error) => return Answer::err(error),
            }
        }
        self.transfer_in_pool(cx, into.len(), move |session, _| {
            session.reading(open.node, open.fd(), || read_all(&open, offset, &into, done))
        })
    }

    pub(crate) fn transfer_out(&self, cx: &Ctx, file: File, how: Write, from: Source) -> Answer<Written> {
        let open = or_answer!(self.opening(file, OpenFlags::WRITE));
        let stable = how.stability != Stability::Unstable || open.flags.intersects(SLOW_FLAGS);
        // A file system in memory has no disk to wait for.
        let slow = (stable && !open.medium.memory) || !open.medium.local;
        if !slow && from.len() <= INLINE_BYTES_MAX && self.0.write_pace().is_quick() {
            return Answer::Done(self.0.write_pace().timed(|| self.0.write_all(cx, &open, &how, &from)));
        }
        self.transfer_in_pool(cx, from.len(), move |session, cx| {
            let write = || session.write_all(cx, &open, &how, &from);
            if slow { write() } else { session.write_pace().timed(write) }
        })
    }
}

/// Guard under which changes of data clear set-user-id and set-group-id.
#[derive(Debug, Default)]
pub(crate) struct Dropping {
    _acting: Option<Acting>,
    _without: Option<WithoutSetId>,
}

/// Result of reading from the page cache.
enum Progress {
    Complete(ReadDone),
    Partial(usize),
}

/// Reads cached data, without waiting for a disk other than that of swap space.
fn read_from_memory(open: &Arc<OpenFile>, offset: u64, into: &Sink) -> Result<Progress> {
    let flags = if open.medium.memory { TransferFlags::empty() } else { TransferFlags::NOWAIT };
    match rw::read(open.fd(), into, offset, flags) {
        Ok(count) if count == into.len() => Ok(Progress::Complete(ReadDone { count, eof: false })),
        // Short: the end of the file, or of the cached data.
        Ok(count) => {
            let end = offset.saturating_add(count as u64);
            let eof = end >= stat::stat(open.fd())?.size_bytes;
            Ok(if eof { Progress::Complete(ReadDone { count, eof }) } else { Progress::Partial(count) })
        }
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::FAULT) => Ok(Progress::Partial(0)),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads the remainder after the first `done` bytes.
fn read_all(open: &OpenFile, offset: u64, into: &Sink, mut done: usize) -> Result<ReadDone> {
    let mut rest = into.clone();
    rest.advance(done);
    while !rest.is_empty() {
        let at = offset.saturating_add(done as u64);
        match read_pinned(open, &rest, at) {
            Ok(0) => return Ok(ReadDone { count: done, eof: true }),
            Ok(count) => {
                done += count;
                rest.advance(count);
            }
            // The data read before the failure are returned; a read of the remainder gets the error. With
            // O_DIRECT the file may end at this point, inside of a block, from which no further read is
            // possible.
            Err(_) if done > 0 => {
                let eof = at >= stat::stat(open.fd())?.size_bytes;
                return Ok(ReadDone { count: done, eof });
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(ReadDone { count: done, eof: false })
}

impl Session {
    fn write_all(&self, cx: &Ctx, open: &OpenFile, how: &Write, from: &Source) -> Result<Written> {
        let wants = cx.want.contains(Want::CHANGE_ATTRS);
        let found = if wants || how.by_owner { stat::stat(open.fd()).ok() } else { None };
        if how.by_owner {
            let found = found.as_ref().ok_or(Error::WouldBlock)?;
            how.check_owner(cx, found.uid, found.links)?;
        }
        let before = found.filter(|_| wants).map(|found| WeakAttr::from(&attr_of(&found)));
        let count = {
            let _dropping = self.dropping_as_written(cx, open, how.kill_privileges)?;
            let _changing = self.changing([ChangedFile::Node(open.node)]);
            let written = write_out(open, how, from);
            self.notify(|notifier| match open.flags.contains(OpenFlags::APPEND) && !how.in_place {
                // The end of the file before the write is unknown.
                true => notifier.data(open.node, 0, u64::MAX),
                false => notifier.data(open.node, how.offset, from.len() as u64),
            });
            written?
        };
        let after =
            if wants { stat::stat(open.fd()).ok().map(|stat| self.attr(open.node, &stat)) } else { None };
        Ok(Written { count, stability: stability(open, how), file: Change { before, after } })
    }

    /// Prepares a change of a file's data, which clears set-user-id and set-group-id if requested, and for
    /// all users but the superuser if this back end checks permissions.
    pub(crate) fn dropping_as_written(&self, cx: &Ctx, open: &OpenFile, requested: bool) -> Result<Dropping> {
        let checks = self.checks == PermissionCheck::BackEnd && self.export.may_assume;
        let as_caller = checks && cx.identity.uid != 0;
        if !(requested || as_caller) || stat::stat(open.fd())?.mode & S_ISUGID == 0 {
            return Ok(Dropping::default());
        }
        // The thread acts as the caller, because the bits cleared depend on the writer's membership in the
        // file's group. Write permission was checked at the open.
        match as_caller {
            true => Ok(Dropping { _acting: Some(self.checked(cx)?), _without: None }),
            false => Ok(Dropping { _acting: None, _without: dropping_set_id(true)? }),
        }
    }
}

fn write_out(open: &OpenFile, how: &Write, from: &Source) -> Result<usize> {
    let mut flags = match how.stability {
        Stability::Unstable => TransferFlags::empty(),
        Stability::DataSync => TransferFlags::DSYNC,
        Stability::FileSync => TransferFlags::SYNC,
    };
    if how.in_place && open.flags.contains(OpenFlags::DIRECT) {
        // Pages of a mapping end with the file, but O_DIRECT takes whole blocks. Further writebacks may
        // follow, so O_DIRECT stays off.
        disable_direct(open.fd())?;
    }
    // APPEND is set for each write, not at the open: pages written back from a mapping keep their offset.
    flags.set(TransferFlags::APPEND, open.flags.contains(OpenFlags::APPEND) && !how.in_place);
    let count = write_pinned(open, from, how.offset, flags)?;
    if count == from.len() || count == 0 {
        return Ok(count);
    }
    let mut done = count;
    let mut rest = from.clone();
    rest.advance(count);
    while !rest.is_empty() {
        let at = how.offset.checked_add(done as u64).ok_or(Error::FileTooLarge)?;
        match write_pinned(open, &rest, at, flags) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                done += count;
                rest.advance(count);
            }
        }
    }
    Ok(done)
}

/// Returns the stability of written data: the requested one, or the opening's if that is stronger.
fn stability(open: &OpenFile, how: &Write) -> Stability {
    let by_opening = if open.flags.contains(OpenFlags::SYNC) {
        Stability::FileSync
    } else if open.flags.contains(OpenFlags::DATA_SYNC) {
        Stability::DataSync
    } else {
        Stability::Unstable
    };
    how.stability.max(by_opening)
}

// Memory that the kernel cannot pin (a PCI BAR, or a mapping of `/dev/mmapper`, in a serving guest): copies
// to and from it work, so transfers through the page cache do not return EFAULT. Transfers of files opened
// with O_DIRECT, and of files of an uncached FUSE mount, need pinned pages and return EFAULT. The data then
// pass through private memory, a piece at a time. Memory with a truncated backing file returns EFAULT too,
// and keeps returning it.

/// Maximum private memory of one transfer, while it runs.
const PIECE_BYTES: usize = 1 << 20;

/// Reads as [`rw::read`] does, also into memory that the kernel cannot pin. A short count does not mean the
/// end of the file.
fn read_pinned(open: &OpenFile, into: &Sink, offset: u64) -> tombolo_sys::Result<usize> {
    match rw::read(open.fd(), into, offset, TransferFlags::empty()) {
        Err(Errno::FAULT) if !into.is_poisoned() => {
            let piece = Buffer::new(into.len().min(PIECE_BYTES));
            let count = rw::read(open.fd(), &piece.sink(0..piece.len()), offset, TransferFlags::empty())?;
            piece.source(0..count).copy_to_sink(into);
            if into.is_poisoned() { Err(Errno::FAULT) } else { Ok(count) }
        }
        done => done,
    }
}

/// Writes as [`rw::write`] does, also from memory that the kernel cannot pin.
fn write_pinned(
    open: &OpenFile,
    from: &Source,
    offset: u64,
    flags: TransferFlags,
) -> tombolo_sys::Result<usize> {
    match rw::write(open.fd(), from, offset, flags) {
        Err(Errno::FAULT) if !from.is_poisoned() => {
            let piece = Buffer::new(from.len().min(PIECE_BYTES));
            from.copy_to_sink(&piece.sink(0..piece.len()));
            if from.is_poisoned() {
                return Err(Errno::FAULT);
            }
            rw::write(open.fd(), &piece.source(0..piece.len()), offset, flags)
        }
        done => done,
    }
}
