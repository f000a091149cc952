//! Optional groups of operations.

use tombolo_core::fs::{NodeId, PersistentHandle, Ranges, XattrName};
use tombolo_core::{Answer, Error};
use tombolo_wire_vrpc::{Destination, FRAME_BYTES, NoticeList, Reply, Request};

use super::names::{copied, send_bytes};
use super::nodes;
use crate::buffers::ReplyBuffer;
use crate::exchange::{Exchange, or_cut};

/// Maximum length of an attribute's value and of a list of names (xattr(7)).
const XATTR_BYTES_MAX: usize = 64 << 10;

pub(super) fn dispatch(exchange: Exchange<'_>, request: &Request<'_>) {
    let (fs, cx, xattrs) = (exchange.fs(), exchange.cx, exchange.xattrs());
    let done = |()| Reply::Done;
    match *request {
        Request::XattrGet { node, name, destination } => {
            xattr_bytes(exchange, node, Some(name), &destination);
        }
        Request::XattrSet { node, name, value, how, kill_set_gid } => {
            let Some(xattrs) = xattrs else { return exchange.refuse(Error::NotSupported) };
            match or_cut!(exchange, copied(&value, &exchange, XATTR_BYTES_MAX, Error::TooBig)) {
                Ok(value) => {
                    exchange.answer(xattrs.set(cx, node, name, &value, how, kill_set_gid), done);
                }
                Err(error) => exchange.refuse(error),
            }
        }
        Request::XattrList { node, destination } => xattr_bytes(exchange, node, None, &destination),
        Request::XattrRemove { node, name } => {
            offered(exchange, xattrs, |xattrs| xattrs.remove(cx, node, name), done);
        }
        Request::LockTest { file, ref lock } => {
            offered(exchange, fs.locks(), |locks| locks.test(cx, file, lock), Reply::Conflict);
        }
        Request::Lock { file, ref lock, wait } => {
            offered(exchange, fs.locks(), |locks| locks.lock(cx, file, lock, wait), done);
        }
        Request::Unlock { file, family, range, owner } => {
            offered(exchange, fs.locks(), |locks| locks.unlock(cx, file, family, range, owner), done);
        }
        Request::Allocate { file, offset, len_bytes, mode } => {
            let allocate = |ranges: &dyn Ranges| ranges.allocate(cx, file, offset, len_bytes, mode);
            offered(exchange, fs.ranges(), allocate, done);
        }
        Request::Seek { file, offset, whence } => {
            offered(exchange, fs.ranges(), |ranges| ranges.seek(cx, file, offset, whence), Reply::Offset);
        }
        Request::Copy { from, from_offset, to, to_offset, len_bytes } => {
            let copy = |ranges: &dyn Ranges| ranges.copy(cx, from, from_offset, to, to_offset, len_bytes);
            offered(exchange, fs.ranges(), copy, Reply::Offset);
        }
        Request::HandleOf { .. } | Request::Resolve { .. } | Request::Parent { .. } => {
            handles(exchange, request);
        }
        Request::Changes { since } => changes(exchange, since),
        Request::Look { node } => {
            let reply = |(attr, version)| Reply::Looked(version, attr);
            offered(exchange, fs.versions(), |versions| versions.look(cx, node), reply);
        }
        _ => exchange.refuse(Error::NotImplemented),
    }
}

/// Replies with the result of an operation of a group, if the file system has that group.
fn offered<'a, G: ?Sized, T: Send + 'static>(
    exchange: Exchange<'a>,
    group: Option<&'a G>,
    operation: impl FnOnce(&'a G) -> Answer<T>,
    reply: impl FnOnce(T) -> Reply<'static> + Send + 'static,
) {
    let answer = group.map_or_else(|| Answer::err(Error::NotSupported), operation);
    exchange.answer(answer, reply);
}

/// Replies with the value of an attribute, or without a name with all names.
fn xattr_bytes(
    exchange: Exchange<'_>,
    node: NodeId,
    name: Option<XattrName<'_>>,
    destination: &Destination<'_>,
) {
    let Some(xattrs) = exchange.xattrs() else { return exchange.refuse(Error::NotSupported) };
    let reply_buffer = or_cut!(exchange, ReplyBuffer::of(destination, &exchange.responder));
    let limit_bytes = reply_buffer.len_bytes().min(XATTR_BYTES_MAX);
    let answer = match name {
        Some(name) => xattrs.get(exchange.cx, node, name, limit_bytes),
        None => xattrs.list(exchange.cx, node, limit_bytes),
    };
    exchange.close(answer, move |completion, bytes| send_bytes(completion, &reply_buffer, &bytes));
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
