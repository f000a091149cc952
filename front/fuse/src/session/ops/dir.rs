//! Directories: making, removing, renaming and listing names.

use super::super::body::Body;
use super::super::coherence::PageCache;
use super::super::dir_attrs::DirChange;
use super::{BODY_BYTES, Call, take_page};
use tombolo_core::fs::{
    Change, Cookie, DirBudget, DirPage, File, Made, Mode, Name, NewMode, NodeId, OpenFlags, RenameFlags,
};
use tombolo_core::{Answer, Ctx, Error, or_answer};
use tombolo_wire_fuse::dirent::{DIRENT_ALIGN, DIRENT_BYTES, DIRENT_PLUS_BYTES};
use tombolo_wire_fuse::request::Read;
use tombolo_wire_fuse::{attr, flags};

pub(super) fn new_mode(mode: u32, umask: u32) -> NewMode {
    NewMode { mode: Mode::new(mode), umask: Mode::new(umask & 0o777) }
}

/// Ends a change of names in `dir`, and records the attributes that `dir` then has.
fn changed(change: Option<DirChange>, dir: NodeId, how: &Change) {
    if let Some(change) = change {
        change.done(dir, how.after);
    }
}

fn made(call: Call<'_>, make: impl FnOnce(&Ctx) -> Answer<Made>) -> Answer<Body> {
    let (dir, (ctx, change)) = (call.node, call.dir_change());
    make(&ctx).map(move |made| {
        changed(change, dir, &made.dir);
        Body::Entry(made.entry)
    })
}

fn removed(call: Call<'_>, remove: impl FnOnce(&Ctx) -> Answer<Change>) -> Answer<Body> {
    let (dir, (ctx, change)) = (call.node, call.dir_change());
    remove(&ctx).map(move |how| {
        changed(change, dir, &how);
        Body::Empty
    })
}

pub(super) fn mkdir(call: Call<'_>, name: Name<'_>, mode: u32, umask: u32) -> Answer<Body> {
    made(call, |ctx| call.fs.mkdir(ctx, call.node, name, new_mode(mode, umask)))
}

pub(super) fn symlink(call: Call<'_>, name: Name<'_>, target: &[u8]) -> Answer<Body> {
    made(call, |ctx| call.fs.symlink(ctx, call.node, name, target))
}

pub(super) fn mknod(call: Call<'_>, name: Name<'_>, mode: u32, rdev: u32, umask: u32) -> Answer<Body> {
    let file_type = or_answer!(attr::file_type(mode));
    let rdev = attr::device_from_wire(rdev);
    made(call, |ctx| call.fs.mknod(ctx, call.node, name, file_type, new_mode(mode, umask), rdev))
}

pub(super) fn link(call: Call<'_>, node: NodeId, name: Name<'_>) -> Answer<Body> {
    made(call, |ctx| call.fs.link(ctx, node, call.node, name))
}

pub(super) fn unlink(call: Call<'_>, name: Name<'_>) -> Answer<Body> {
    removed(call, |ctx| call.fs.unlink(ctx, call.node, name))
}

pub(super) fn rmdir(call: Call<'_>, name: Name<'_>) -> Answer<Body> {
    removed(call, |ctx| call.fs.rmdir(ctx, call.node, name))
}

pub(super) fn rename(
    call: Call<'_>,
    name: Name<'_>,
    new_parent: NodeId,
    new_name: Name<'_>,
    bits: u32,
) -> Answer<Body> {
    let supported = [
        (flags::RENAME_NOREPLACE, RenameFlags::NO_REPLACE),
        (flags::RENAME_EXCHANGE, RenameFlags::EXCHANGE),
        (flags::RENAME_WHITEOUT, RenameFlags::WHITEOUT),
    ];
    let mut unknown = bits;
    let mut how = RenameFlags::empty();
    for (bit, flag) in supported {
        if bits & bit != 0 {
            unknown &= !bit;
            how |= flag;
        }
    }
    if unknown != 0 {
        return Answer::err(Error::InvalidArgument);
    }
    let (ctx, change) = call.dir_change();
    call.fs.rename(&ctx, call.node, name, new_parent, new_name, how).map(move |renamed| {
        changed(change, new_parent, &renamed.to_dir);
        Body::Empty
    })
}

pub(super) fn opendir(call: Call<'_>) -> Answer<Body> {
    let node = call.node;
    let fopen = PageCache::directory_flags(call.session.coherence_now());
    let (callers, opener) = call.opener();
    let answer = call.fs.open(call.ctx, node, OpenFlags::READ | OpenFlags::DIRECTORY);
    answer.map(move |opened| {
        callers.opened(opened.open, opener);
        Body::Open(File { node, open: opened.open }, fopen, None)
    })
}

pub(super) fn readdir(call: Call<'_>, read: &Read, plus: bool, page: &mut Option<DirPage>) -> Answer<Body> {
    let budget = DirBudget {
        size_bytes: (read.size_bytes as usize).min(BODY_BYTES),
        entry_bytes: if plus { DIRENT_PLUS_BYTES } else { DIRENT_BYTES },
        align: DIRENT_ALIGN,
        plus,
    };
    let page = take_page(page, budget);
    // Reading may set the directory's access time.
    let change = call.session.dir_change(Some(call.node));
    let answer = call.fs.readdir(call.ctx, call.file(read.handle), Cookie(read.offset), page);
    answer.map_result(move |result| {
        drop(change);
        let page = result?;
        if page.is_empty() && !page.is_end() {
            // The kernel would take an empty listing for the end of the directory.
            return Err(Error::InvalidArgument);
        }
        Ok(Body::Page { page, plus })
    })
}
