//! Optional groups of operations.

use tombolo_core::Error;
use tombolo_core::fs::{NodeId, PersistentHandle, XattrName};
use tombolo_wire_vrpc::{Destination, FRAME_BYTES, NoticeList, Reply, Request};

use super::names::{copied, send_bytes};
use super::nodes;
use crate::buffers::ReplyBuffer;
use crate::exchange::Exchange;

/// Maximum length of an attribute's value and of a list of names (xattr(7)).
const XATTR_BYTES_MAX: usize = 64 << 10;

pub(super) fn dispatch(exchange: Exchange<'_>, request: &Request<'_>) {
    match request {
        Request::XattrGet { .. }
        | Request::XattrSet { .. }
        | Request::XattrList { .. }
        | Request::XattrRemove { .. } => {
            xattrs(exchange, request);
        }
        Request::LockTest { .. } | Request::Lock { .. } | Request::Unlock { .. } => locks(exchange, request),
        Request::HandleOf { .. } | Request::Resolve { .. } | Request::Parent { .. } => {
            handles(exchange, request)
        }
        Request::Allocate { .. } | Request::Seek { .. } | Request::Copy { .. } => ranges(exchange, request),
        Request::Changes { since } => changes(exchange, *since),
        Request::Look { node } => look(exchange, *node),
        _ => exchange.refuse(Error::NotImplemented),
    }
}

fn xattrs(exchange: Exchange<'_>, request: &Request<'_>) {
    let Some(xattrs) = exchange.xattrs() else { return exchange.refuse(Error::NotSupported) };
    let cx = exchange.cx;
    match *request {
        Request::XattrGet { node, name, destination } => {
            xattr_bytes(exchange, node, Some(name), &destination)
        }
        Request::XattrList { node, destination } => xattr_bytes(exchange, node, None, &destination),
        Request::XattrSet { node, name, value, how, kill_set_gid } => {
            match copied(&value, &exchange, XATTR_BYTES_MAX, Error::TooBig) {
                Ok(Ok(value)) => {
                    let answer = xattrs.set(cx, node, name, &value, how, kill_set_gid);
                    exchange.answer(answer, |()| Reply::Done);
                }
                Ok(Err(error)) => exchange.refuse(error),
                Err(error) => exchange.cut(error),
            }
        }
        Request::XattrRemove { node, name } => {
            exchange.answer(xattrs.remove(cx, node, name), |()| Reply::Done)
        }
        _ => exchange.refuse(Error::NotImplemented),
    }
}

/// Replies with the value of an attribute, or without a name with all names.
fn xattr_bytes(
    exchange: Exchange<'_>,
    node: NodeId,
    name: Option<XattrName<'_>>,
    destination: &Destination<'_>,
) {
    let Some(xattrs) = exchange.xattrs() else { return exchange.refuse(Error::NotSupported) };
    let reply_buffer = match ReplyBuffer::of(destination, &exchange.responder) {
        Ok(reply_buffer) => reply_buffer,
        Err(error) => return exchange.cut(error),
    };
    let limit_bytes = reply_buffer.len_bytes().min(XATTR_BYTES_MAX);
    let answer = match name {
        Some(name) => xattrs.get(exchange.cx, node, name, limit_bytes),
        None => xattrs.list(exchange.cx, node, limit_bytes),
    };
    exchange.close(answer, move |completion, bytes| send_bytes(completion, &reply_buffer, &bytes));
}

fn locks(exchange: Exchange<'_>, request: &Request<'_>) {
    let Some(locks) = exchange.fs().locks() else { return exchange.refuse(Error::NotSupported) };
    let cx = exchange.cx;
    match *request {
        Request::LockTest { file, ref lock } => exchange.answer(locks.test(cx, file, lock), Reply::Conflict),
        Request::Lock { file, ref lock, wait } => {
            exchange.answer(locks.lock(cx, file, lock, wait), |()| Reply::Done);
        }
        Request::Unlock { file, family, range, owner } => {
            exchange.answer(locks.unlock(cx, file, family, range, owner), |()| Reply::Done);
        }
        _ => exchange.refuse(Error::NotImplemented),
    }
}

fn handles(exchange: Exchange<'_>, request: &Request<'_>) {
    let Some(handles) = exchange.fs().persistent_handles() else {
        return exchange.refuse(Error::NotSupported);
    };
    let cx = exchange.cx;
    match *request {
        Request::HandleOf { node } => {
            let volume = handles.volume();
            exchange.close(handles.handle_of(cx, node), move |completion, handle: PersistentHandle| {
                match completion.shared.signer.sign(&handle, volume) {
                    Some(handle) => completion.send(&Reply::Handle((&handle).into())),
                    None => completion.fail(&Error::NotSupported),
                }
            });
        }
        Request::Resolve { handle } => {
            match exchange.shared.signer.verify(handle.kind, handle.bytes, handles.volume()) {
                Some(handle) => nodes::answer(exchange, handles.resolve(cx, &handle)),
                None => exchange.refuse(Error::Stale),
            }
        }
        Request::Parent { node } => nodes::answer(exchange, handles.parent(cx, node)),
        _ => exchange.refuse(Error::NotImplemented),
    }
}

fn changes(exchange: Exchange<'_>, since: u64) {
    let Some(changes) = exchange.fs().changes() else { return exchange.refuse(Error::NotSupported) };
    let answer = changes.next(exchange.cx, since, FRAME_BYTES);
    exchange.close(answer, |completion, notices| {
        // Completeness is read after the notices: if it ends now, another notice follows.
        let is_complete =
            completion.shared.file_system.changes().is_some_and(|changes| changes.is_complete());
        completion.send(&Reply::Changes(notices.last, NoticeList::new(&notices.list), is_complete));
    });
}

fn look(exchange: Exchange<'_>, node: NodeId) {
    let Some(versions) = exchange.fs().versions() else { return exchange.refuse(Error::NotSupported) };
    let answer = versions.look(exchange.cx, node);
    exchange.answer(answer, |(attr, version)| Reply::Looked(version, attr));
}

fn ranges(exchange: Exchange<'_>, request: &Request<'_>) {
    let Some(ranges) = exchange.fs().ranges() else { return exchange.refuse(Error::NotSupported) };
    let cx = exchange.cx;
    match *request {
        Request::Allocate { file, offset, len_bytes, mode } => {
            exchange.answer(ranges.allocate(cx, file, offset, len_bytes, mode), |()| Reply::Done);
        }
        Request::Seek { file, offset, whence } => {
            exchange.answer(ranges.seek(cx, file, offset, whence), Reply::Offset);
        }
        Request::Copy { from, from_offset, to, to_offset, len_bytes } => {
            exchange.answer(ranges.copy(cx, from, from_offset, to, to_offset, len_bytes), Reply::Offset);
        }
        _ => exchange.refuse(Error::NotImplemented),
    }
}
