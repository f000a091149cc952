//! Extended attributes. Where the session shows none, the kernel is told once for each operation and never
//! asks again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::body::Body;
use super::{BODY_BYTES, Call};
use tombolo_core::fs::{XattrName, XattrSet};
use tombolo_core::{Answer, Error};
use tombolo_wire_fuse::flags;
use tombolo_wire_fuse::init::Capabilities;

/// acl(5), as an extended attribute.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// SELinux's label of a file.
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
    // An access list sets the mode. A kernel that knows nothing of lists keeps the mode that it was told
    // before.
    let sets_mode = name.as_bytes() == ACCESS_ACL && !call.session.agreed().contains(Capabilities::POSIX_ACL);
    if name.as_bytes() == LABEL {
        call.session.labels.store(true, Ordering::Relaxed);
    }
    let node = call.node;
    xattrs.set(call.ctx, node, name, value, how, kill_set_gid).map(move |()| match sets_mode {
        true => Body::AttrChanged(node),
        false => Body::Empty,
    })
}

pub(super) fn get(call: Call<'_>, name: XattrName<'_>, size_bytes: u32) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    let answer = sized(size_bytes, |limit| xattrs.get(call.ctx, call.node, name, limit));
    match name.as_bytes() {
        LABEL => labelled(answer, call.session.labels.clone()),
        ACCESS_ACL | DEFAULT_ACL if call.session.agreed().contains(Capabilities::POSIX_ACL) => listed(answer),
        _ => answer,
    }
}

pub(super) fn list(call: Call<'_>, size_bytes: u32) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    sized(size_bytes, |limit| xattrs.list(call.ctx, call.node, limit))
}

pub(super) fn remove(call: Call<'_>, name: XattrName<'_>) -> Answer<Body> {
    let Some(xattrs) = call.session.xattrs() else { return Answer::err(Error::NotImplemented) };
    xattrs.remove(call.ctx, call.node, name).map(|()| Body::Empty)
}

/// Programs that list files ask each for its label (`ls -l`), and stop when they are told that the file
/// system has none. That is said where no kernel labels files, until a label is seen.
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

/// A kernel that goes by access lists refuses all access where it is told that there can be none, and keeps
/// that a file has none.
fn listed(answer: Answer<Body>) -> Answer<Body> {
    answer.map_result(|outcome| match outcome {
        Err(Error::NotSupported) => Err(Error::NoAttribute),
        outcome => outcome,
    })
}

/// Size 0 asks how long the bytes are, any other for the bytes.
fn sized(size_bytes: u32, ask: impl FnOnce(usize) -> Answer<Vec<u8>>) -> Answer<Body> {
    match size_bytes as usize {
        0 => ask(BODY_BYTES).map(|bytes| Body::Size(bytes.len())),
        limit => ask(limit.min(BODY_BYTES)).map(Body::Bytes),
    }
}
