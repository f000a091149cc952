//! Open files: data and durability.

use super::super::Coherence;
use super::super::body::{Body, has_data};
use super::super::exchange::Exchange;
use super::Call;
use super::dir::new_mode;
use tombolo_core::fs::{
    AllocateMode, Create, Created, Exclusive, File, LockFamily, LockOwner, LockRange, Name, NodeId,
    OpenFlags, OpenId, SyncScope, Whence, Write as HowToWrite, read_whole,
};
use tombolo_core::{Answer, Ctx, Error, Stability};
use tombolo_mem::Source;
use tombolo_wire_fuse::layout::open::{OpenInFlags, OpenOutFlags};
use tombolo_wire_fuse::layout::rw::WriteFlags;
use tombolo_wire_fuse::request::{self, CopyFileRange, Read, Release, Write};
use tombolo_wire_fuse::{self as wire, FileHandle, flags};

/// Translates `O_*` flags to the waist's.
fn open_flags(bits: u32, requested: OpenInFlags) -> OpenFlags {
    let access = match bits & flags::O_ACCMODE {
        flags::O_WRONLY => OpenFlags::WRITE,
        flags::O_RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::READ,
    };
    let mut how = access;
    how.set(OpenFlags::APPEND, bits & flags::O_APPEND != 0);
    how.set(OpenFlags::TRUNCATE, bits & flags::O_TRUNC != 0);
    how.set(OpenFlags::DIRECT, bits & flags::O_DIRECT != 0);
    how.set(OpenFlags::NONBLOCK, bits & flags::O_NONBLOCK != 0);
    how.set(OpenFlags::NO_ACCESS_TIME, bits & flags::O_NOATIME != 0);
    how.set(OpenFlags::EXECUTE, bits & flags::FMODE_EXEC != 0);
    how.set(OpenFlags::SYNC, bits & flags::O_SYNC == flags::O_SYNC);
    how.set(OpenFlags::DATA_SYNC, bits & flags::O_SYNC == flags::O_DSYNC);
    how.set(OpenFlags::KILL_PRIVILEGES, requested.contains(OpenInFlags::KILL_SUIDGID));
    how
}

pub(super) fn open(call: Call<'_>, open: &request::Open) -> Answer<Body> {
    let how = open_flags(open.flags, open.open_flags);
    let node = call.node;
    let negotiated = call.session.negotiated();
    let pages = call.session.pages.clone();
    let without_flush = if needs_no_flush(call, how) { OpenOutFlags::NOFLUSH } else { OpenOutFlags::empty() };
    let open_retry = call.session.open_retry.clone();
    let coherence = call.session.coherence_now();
    // For FS_IOC_GETFLAGS the kernel itself opens a file, with flags 0 (no O_LARGEFILE) and no path to
    // rewalk.
    let by_path = open.flags != 0;
    let attempt = open_retry.attempt(call.thread, node, how);
    let (callers, opener) = call.opener();
    let passthrough = call.session.passthrough().cloned();
    let answer = call.fs.open(call.ctx, node, how);
    answer.map(move |opened| {
        if by_path && open_retry.is_due(coherence, attempt, opened.attr.as_ref()) {
            return Body::RetryOpen(File { node, open: opened.open });
        }
        callers.opened(opened.open, opener);
        let (file, attr) = (File { node, open: opened.open }, opened.attr.as_ref());
        let fopen = pages.flags(coherence, node, how, attr, negotiated) | without_flush;
        let Some(passthrough) = passthrough else { return Body::Open(file, fopen, None) };
        let may_pass = coherence != Coherence::Strict && !attr.is_some_and(|attr| attr.volatile);
        let (fopen, backing) = passthrough.opened(file, how, attr, may_pass, fopen);
        Body::Open(file, fopen, backing)
    })
}

/// Returns `true` if closes need no FLUSH; see [`posix_locks`](super::super::posix_locks). With `Strict`, and
/// in a resumed session, every close is flushed.
fn needs_no_flush(call: Call<'_>, how: OpenFlags) -> bool {
    let relaxed = call.session.coherence_now() != Coherence::Strict;
    let is_free = call.session.posix_locks.is_free(call.node) && !call.session.is_resumed();
    relaxed && !how.contains(OpenFlags::WRITE) && is_free
}

fn how_to_create(how: &request::Create) -> Create {
    Create {
        mode: new_mode(how.mode, how.umask),
        flags: open_flags(how.flags, how.open_flags),
        exclusive: if how.flags & flags::O_EXCL != 0 { Exclusive::Yes } else { Exclusive::No },
    }
}

fn created(call: Call<'_>, how: OpenFlags, create: impl FnOnce(&Ctx) -> Answer<Created>) -> Answer<Body> {
    let negotiated = call.session.negotiated();
    let pages = call.session.pages.clone();
    let coherence = call.session.coherence_now();
    let (callers, opener) = call.opener();
    let (dir, (ctx, change)) = (call.node, call.dir_change());
    create(&ctx).map(move |created| {
        if let Some(change) = change {
            change.done(dir, created.dir.after);
        }
        callers.opened(created.open, opener);
        let attr = has_data(created.entry.attr.file_type).then_some(&created.entry.attr);
        let fopen = pages.flags(coherence, created.entry.node, how, attr, negotiated);
        Body::Created(created.entry, created.open, fopen)
    })
}

pub(super) fn create(call: Call<'_>, name: Name<'_>, how: &request::Create) -> Answer<Body> {
    let how = how_to_create(how);
    created(call, how.flags, |ctx| call.fs.create(ctx, call.node, name, &how))
}

pub(super) fn tmpfile(call: Call<'_>, how: &request::Create) -> Answer<Body> {
    let how = how_to_create(how);
    created(call, how.flags, |ctx| call.fs.create_unnamed(ctx, call.node, &how))
}

pub(super) fn read<E: Exchange>(call: Call<'_>, read: &Read, exchange: &mut E) -> Answer<Body> {
    let into = exchange.reply_space(read.size_bytes as usize);
    let room_bytes = into.len();
    // The kernel takes a short read for the end of the file, and its page cache fills the page with zeros.
    let fs = &call.session.file_system;
    let answer = read_whole(fs, call.ctx, call.file(read.handle), read.offset, into);
    answer.map(move |done| Body::Data(done.count.min(room_bytes)))
}

pub(super) fn write<E: Exchange>(call: Call<'_>, write: &Write, exchange: &mut E) -> Answer<Body> {
    let retainable = exchange.may_retain_payload(write.size_bytes as usize);
    let from = exchange.payload(write.size_bytes as usize);
    if from.len() != write.size_bytes as usize {
        return Answer::err(Error::InvalidArgument);
    }
    let stability = match write.flags & flags::O_SYNC {
        flags::O_SYNC => Stability::FileSync,
        flags::O_DSYNC => Stability::DataSync,
        _ => Stability::Unstable,
    };
    let kill_privileges = write.write_flags.contains(WriteFlags::KILL_SUIDGID);
    let in_place = write.write_flags.contains(WriteFlags::CACHE);
    let how = HowToWrite {
        offset: write.offset,
        stability,
        kill_privileges,
        in_place,
        retainable,
        by_owner: false,
    };
    let file = call.file(write.handle);
    let answer = if in_place {
        write_back(call, file, how, from)
    } else {
        call.fs.write(call.ctx, file, &how, from).map(|written| written.count)
    };
    answer.map(|count| Body::Written(u32::try_from(count).unwrap_or(u32::MAX)))
}

/// Writes all data of a page-cache write-back, or fails: the kernel ignores the count of a short write, and
/// the remaining data would be lost silently.
fn write_back(call: Call<'_>, file: File, mut how: HowToWrite, mut from: Source) -> Answer<usize> {
    let requested = from.len();
    loop {
        let remaining = from.len();
        let cut_short =
            move |count: usize| Error::io(format!("short write-back: {count} of {remaining} bytes"));
        match call.fs.write(call.ctx, file, &how, from.clone()) {
            Answer::Done(Ok(written)) if written.count >= remaining => return Answer::ok(requested),
            Answer::Done(Ok(written)) if written.count == 0 => return Answer::err(cut_short(0)),
            Answer::Done(Ok(written)) => {
                how.offset = how.offset.saturating_add(written.count as u64);
                from.advance(written.count);
            }
            Answer::Done(Err(error)) => return Answer::err(error),
            later => {
                return later.map_result(move |result| match result?.count {
                    count if count >= remaining => Ok(requested),
                    count => Err(cut_short(count)),
                });
            }
        }
    }
}

pub(super) fn release(call: Call<'_>, release: &Release) -> Answer<Body> {
    let file = call.file(release.handle);
    if let Some(locks) = call.fs.locks() {
        for owner in call.session.posix_locks.release(file) {
            // The kernel ignores the outcome of a RELEASE.
            drop(locks.unlock(call.ctx, file, LockFamily::Posix, LockRange::ALL, owner));
        }
    }
    call.fs.release(call.ctx, file);
    if let Some(passthrough) = call.session.passthrough() {
        passthrough.released(file.node);
    }
    call.session.callers.closed(file.open);
    Answer::ok(Body::Empty)
}

pub(super) fn flush(call: Call<'_>, handle: FileHandle, owner: wire::LockOwner) -> Answer<Body> {
    call.fs.flush(call.ctx, call.file(handle), LockOwner(owner.0)).map(|()| Body::Empty)
}

pub(super) fn fsync(call: Call<'_>, handle: FileHandle, data_only: bool) -> Answer<Body> {
    let what = if data_only { SyncScope::Data } else { SyncScope::All };
    call.fs.fsync(call.ctx, call.file(handle), what).map(|()| Body::Empty)
}

pub(super) fn fallocate(
    call: Call<'_>,
    handle: FileHandle,
    offset: u64,
    len: u64,
    bits: u32,
) -> Answer<Body> {
    let Some(ranges) = call.fs.ranges() else { return Answer::err(Error::NotSupported) };
    let supported = [
        (flags::FALLOC_FL_KEEP_SIZE, AllocateMode::KEEP_SIZE),
        (flags::FALLOC_FL_PUNCH_HOLE, AllocateMode::PUNCH_HOLE),
        (flags::FALLOC_FL_ZERO_RANGE, AllocateMode::ZERO_RANGE),
        (flags::FALLOC_FL_COLLAPSE_RANGE, AllocateMode::COLLAPSE_RANGE),
        (flags::FALLOC_FL_INSERT_RANGE, AllocateMode::INSERT_RANGE),
        (flags::FALLOC_FL_UNSHARE_RANGE, AllocateMode::UNSHARE_RANGE),
    ];
    let mut mode = AllocateMode::empty();
    let mut unknown = bits;
    for (bit, flag) in supported {
        if bits & bit != 0 {
            unknown &= !bit;
            mode |= flag;
        }
    }
    if unknown != 0 {
        return Answer::err(Error::NotSupported);
    }
    ranges.allocate(call.ctx, call.file(handle), offset, len, mode).map(|()| Body::Empty)
}

pub(super) fn lseek(call: Call<'_>, handle: FileHandle, offset: u64, whence: u32) -> Answer<Body> {
    // After ENOSYS the kernel treats the whole file as data.
    let Some(ranges) = call.fs.ranges() else { return Answer::err(Error::NotImplemented) };
    let whence = match whence {
        flags::SEEK_DATA => Whence::Data,
        flags::SEEK_HOLE => Whence::Hole,
        _ => return Answer::err(Error::InvalidArgument),
    };
    ranges.seek(call.ctx, call.file(handle), offset, whence).map(Body::Offset)
}

/// Maximum number of bytes of one COPY_FILE_RANGE, so that its reply fits 32 bits.
const COPY_BYTES_MAX: u64 = 0x7fff_f000;

pub(super) fn copy(call: Call<'_>, copy: &CopyFileRange, wide: bool) -> Answer<Body> {
    // After ENOSYS the kernel copies by reading and writing.
    let Some(ranges) = call.fs.ranges() else { return Answer::err(Error::NotImplemented) };
    if copy.flags != 0 {
        return Answer::err(Error::InvalidArgument);
    }
    let to = File { node: NodeId(copy.to_node.0), open: OpenId(copy.to.0) };
    let len = if wide { copy.len_bytes } else { copy.len_bytes.min(COPY_BYTES_MAX) };
    let answer = ranges.copy(call.ctx, call.file(copy.from), copy.from_offset, to, copy.to_offset, len);
    answer.map(move |bytes| match u32::try_from(bytes) {
        Ok(bytes) if !wide => Body::Written(bytes),
        _ => Body::Copied(bytes),
    })
}
