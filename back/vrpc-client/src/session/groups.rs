//! Optional groups of operations, forwarded to the server: extended attributes, locks, persistent handles,
//! ranges.

use tombolo_core::fs::{
    AllocateMode, Entry, File, Lock, LockFamily, LockOwner, LockRange, Locks, NodeId, PersistentHandle,
    PersistentHandles, Ranges, Volume, Whence, XattrName, XattrNameBuf, XattrSet, Xattrs,
};
use tombolo_core::{Answer, Ctx, Error, Result, or_answer};
use tombolo_host_links::client::Spans;
use tombolo_wire_vrpc::{Data, Destination, FRAME_BYTES, Reply, Request};

use super::names::{FRAME_DATA_MAX, destination, filled};
use super::replies::{bytes, entry, pick};
use super::{VrpcFileSystem, locks};
use crate::link::Link;
use crate::nodes::KernelXattr;
use crate::reply::Answered;
use crate::request::OutgoingRequest;

/// Maximum length of an attribute's value, and of the list of names (xattr(7)).
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Returns the attribute of that name if kernels request it by themselves.
fn kernel_xattr(name: XattrName<'_>) -> Option<KernelXattr> {
    match name.as_bytes() {
        b"security.capability" => Some(KernelXattr::Capability),
        b"system.posix_acl_access" => Some(KernelXattr::AccessList),
        _ => None,
    }
}

impl VrpcFileSystem {
    /// Returns an attribute that kernels request by themselves. Known absence is answered without a request
    /// while the server reports all changes, and has reported none of the node since.
    fn kernel_xattr(
        &self,
        cx: &Ctx,
        node: NodeId,
        (name, xattr): (XattrName<'_>, KernelXattr),
        limit_bytes: usize,
    ) -> Answer<Vec<u8>> {
        let nodes = &self.links.objects.nodes;
        if self.links.reports_all_changes() && nodes.is_absent(node, xattr) {
            return Answer::err(Error::NoAttribute);
        }
        let (links, permission_changes) = (self.links.clone(), nodes.permission_changes());
        self.xattr_bytes(cx, node, Some(name), limit_bytes).map_result(move |result| {
            if matches!(result, Err(Error::NoAttribute)) {
                links.objects.nodes.set_absent(node, xattr, permission_changes);
            }
            result
        })
    }

    /// Returns the value of an attribute, or without a name the list of names.
    fn xattr_bytes(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: Option<XattrName<'_>>,
        limit_bytes: usize,
    ) -> Answer<Vec<u8>> {
        let limit = limit_bytes.min(XATTR_BYTES_MAX);
        if limit <= FRAME_BYTES {
            let request = xattr_request(node, name, Destination::Inline { len_bytes: limit as u32 });
            return self.links.call(cx, request, move |link, answered| bytes(link, &answered, limit));
        }
        let name = name.map(XattrName::to_owned);
        let capacity_bytes = self.links.current().line.in_area().capacity_bytes();
        let limit = limit.min(usize::try_from(capacity_bytes).unwrap_or(usize::MAX));
        self.links.with_in_span(cx, limit, move |links, link, cx, span| {
            let destination = or_answer!(destination(link, Some(&span), limit));
            let name = name.as_ref().map(XattrNameBuf::as_name);
            let request = xattr_request(node, name, destination);
            let outgoing = OutgoingRequest { request, tail: &[], spans: Spans::from(span) };
            let sequence = links.objects.next_sequence();
            links.call_on(link, cx, sequence, outgoing, move |link, answered| bytes(link, &answered, limit))
        })
    }
}

fn xattr_request<'a>(node: NodeId, name: Option<XattrName<'a>>, destination: Destination<'a>) -> Request<'a> {
    match name {
        Some(name) => Request::XattrGet { node, name, destination },
        None => Request::XattrList { node, destination },
    }
}

/// Handles the reply to a change that may concern an access list or a capability.
fn xattr_changed(link: &Link, answered: &Answered, node: NodeId) -> Result<()> {
    link.objects.nodes.xattrs_changed(node);
    answered.success(link).map(|_| ())
}

impl Xattrs for VrpcFileSystem {
    fn get(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        match kernel_xattr(name) {
            Some(xattr) => self.kernel_xattr(cx, node, (name, xattr), limit_bytes),
            None => self.xattr_bytes(cx, node, Some(name), limit_bytes),
        }
    }

    fn set(
        &self,
        cx: &Ctx,
        node: NodeId,
        name: XattrName<'_>,
        value: &[u8],
        how: XattrSet,
        kill_set_gid: bool,
    ) -> Answer<()> {
        if value.len() > XATTR_BYTES_MAX {
            return Answer::err(Error::TooBig);
        }
        if value.len() <= FRAME_DATA_MAX {
            let value = Data::Inline(value);
            let request = Request::XattrSet { node, name, value, how, kill_set_gid };
            return self.links.call(cx, request, move |link, answered| xattr_changed(link, &answered, node));
        }
        let (name, value) = (name.to_owned(), value.to_vec());
        let sequence = self.links.objects.next_sequence();
        self.links.with_out_span(cx, value.len(), move |links, link, cx, span| {
            let value = or_answer!(filled(link, &span, &value));
            let request = Request::XattrSet { node, name: name.as_name(), value, how, kill_set_gid };
            let outgoing = OutgoingRequest { request, tail: &[], spans: Spans::from(span) };
            links.call_on(link, cx, sequence, outgoing, move |link, answered| {
                xattr_changed(link, &answered, node)
            })
        })
    }

    fn list(&self, cx: &Ctx, node: NodeId, limit_bytes: usize) -> Answer<Vec<u8>> {
        self.xattr_bytes(cx, node, None, limit_bytes)
    }

    fn remove(&self, cx: &Ctx, node: NodeId, name: XattrName<'_>) -> Answer<()> {
        let request = Request::XattrRemove { node, name };
        self.links.call(cx, request, move |link, answered| xattr_changed(link, &answered, node))
    }
}

impl Locks for VrpcFileSystem {
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        self.links.call_for(cx, Request::LockTest { file, lock: *lock }, pick!(Conflict))
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        if wait {
            locks::wait(&self.links, cx, file, *lock)
        } else {
            locks::request(&self.links, cx, file, *lock, wait)
        }
    }

    fn unlock(
        &self,
        cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        // The record of the lock is removed before the request, because a released lock must not be taken
        // again on another link.
        self.links.objects.nodes.with_locks(file.node, |locks| locks.give_back(family, owner, range));
        self.links.call_unit(cx, Request::Unlock { file, family, range, owner })
    }
}

impl PersistentHandles for VrpcFileSystem {
    requests! {
        call parent(node: NodeId) -> Entry = Parent, entry;
    }

    fn volume(&self) -> Volume {
        self.links.terms.volume
    }

    fn handle_of(&self, cx: &Ctx, node: NodeId) -> Answer<PersistentHandle> {
        self.links.call_for(cx, Request::HandleOf { node }, |reply| match reply {
            Reply::Handle(handle) => Some(handle.into()),
            _ => None,
        })
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        self.links.call(cx, Request::Resolve { handle: handle.into() }, entry)
    }
}

impl Ranges for VrpcFileSystem {
    requests! {
        call_for seek(file: File, offset: u64, whence: Whence) -> u64 = Seek, pick!(Offset);
        call_for copy(from: File, from_offset: u64, to: File, to_offset: u64, len_bytes: u64) -> u64
            = Copy, pick!(Offset);
    }

    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        self.links.call_unit(cx, Request::Allocate { file, offset, len_bytes: len, mode })
    }
}
