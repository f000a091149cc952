//! File ranges: allocation, holes, copies.

use tombolo_core::fs::{AllocateMode, File, OpenFlags, Ranges, Whence};
use tombolo_core::{Answer, Ctx, Error, Result, or_answer};
use tombolo_sys::ranges::{self, AllocateMode as SysMode};
use tombolo_sys::rw;

use crate::files::OpenFile;
use crate::state::{LocalSession, Session};
use crate::transfer::SLOW_FLAGS;
use crate::window::ChangedFile;

/// Maximum length of one copy (1 GiB), so that no request occupies a thread of the pool for long; the caller
/// continues.
const COPY_MAX_BYTES: u64 = 1 << 30;

/// Largest copy on the calling thread: about the cost of two thread switches.
const COPY_INLINE_BYTES_MAX: u64 = 128 << 10;

impl Ranges for LocalSession {
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        let open = or_answer!(self.opening(file, OpenFlags::WRITE));
        self.in_pool(cx, move |session, cx| {
            let _dropping = session.dropping_as_written(cx, &open, false)?;
            let _changing = session.changing([ChangedFile::Node(open.node)]);
            let allocated = ranges::allocate(open.fd(), sys_mode(mode), offset, len);
            // Later bytes may have moved.
            session.notify(|notifier| notifier.data(open.node, offset, u64::MAX));
            Ok(allocated?)
        })
    }

    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64> {
        let open = or_answer!(self.opening(file, OpenFlags::empty()));
        let node = open.node;
        let seek = move || {
            Ok(match whence {
                Whence::Data => ranges::next_data(open.fd(), offset),
                Whence::Hole => ranges::next_hole(open.fd(), offset),
            }?)
        };
        self.dispatch(cx, node, move |_, _| seek())
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
        let from = or_answer!(self.opening(from, OpenFlags::READ));
        let to = or_answer!(self.opening(to, OpenFlags::WRITE));
        // The destination offset would be ambiguous (copy_file_range(2)).
        if to.flags.contains(OpenFlags::APPEND) {
            return Answer::err(Error::BadOpen);
        }
        let piece = Piece { from_offset, to_offset, len };
        if piece.can_copy_inline(&from, &to) && self.0.write_pace().is_quick() {
            return Answer::Done(self.0.write_pace().timed(|| piece.copy(&self.0, cx, &from, &to)));
        }
        self.in_pool(cx, move |session, cx| piece.copy(session, cx, &from, &to))
    }
}

/// A part of a file to be copied, and its destination.
struct Piece {
    from_offset: u64,
    to_offset: u64,
    len: u64,
}

impl Piece {
    /// Returns `true` if the copy presumably does not wait for a disk.
    fn can_copy_inline(&self, from: &OpenFile, to: &OpenFile) -> bool {
        // `len` may exceed the source, at whose end the kernel cuts it (generic_copy_file_checks in Linux).
        self.len <= COPY_INLINE_BYTES_MAX
            && from.medium.plain_copies
            && to.medium.plain_copies
            && !(from.flags | to.flags).intersects(SLOW_FLAGS)
            && (from.medium.memory || rw::is_in_memory(from.fd(), self.from_offset, self.len as usize))
    }

    fn copy(&self, session: &Session, cx: &Ctx, from: &OpenFile, to: &OpenFile) -> Result<u64> {
        let _dropping = session.dropping_as_written(cx, to, false)?;
        let len = usize::try_from(self.len.min(COPY_MAX_BYTES)).map_err(|_| Error::InvalidArgument)?;
        let _changing = session.changing([ChangedFile::Node(to.node)]);
        let copied = session.reading(from.node, from.fd(), || {
            ranges::copy(from.fd(), self.from_offset, to.fd(), self.to_offset, len)
        });
        session.notify(|notifier| notifier.data(to.node, self.to_offset, len as u64));
        Ok(copied? as u64)
    }
}

fn sys_mode(mode: AllocateMode) -> SysMode {
    let table = [
        (AllocateMode::KEEP_SIZE, SysMode::KEEP_SIZE),
        (AllocateMode::PUNCH_HOLE, SysMode::PUNCH_HOLE),
        (AllocateMode::ZERO_RANGE, SysMode::ZERO_RANGE),
        (AllocateMode::COLLAPSE_RANGE, SysMode::COLLAPSE_RANGE),
        (AllocateMode::INSERT_RANGE, SysMode::INSERT_RANGE),
        (AllocateMode::UNSHARE_RANGE, SysMode::UNSHARE_RANGE),
    ];
    table.iter().filter(|(flag, _)| mode.contains(*flag)).map(|&(_, means)| means).collect()
}
