//! The waist as [`PersistentFs`] implements it: each operation translates the guest's numbers to those of the
//! underlying file system, calls it, and translates the numbers in its result back.

use std::sync::Arc;

use tombolo_core::fs::{
    AllocateMode, Attr, Change, Cookie, Create, Created, Device, DirPage, Entry, File, FileSystem, FileType,
    Lock, LockOwner, Locks, Made, Name, NewMode, NodeId, OpenFlags, Opened, PersistentHandle,
    PersistentHandles, Profile, Ranges, RenameFlags, Renamed, SetAttr, Volume, Xattrs, within,
};
use tombolo_core::{Answer, Ctx, Error, Result, or_answer};

use super::PersistentFs;
use super::area::{Number, reopen_flags};

impl PersistentFs {
    fn below(&self) -> &dyn FileSystem {
        &*self.0.below
    }

    #[inline]
    fn on_node<T>(&self, node: NodeId, call: impl FnOnce(&dyn FileSystem, NodeId) -> Answer<T>) -> Answer<T> {
        let node = or_answer!(self.0.node(node));
        call(self.below(), node)
    }

    #[inline]
    fn on_file<T>(&self, file: File, call: impl FnOnce(&dyn FileSystem, File) -> Answer<T>) -> Answer<T> {
        let file = or_answer!(self.0.file(file));
        call(self.below(), file)
    }

    fn maybe_file(&self, file: Option<File>) -> Result<Option<File>> {
        file.map(|file| self.0.file(file)).transpose()
    }

    fn found(&self, cx: &Ctx, answer: Answer<Entry>) -> Answer<Entry> {
        let (inner, cx) = (Arc::clone(&self.0), cx.clone());
        answer.then(move |entry| inner.adopt(&cx, entry))
    }

    fn making(
        &self,
        cx: &Ctx,
        parent: NodeId,
        make: impl FnOnce(&dyn FileSystem, NodeId) -> Answer<Made>,
    ) -> Answer<Made> {
        let (inner, cx) = (Arc::clone(&self.0), cx.clone());
        self.on_node(parent, make)
            .then(move |made| inner.adopt(&cx, made.entry).map(move |entry| Made { entry, ..made }))
    }

    fn creating(
        &self,
        cx: &Ctx,
        parent: NodeId,
        flags: OpenFlags,
        create: impl FnOnce(&dyn FileSystem, NodeId) -> Answer<Created>,
    ) -> Answer<Created> {
        let (inner, cx) = (Arc::clone(&self.0), cx.clone());
        self.on_node(parent, create).then(move |created| {
            let emptied = inner.empty_created(&cx, flags, created);
            emptied.then(move |created| {
                inner.adopt_created(&cx, flags, created).then(move |created| {
                    let file = File { node: created.entry.node, open: created.open };
                    inner.store_nameless(&cx, file).map(move |()| created)
                })
            })
        })
    }
}

impl FileSystem for PersistentFs {
    tombolo_core::forward!(at self.on_node; access readlink rmdir statfs);
    tombolo_core::forward!(at self.on_file; fsync read write);
    tombolo_core::forward!(own self; persistent_handles);

    fn profile(&self) -> Profile {
        self.below().profile()
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        self.found(cx, self.on_node(parent, |below, parent| below.lookup(cx, parent, name)))
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.0.forget(cx, look_ups);
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        let file = or_answer!(self.maybe_file(file));
        self.on_node(node, |below, node| below.getattr(cx, node, file))
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let file = or_answer!(self.maybe_file(file));
        self.on_node(node, |below, node| below.setattr(cx, node, file, set))
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let reopen_flags = Create { flags: reopen_flags(how.flags), ..*how };
        self.creating(cx, parent, how.flags, |below, parent| below.create(cx, parent, name, &reopen_flags))
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        self.creating(cx, parent, how.flags, |below, parent| below.create_unnamed(cx, parent, how))
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, mode: NewMode) -> Answer<Made> {
        self.making(cx, parent, |below, parent| below.mkdir(cx, parent, name, mode))
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        self.making(cx, parent, |below, parent| below.symlink(cx, parent, name, target))
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
        self.making(cx, parent, |below, parent| below.mknod(cx, parent, name, file_type, mode, rdev))
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.making(cx, parent, |below, parent| match self.0.node(node) {
            Ok(node) => below.link(cx, node, parent, name),
            Err(error) => Answer::err(error),
        })
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.on_node(parent, |_, parent| {
            let (inner, cx_then, name_then) = (Arc::clone(&self.0), cx.clone(), name.to_owned());
            self.0.before_removal(cx, parent, name).then(move |removal| {
                let cx = Ctx { found: removal.found.clone(), ..cx_then };
                let answer = inner.below.unlink(&cx, parent, name_then.as_name());
                answer.map_result(move |change| {
                    drop(removal);
                    change
                })
            })
        })
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
        self.on_node(from_parent, |_, from_parent| {
            let to_parent = or_answer!(self.0.node(to_parent));
            let replaces = !flags.intersects(RenameFlags::NO_REPLACE | RenameFlags::EXCHANGE);
            let removal = match replaces {
                true => self.0.before_removal(cx, to_parent, to).map(Some),
                false => Answer::ok(None),
            };
            let (inner, cx, from, to) = (Arc::clone(&self.0), cx.clone(), from.to_owned(), to.to_owned());
            removal.then(move |removal| {
                let answer =
                    inner.below.rename(&cx, from_parent, from.as_name(), to_parent, to.as_name(), flags);
                answer.map_result(move |renamed| {
                    drop(removal);
                    renamed
                })
            })
        })
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let (inner, cx_then) = (Arc::clone(&self.0), cx.clone());
        self.on_node(node, |below, local| {
            below.open(cx, local, reopen_flags(flags)).then(move |opened| {
                let file = File { node: local, open: opened.open };
                inner.empty(&cx_then, flags, file).then(move |emptied| {
                    let open = or_answer!(inner.opened(&cx_then, node, flags, file));
                    let opened = Opened { open, attr: opened.attr.map(|attr| emptied.unwrap_or(attr)) };
                    inner.store_nameless(&cx_then, File { node, open }).map(move |()| opened)
                })
            })
        })
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.0.release(cx, file);
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        let flush = self.0.flushes(file.node, owner);
        self.on_file(file, |below, local| {
            let answer = below.flush(cx, local, owner);
            answer.map(move |()| flush.into_iter().for_each(|flush| flush.ended(local)))
        })
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        let has_nodes = page.wants_entries();
        let answer = self.on_file(file, |below, file| below.readdir(cx, file, cookie, page));
        if !has_nodes {
            return answer;
        }
        let (inner, cx) = (Arc::clone(&self.0), cx.clone());
        answer.then(move |page| inner.adopt_page(&cx, page))
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.below().syncfs(cx)
    }

    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.below().xattrs().map(|_| self as &dyn Xattrs)
    }

    fn locks(&self) -> Option<&dyn Locks> {
        self.below().locks().map(|_| self as &dyn Locks)
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        self.below().ranges().map(|_| self as &dyn Ranges)
    }
}

impl Xattrs for PersistentFs {
    tombolo_core::forward!(at self.on_node; get set list remove);
}

impl Locks for PersistentFs {
    tombolo_core::forward!(at self.on_file; test unlock);

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let (inner, taken) = (Arc::clone(&self.0), *lock);
        self.on_file(file, |below, local| {
            let answer = within(below.locks(), |locks| locks.lock(cx, local, lock, wait));
            answer.map(move |()| inner.store_lock(file, local, &taken))
        })
    }
}

/// Handles of the underlying file system, for nodes under the guest's numbers.
impl PersistentHandles for PersistentFs {
    tombolo_core::forward!(at self.on_node; handle_of);

    fn volume(&self) -> Volume {
        self.below().persistent_handles().map(PersistentHandles::volume).unwrap_or_default()
    }

    fn resolve(&self, cx: &Ctx, handle: &PersistentHandle) -> Answer<Entry> {
        let found = within(self.below().persistent_handles(), |handles| handles.resolve(cx, handle));
        self.found(cx, found)
    }

    fn parent(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        let found = self.on_node(node, |below, node| {
            within(below.persistent_handles(), |handles| handles.parent(cx, node))
        });
        self.found(cx, found)
    }

    /// Looks up a node by a number that the guest's kernel has put into a file handle of its own, even if the
    /// guest has forgotten the node, until the node's record is reused.
    fn node_by_number(&self, cx: &Ctx, node: NodeId) -> Answer<Entry> {
        let found = match (self.0.node(node), self.0.area.handle_by(Number(node.0))) {
            (Ok(local), _) => {
                let again =
                    within(self.below().persistent_handles(), |handles| handles.node_by_number(cx, local));
                self.found(cx, again)
            }
            (Err(_), Some(handle)) => self.resolve(cx, &handle),
            (Err(error), None) => return Answer::err(error),
        };
        let (inner, cx) = (Arc::clone(&self.0), cx.clone());
        found.map_result(move |found| {
            let entry = found?;
            if entry.node != node {
                inner.forget(&cx, &[(entry.node, 1)]);
                return Err(Error::Stale);
            }
            Ok(entry)
        })
    }
}

/// Modes that shift the file's remaining data. They are refused, because a request that the next process
/// repeats would shift the data twice.
const NOT_TWICE: AllocateMode = AllocateMode::COLLAPSE_RANGE.union(AllocateMode::INSERT_RANGE);

impl Ranges for PersistentFs {
    tombolo_core::forward!(at self.on_file; seek);

    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        if mode.intersects(NOT_TWICE) {
            return Answer::err(Error::NotSupported);
        }
        self.on_file(file, |below, file| {
            within(below.ranges(), |ranges| ranges.allocate(cx, file, offset, len, mode))
        })
    }

    fn copy(
        &self,
        cx: &Ctx,
        from: File,
        from_offset: u64,
        to: File,
        to_offset: u64,
        len: u64,
    ) -> Answer<u64> {
        self.on_file(from, |below, from| match self.0.file(to) {
            Ok(to) => within(below.ranges(), |ranges| ranges.copy(cx, from, from_offset, to, to_offset, len)),
            Err(error) => Answer::err(error),
        })
    }
}
