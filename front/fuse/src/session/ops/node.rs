//! Nodes: look-up, forgetting, attributes.

use super::super::body::Body;
use super::Call;
use tombolo_core::fs::{AccessMask, Name, NodeId};
use tombolo_core::{Answer, Error};
use tombolo_wire_fuse::request::{Forgets, Setattr};
use tombolo_wire_fuse::{FileHandle, attr};

pub(super) fn lookup(call: Call<'_>, name: Name<'_>) -> Answer<Body> {
    let answer = call.fs.lookup(call.ctx, call.node, name);
    let keep_absence = call.session.absence().is_some();
    answer.map_result(move |result| match result {
        Ok(entry) => Ok(Body::Entry(entry)),
        Err(Error::NotFound) if keep_absence => Ok(Body::NoEntry),
        Err(error) => Err(error),
    })
}

/// Looks up a forgotten node by the number in the kernel's file handle (open_by_handle_at(2)).
pub(super) fn lookup_self(call: Call<'_>) -> Answer<Body> {
    let Some(handles) = call.fs.persistent_handles() else { return Answer::err(Error::Stale) };
    handles.node_by_number(call.ctx, call.node).map(Body::Entry)
}

/// Looks up the parent directory of a node found by handle.
pub(super) fn parent(call: Call<'_>) -> Answer<Body> {
    let Some(handles) = call.fs.persistent_handles() else { return Answer::err(Error::Stale) };
    handles.parent(call.ctx, call.node).map(Body::Entry)
}

pub(super) fn forget(call: Call<'_>, count: u64) -> Answer<Body> {
    call.session.forget(call.node, count);
    call.fs.forget(call.ctx, &[(call.node, count)]);
    Answer::ok(Body::Silent)
}

/// Maximum number of forgets passed to the file system together.
const FORGETS: usize = 64;

pub(super) fn batch_forget(call: Call<'_>, forgets: Forgets<'_>) -> Answer<Body> {
    let mut batch = [(NodeId(0), 0); FORGETS];
    let mut forgets = forgets.iter().map(|(node, count)| (NodeId(node.0), count)).peekable();
    while forgets.peek().is_some() {
        let mut len = 0;
        for (place, (node, count)) in batch.iter_mut().zip(&mut forgets) {
            call.session.forget(node, count);
            *place = (node, count);
            len += 1;
        }
        call.fs.forget(call.ctx, batch.get(..len).unwrap_or_default());
    }
    Answer::ok(Body::Silent)
}

pub(super) fn getattr(call: Call<'_>, handle: Option<FileHandle>) -> Answer<Body> {
    if let Some(attr) = call.session.dir_attr(call.node) {
        return Answer::ok(Body::Attr(attr));
    }
    let file = handle.map(|handle| call.file(handle));
    call.fs.getattr(call.ctx, call.node, file).map(Body::Attr)
}

pub(super) fn statx(call: Call<'_>, handle: Option<FileHandle>) -> Answer<Body> {
    let file = handle.map(|handle| call.file(handle));
    call.fs.getattr(call.ctx, call.node, file).map(Body::Statx)
}

pub(super) fn setattr(call: Call<'_>, set: &Setattr) -> Answer<Body> {
    let file = set.handle.map(|handle| call.file(handle));
    let what = attr::set_attr(set.valid, &set.fields);
    let change = call.session.dir_change(Some(call.node));
    call.fs.setattr(call.ctx, call.node, file, &what).map(move |(attr, _)| {
        drop(change);
        Body::Attr(attr)
    })
}

pub(super) fn access(call: Call<'_>, mask: u32) -> Answer<Body> {
    // `R_OK`, `W_OK` and `X_OK` have the bits of the waist's mask.
    let mask = AccessMask::from_bits_truncate((mask & 0o7) as u8);
    call.fs.access(call.ctx, call.node, mask).map(|()| Body::Empty)
}

pub(super) fn readlink(call: Call<'_>) -> Answer<Body> {
    call.fs.readlink(call.ctx, call.node).map(Body::Bytes)
}

pub(super) fn statfs(call: Call<'_>) -> Answer<Body> {
    call.fs.statfs(call.ctx, call.node).map(Body::StatFs)
}
