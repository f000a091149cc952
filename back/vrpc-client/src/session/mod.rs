//! The waist over a session's links: [`VrpcFileSystem`]. Most operations are one request each; the submodules
//! implement the others, and the optional groups of operations.

/// Methods that are one request, whose reply a function converts.
macro_rules! requests {
    ($($call:ident $method:ident($($argument:ident: $kind:ty),+) -> $answer:ty = $request:ident, $reply:expr;)+) => {
        $(fn $method(&self, cx: &Ctx, $($argument: $kind),+) -> Answer<$answer> {
            self.links.$call(cx, Request::$request { $($argument),+ }, $reply)
        })+
    };
}

mod behind;
mod changes;
mod data;
mod groups;
mod listing;
mod locks;
mod names;
mod remote_buffer;
mod replies;
mod versions;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tombolo_core::fs::{
    AccessMask, Attr, Change, Changes, Cookie, Create, Created, Device, DirPage, Entry, Exclusive, File,
    FileSystem, FileType, LockOwner, Locks, Made, Name, NewMode, NodeId, OpenFlags, Opened,
    PersistentHandles, Profile, Ranges, ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncScope, Versions,
    Write, Written, Xattrs,
};
use tombolo_core::{Answer, Ctx};
use tombolo_host_links::client::Counts;
use tombolo_mem::{Sink, Source};
use tombolo_wire_vrpc::{Offers, Reply, Request};

use self::changes::Watch;
use crate::links::Links;
use crate::nodes::KernelXattr;
use crate::openings::Opening;

/// A session of an export of another domain. Dropping the last reference waits for the replies to writes
/// behind, closes the link and ends the server's session.
pub struct VrpcFileSystem {
    pub(crate) links: Arc<Links>,
    watch: Watch,
}

impl VrpcFileSystem {
    pub(crate) fn new(links: Arc<Links>) -> Self {
        Self { links, watch: Watch::new() }
    }

    /// Performs an empty round trip (NULL), to check or measure the link.
    pub fn null(&self, cx: &Ctx) -> Answer<()> {
        self.links.call_unit(cx, Request::Null)
    }

    /// Returns the counters of the current link.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.links.current().line.counts()
    }

    /// Returns the reason why the latest link has ended; `None` while it works.
    #[must_use]
    pub fn end(&self) -> Option<tombolo_host_links::EndReason> {
        self.links.current().line.end()
    }

    /// Returns the ordinal number of the session's current link, from 1 on; it grows with each attempt to
    /// establish another.
    #[must_use]
    pub fn link_number(&self) -> u32 {
        self.links.current().number
    }

    /// Returns the time without a link; `None` while there is one.
    #[must_use]
    pub fn disconnected_for(&self) -> Option<std::time::Duration> {
        self.links.without_link_since().map(|since| since.elapsed())
    }

    fn offers(&self, group: Offers) -> bool {
        self.links.terms.offers.contains(group)
    }
}

impl std::fmt::Debug for VrpcFileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VrpcFileSystem").field("line", &self.links.current().line).finish_non_exhaustive()
    }
}

/// Maximum time for which the end of a session waits for the replies to its writes.
const LAST_WRITES_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the end of a session checks for the replies to its writes.
const LAST_WRITES_INTERVAL: Duration = Duration::from_millis(1);

impl Drop for VrpcFileSystem {
    fn drop(&mut self) {
        let until = Instant::now() + LAST_WRITES_TIMEOUT;
        // A lost link may be replaced meanwhile; the writes are then sent again on the new one.
        while self.links.settled().is_some_and(|behind| !behind.is_empty()) && Instant::now() < until {
            thread::sleep(LAST_WRITES_INTERVAL);
        }
    }
}

pub(crate) use names::{destination, out_reference};
pub(crate) use replies::{pick, written};

fn release(links: &Links, cx: &Ctx, file: File) {
    let objects = &links.objects;
    let Some((Opening { node, .. }, server_id)) = objects.openings.remove(file.open) else { return };
    let mut gone: SmallVec<[_; 2]> = SmallVec::new();
    gone.extend(server_id.and_then(|server_id| objects.opening_gone(node, server_id)));
    gone.extend(objects.nodes.released(node, file.open));
    links.release(cx, &gone);
}

/// Groups of methods that the server may offer.
macro_rules! offered {
    ($($group:ident: $kind:ident = $offer:ident),+) => {
        $(fn $group(&self) -> Option<&dyn $kind> {
            self.offers(Offers::$offer).then_some(self)
        })+
    };
}

impl FileSystem for VrpcFileSystem {
    requests! {
        call lookup(parent: NodeId, name: Name<'_>) -> Entry = Lookup, replies::entry;
        call mkdir(parent: NodeId, name: Name<'_>, mode: NewMode) -> Made = Mkdir, replies::made;
        call mknod(parent: NodeId, name: Name<'_>, file_type: FileType, mode: NewMode, rdev: Device) -> Made
            = Mknod, replies::made;
        call link(node: NodeId, parent: NodeId, name: Name<'_>) -> Made = Link, replies::made;
        call_for unlink(parent: NodeId, name: Name<'_>) -> Change = Unlink, pick!(Change);
        call_for rmdir(parent: NodeId, name: Name<'_>) -> Change = Rmdir, pick!(Change);
        call_for rename(from_parent: NodeId, from: Name<'_>, to_parent: NodeId, to: Name<'_>, flags: RenameFlags)
            -> Renamed = Rename, pick!(Renamed);
        call_for statfs(node: NodeId) -> StatFs = Statfs, pick!(StatFs);
    }

    fn profile(&self) -> Profile {
        self.links.terms.profile
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        let nodes = &self.links.objects.nodes;
        let gone = look_ups.iter().filter_map(|(node, count)| nodes.forget(*node, *count));
        let gone: SmallVec<[_; 4]> = gone.collect();
        self.links.release(cx, &gone);
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        let open = file.map(|file| file.open);
        self.links.call_for(cx, Request::Getattr { node, open }, pick!(Attr))
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let request = Request::Setattr { node, open: file.map(|file| file.open), set: *set };
        self.links.call(cx, request, move |link, answered| {
            link.objects.nodes.permissions_changed(node);
            answered.extract(link, pick!(Setattr(attr, change)))
        })
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.links.call_unit(cx, Request::Access { node, mask })
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        names::readlink(&self.links, cx, node)
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let opener = cx.identity.clone();
        let (flags, is_new) = (how.flags, how.exclusive == Exclusive::Yes);
        let permission_changes = self.links.objects.nodes.permission_changes();
        self.links.call(cx, Request::Create { parent, name, how: *how }, move |link, answered| {
            let created = replies::created(link, &answered, flags, opener)?;
            if is_new {
                let (node, xattr) = (created.entry.node, KernelXattr::Capability);
                link.objects.nodes.set_absent(node, xattr, permission_changes);
            }
            Ok(created)
        })
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        let opener = cx.identity.clone();
        let flags = how.flags;
        self.links.call(cx, Request::CreateUnnamed { parent, how: *how }, move |link, answered| {
            replies::created(link, &answered, flags, opener)
        })
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        names::symlink(&self.links, cx, parent, name, target)
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let opener = cx.identity.clone();
        let lists = flags == OpenFlags::READ | OpenFlags::DIRECTORY;
        if lists && let Some(open) = listing::open_without_request(&self.links, cx, node, flags) {
            return Answer::Done(Ok(Opened { open, attr: None }));
        }
        let permission_changes = self.links.objects.nodes.permission_changes();
        self.links.call(cx, Request::Open { node, flags }, move |link, answered| {
            let (opened, server_id) = replies::opened(link, &answered)?;
            if lists {
                link.objects.nodes.set_lister(node, &opener, permission_changes);
            }
            Ok(Opened { open: link.opened(node, flags, opener, server_id), ..opened })
        })
    }

    fn release(&self, cx: &Ctx, file: File) {
        behind::release_when_written(&self.links, cx, file);
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        behind::flush(&self.links, cx, file, owner)
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncScope) -> Answer<()> {
        behind::fsync(&self.links, cx, file, what)
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        data::read(&self.links, cx, file, offset, into)
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        if let Some(result) = behind::write(&self.links, cx, file, how, &from) {
            return Answer::Done(result);
        }
        data::write(&self.links, cx, file, *how, from)
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        listing::readdir(&self.links, cx, file, cookie, page)
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.links.call_unit(cx, Request::Syncfs)
    }

    offered!(xattrs: Xattrs = XATTRS, locks: Locks = LOCKS, persistent_handles: PersistentHandles = HANDLES,
        ranges: Ranges = RANGES, changes: Changes = CHANGES, versions: Versions = VERSIONS);
}
