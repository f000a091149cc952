//! The waist over a link.

mod data;
mod elsewhere;
mod groups;
mod listing;
mod names;
mod waiting;

use std::sync::Arc;

use tombolo_core::fs::{
    AccessMask, Answer, Attr, Change, Cookie, Create, Created, Ctx, Device, DirPage, Entry, File, FileSystem,
    FileType, LockOwner, Locks, Made, Name, NewMode, NodeId, OpenFlags, Opened, PersistentHandles, Profile,
    Ranges, ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncWhat, Write, Written, Xattrs,
};
use tombolo_host::links::client::Counts;
use tombolo_mem::{Sink, Source};
use tombolo_wire_vrpc::{FORGETS_MAX, Forgets, Offers, Reply, Request};

use crate::link::Link;

/// One session of an export of another domain. Dropping the last reference ends the link, and with it the server's session.
pub struct VrpcFileSystem {
    pub(crate) link: Arc<Link>,
}

impl VrpcFileSystem {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }

    /// A round trip that does nothing.
    pub fn null(&self, cx: &Ctx) -> Answer<()> {
        self.link.ask_to(cx, Request::Null)
    }

    /// What the link has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.link.line.counts()
    }

    /// Why the link has ended; none while it goes on.
    #[must_use]
    pub fn end(&self) -> Option<tombolo_host::links::End> {
        self.link.line.end()
    }

    fn offers(&self, group: Offers) -> bool {
        self.link.terms.offers.contains(group)
    }
}

impl std::fmt::Debug for VrpcFileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VrpcFileSystem").field("line", &self.link.line).finish_non_exhaustive()
    }
}

/// Gives the value of a reply of one shape.
macro_rules! pick {
    ($variant:ident) => {
        |reply| match reply {
            Reply::$variant(value) => Some(value),
            _ => None,
        }
    };
    ($variant:ident, _) => {
        |reply| match reply {
            Reply::$variant(value, _) => Some(value),
            _ => None,
        }
    };
}
pub(crate) use pick;

pub(crate) use data::put;
pub(crate) use names::{in_reference, out_reference};

impl FileSystem for VrpcFileSystem {
    fn profile(&self) -> Profile {
        self.link.terms.profile
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        self.link.ask_for(cx, Request::Lookup { parent, name }, pick!(Entry, _))
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        for some in look_ups.chunks(FORGETS_MAX) {
            self.link.tell(cx, Request::Forget(Forgets::new(some)));
        }
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        let open = file.map(|file| file.open);
        self.link.ask_for(cx, Request::Getattr { node, open }, pick!(Attr))
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let request = Request::Setattr { node, open: file.map(|file| file.open), set: *set };
        self.link.ask_for(cx, request, |reply| match reply {
            Reply::Setattr(attr, change) => Some((attr, change)),
            _ => None,
        })
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.link.ask_to(cx, Request::Access { node, mask })
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        names::readlink(&self.link, cx, node)
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        self.link.ask_for(cx, Request::Create { parent, name, how: *how }, pick!(Created, _))
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        self.link.ask_for(cx, Request::CreateUnnamed { parent, how: *how }, pick!(Created, _))
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        self.link.ask_for(cx, Request::Mkdir { parent, name, mode }, pick!(Made, _))
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        names::symlink(&self.link, cx, parent, name, target)
    }

    fn mknod(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        mode: NewMode,
        rdev: Device,
    ) -> Answer<Made> {
        self.link.ask_for(cx, Request::Mknod { parent, name, file_type, mode, rdev }, pick!(Made, _))
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.link.ask_for(cx, Request::Link { node, parent, name }, pick!(Made, _))
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.link.ask_for(cx, Request::Unlink { parent, name }, pick!(Change))
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.link.ask_for(cx, Request::Rmdir { parent, name }, pick!(Change))
    }

    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed> {
        self.link.ask_for(cx, Request::Rename { from_parent, from, to_parent, to, flags }, pick!(Renamed))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.link.ask_for(cx, Request::Open { node, flags }, pick!(Opened))
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.link.tell(cx, Request::Release { file });
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        self.link.ask_to(cx, Request::Flush { file, owner })
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncWhat) -> Answer<()> {
        self.link.ask_to(cx, Request::Fsync { file, what })
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        data::read(&self.link, cx, file, offset, into)
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        data::write(&self.link, cx, file, *how, from)
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        listing::readdir(&self.link, cx, file, cookie, page)
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        self.link.ask_for(cx, Request::Statfs { node }, pick!(StatFs))
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.link.ask_to(cx, Request::Syncfs)
    }

    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.offers(Offers::XATTRS).then_some(self)
    }

    fn locks(&self) -> Option<&dyn Locks> {
        self.offers(Offers::LOCKS).then_some(self)
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        self.offers(Offers::HANDLES).then_some(self)
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        self.offers(Offers::RANGES).then_some(self)
    }
}
