//! Extended attributes. Where the session shows none, the kernel is told once for each operation and never asks again.

use super::super::body::Body;
use super::{BODY_BYTES, Call};
use tombolo_core::fs::{XattrName, XattrSet};
use tombolo_core::{Answer, Error};
use tombolo_wire_fuse::flags;
use tombolo_wire_fuse::init::Capabilities;

/// acl(5), as an extended attribute.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

pub(super) fn set(
    call: Call<'_>,
    name: XattrName<'_>,
    value: &[u8],
    bits: u32,
    kill_set_gid: bool,
) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    let how = match bits {
        0 => XattrSet::Any,
        flags::XATTR_CREATE => XattrSet::Create,
        flags::XATTR_REPLACE => XattrSet::Replace,
        _ => return Answer::err(Error::InvalidArgument),
    };
    // An access list sets the mode. A kernel that knows nothing of lists keeps the mode that it was told before.
    let sets_mode = name.as_bytes() == ACCESS_ACL && !call.session.agreed().contains(Capabilities::POSIX_ACL);
    let node = call.node;
    xattrs.set(call.ctx, node, name, value, how, kill_set_gid).map(move |()| match sets_mode {
        true => Body::AttrChanged(node),
        false => Body::Empty,
    })
}

pub(super) fn get(call: Call<'_>, name: XattrName<'_>, size_bytes: u32) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    sized(size_bytes, |limit| xattrs.get(call.ctx, call.node, name, limit))
}

pub(super) fn list(call: Call<'_>, size_bytes: u32) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    sized(size_bytes, |limit| xattrs.list(call.ctx, call.node, limit))
}

pub(super) fn remove(call: Call<'_>, name: XattrName<'_>) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    xattrs.remove(call.ctx, call.node, name).map(|()| Body::Empty)
}

/// Size 0 asks how long the bytes are, any other for the bytes.
fn sized(size_bytes: u32, ask: impl FnOnce(usize) -> Answer<Vec<u8>>) -> Answer<Body> {
    match size_bytes as usize {
        0 => ask(BODY_BYTES).map(|bytes| Body::Size(bytes.len())),
        limit => ask(limit.min(BODY_BYTES)).map(Body::Bytes),
    }
}
