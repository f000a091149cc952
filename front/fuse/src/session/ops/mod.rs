//! Dispatch of requests to the waist: one file per family, one function per operation.

mod control;
mod dir;
mod file;
mod lock;
mod node;
mod xattr;

use super::body::Body;
use super::callers::Callers;
use super::dir_attrs::DirChange;
use super::exchange::Exchange;
use super::{Session, Slot};
use std::sync::Arc;
use tombolo_core::fs::{DirPage, File, FileSystem, NodeId, OpenId};
use tombolo_core::{Answer, Ctx, Error, Identity, Want};
use tombolo_wire_fuse::{self as wire, Decoded, Request};

/// Arguments common to all operations.
#[derive(Clone, Copy)]
struct Call<'a> {
    session: &'a Session,
    fs: &'a dyn FileSystem,
    ctx: &'a Ctx,
    node: NodeId,
    /// The requesting thread.
    thread: u32,
}

impl Call<'_> {
    fn file(self, handle: wire::FileHandle) -> File {
        File { node: self.node, open: OpenId(handle.0) }
    }

    /// Begins a change of a directory's names. Returns the context for its operation, and the change, which
    /// lasts until dropped; `None` without [`Coherence::Push`](super::Coherence::Push).
    fn dir_change(self) -> (Ctx, Option<DirChange>) {
        let change = self.session.dir_change(None);
        let wants_attr = change.as_ref().is_some_and(DirChange::wants_attr);
        let more = if wants_attr { Want::CHANGE_ATTRS } else { Want::empty() };
        (Ctx { want: self.ctx.want | more, ..self.ctx.clone() }, change)
    }

    /// Returns the table of openers, and the identity to record in it, if any.
    fn opener(self) -> (Arc<Callers>, Option<Identity>) {
        (self.session.callers.clone(), self.session.callers.opener(&self.ctx.identity))
    }
}

/// Starts the operation.
pub(super) fn dispatch<E: Exchange>(
    session: &Session,
    ctx: &Ctx,
    decoded: &Decoded<'_>,
    page: &mut Option<DirPage>,
    exchange: &mut E,
) -> Answer<Body> {
    let (node, thread) = (NodeId(decoded.header.node.0), decoded.header.pid);
    let call = Call { session, fs: session.file_system(), ctx, node, thread };
    match &decoded.request {
        Request::Lookup { name } => node::lookup(call, *name),
        Request::LookupSelf => node::lookup_self(call),
        Request::LookupParent => node::parent(call),
        Request::Forget { count } => node::forget(call, *count),
        Request::BatchForget(forgets) => node::batch_forget(call, *forgets),
        Request::Getattr { handle } => node::getattr(call, *handle),
        Request::Statx { handle, .. } => node::statx(call, *handle),
        Request::Setattr(set) => node::setattr(call, set),
        Request::Access { mask } => node::access(call, *mask),
        Request::Readlink => node::readlink(call),
        Request::Symlink { name, target } => dir::symlink(call, *name, target),
        Request::Mknod { name, mode, rdev, umask } => dir::mknod(call, *name, *mode, *rdev, *umask),
        Request::Mkdir { name, mode, umask } => dir::mkdir(call, *name, *mode, *umask),
        Request::Unlink { name } => dir::unlink(call, *name),
        Request::Rmdir { name } => dir::rmdir(call, *name),
        Request::Rename { name, new_parent, new_name, flags } => {
            dir::rename(call, *name, NodeId(new_parent.0), *new_name, *flags)
        }
        Request::Link { node, new_name } => dir::link(call, NodeId(node.0), *new_name),
        Request::Opendir(_) => dir::opendir(call),
        Request::Readdir(read) => dir::readdir(call, read, false, page),
        Request::Readdirplus(read) => dir::readdir(call, read, true, page),
        Request::Create { name, how } => file::create(call, *name, how),
        Request::Tmpfile { how } => file::tmpfile(call, how),
        Request::Open(open) => file::open(call, open),
        Request::Read(read) => file::read(call, read, exchange),
        Request::Write(write) => file::write(call, write, exchange),
        Request::Release(release) | Request::Releasedir(release) => file::release(call, release),
        Request::Flush { handle, lock_owner } => file::flush(call, *handle, *lock_owner),
        Request::Fsync { handle, data_only } | Request::Fsyncdir { handle, data_only } => {
            file::fsync(call, *handle, *data_only)
        }
        Request::Fallocate { handle, offset, len_bytes, mode } => {
            file::fallocate(call, *handle, *offset, *len_bytes, *mode)
        }
        Request::Lseek { handle, offset, whence } => file::lseek(call, *handle, *offset, *whence),
        Request::CopyFileRange(copy) => file::copy(call, copy, false),
        Request::CopyFileRange64(copy) => file::copy(call, copy, true),
        Request::Setxattr { name, value, flags, kill_set_gid } => {
            xattr::set(call, *name, value, *flags, *kill_set_gid)
        }
        Request::Getxattr { name, size_bytes } => xattr::get(call, *name, *size_bytes),
        Request::Listxattr { size_bytes } => xattr::list(call, *size_bytes),
        Request::Removexattr { name } => xattr::remove(call, *name),
        Request::Getlk(lock) => lock::test(call, lock),
        Request::Setlk(lock) => lock::set(call, lock, false),
        Request::Setlkw(lock) => lock::set(call, lock, true),
        Request::Statfs => node::statfs(call),
        Request::Syncfs => call.fs.syncfs(ctx).map(|()| Body::Empty),
        Request::Ioctl { command } => control::ioctl(call, *command),
        Request::Init(offer) => control::init(session, offer),
        Request::Interrupt { unique } => control::interrupt(session, *unique),
        Request::Destroy => control::destroy(session),
        // After ENOSYS the kernel treats the file as always ready (POLL) and as without a block mapping
        // (BMAP). DAX is never negotiated, and no RETRIEVE is sent that a NOTIFY_REPLY could answer.
        Request::Unsupported => Answer::err(Error::NotImplemented),
    }
}

/// Space for a listing or a value in a reply.
const BODY_BYTES: usize = super::slot::BODY_BYTES;

/// Takes the slot's page for a listing.
fn take_page(page: &mut Option<DirPage>, budget: tombolo_core::fs::DirBudget) -> DirPage {
    Slot::page(page, budget)
}
