//! Extended attributes. If the session exposes none, each operation answers ENOSYS, and the kernel stops
//! sending it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::body::Body;
use super::{BODY_BYTES, Call};
use tombolo_core::fs::{XattrName, XattrSet};
use tombolo_core::{Answer, Error};
use tombolo_wire_fuse::flags;
use tombolo_wire_fuse::init::Capabilities;

/// Access lists (acl(5)) as extended attributes.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// A file's SELinux label.
const LABEL: &[u8] = b"security.selinux";

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
    // Setting an access list changes the mode. Without POSIX_ACL the kernel would keep its cached mode.
    let sets_mode =
        name.as_bytes() == ACCESS_ACL && !call.session.negotiated().contains(Capabilities::POSIX_ACL);
    if name.as_bytes() == LABEL {
        call.session.labels.store(true, Ordering::Relaxed);
    }
    let (node, change) = (call.node, call.session.dir_change(Some(call.node)));
    xattrs.set(call.ctx, node, name, value, how, kill_set_gid).map(move |()| {
        drop(change);
        match sets_mode {
            true => Body::AttrChanged(node),
            false => Body::Empty,
        }
    })
}

pub(super) fn get(call: Call<'_>, name: XattrName<'_>, size_bytes: u32) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    let answer = sized(size_bytes, |limit| xattrs.get(call.ctx, call.node, name, limit));
    match name.as_bytes() {
        LABEL => labelled(answer, call.session.labels.clone()),
        ACCESS_ACL | DEFAULT_ACL if call.session.negotiated().contains(Capabilities::POSIX_ACL) => {
            listed(answer)
        }
        _ => answer,
    }
}

pub(super) fn list(call: Call<'_>, size_bytes: u32) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    sized(size_bytes, |limit| xattrs.list(call.ctx, call.node, limit))
}

pub(super) fn remove(call: Call<'_>, name: XattrName<'_>) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    let change = call.session.dir_change(Some(call.node));
    xattrs.remove(call.ctx, call.node, name).map(move |()| {
        drop(change);
        Body::Empty
    })
}

/// Answers a request for a label. Programs that list files (`ls -l`) request each file's label, and stop once
/// they get EOPNOTSUPP. If the kernel labels no files, the answer is therefore EOPNOTSUPP until a label is
/// found or set.
fn labelled(answer: Answer<Body>, labels: Arc<AtomicBool>) -> Answer<Body> {
    answer.map_result(move |outcome| match outcome {
        Err(Error::NoAttribute) if !labels.load(Ordering::Relaxed) => Err(Error::NotSupported),
        Ok(value) => {
            labels.store(true, Ordering::Relaxed);
            Ok(value)
        }
        outcome => outcome,
    })
}

/// Maps EOPNOTSUPP to ENODATA, which a kernel that checks access lists caches as the absence of a list. At
/// EOPNOTSUPP it would refuse access to users other than the owner.
fn listed(answer: Answer<Body>) -> Answer<Body> {
    answer.map_result(|outcome| match outcome {
        Err(Error::NotSupported) => Err(Error::NoAttribute),
        outcome => outcome,
    })
}

/// Answers with the value's length for size 0, otherwise with the value.
fn sized(size_bytes: u32, fetch: impl FnOnce(usize) -> Answer<Vec<u8>>) -> Answer<Body> {
    match size_bytes as usize {
        0 => fetch(BODY_BYTES).map(|bytes| Body::Size(bytes.len())),
        limit => fetch(limit.min(BODY_BYTES)).map(Body::Bytes),
    }
}
