//! A session: dispatch of the waist's operations to the calling thread or the pool.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Once};

use tombolo_core::fs::{
    AccessMask, Attr, Change, Client, Cookie, Create, Created, Device, DirPage, Entry, File, FileSystem,
    FileType, LockOwner, Made, Name, NewMode, NodeId, OpenFlags, OpenId, Opened, PermissionCheck,
    PersistentHandles, Profile, ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncScope, Write, Written,
};
use tombolo_core::{Answer, Budget, Ctx, Error, Resource, Result, or_answer};
use tombolo_host_runtime::descriptors::DescriptorBudget;
use tombolo_mem::{Sink, Source};
use tombolo_sys::stat;
use tombolo_sys::statfs::file_system_stat;
use tombolo_sys::sync;

use crate::files::{Allowance, Files, OpenFile};
use crate::records::Records;
use crate::state::{Clock, DESCRIPTORS_MIN, ExportState, LocalSession, Session, is_big};
use crate::table::NodeTable;

/// Largest file size: the range of a signed 64-bit offset.
const FILE_SIZE_MAX: u64 = i64::MAX as u64;

impl LocalSession {
    pub fn new(export: Arc<ExportState>, client: &Client) -> Result<Self> {
        let share = DescriptorBudget::of_process().session();
        let nodes = share.as_ref().and_then(|share| share.take(DESCRIPTORS_MIN));
        let (Some(descriptors), Some(node_descriptors)) = (share, nodes) else {
            tracing::warn!(
                client = client.label,
                "not enough descriptors for another session; raise RLIMIT_NOFILE"
            );
            return Err(Error::TooManyOpen);
        };
        // Without root the kernel would check for the server's own user only, so the caller must check.
        let checks = if export.may_assume { client.checks } else { PermissionCheck::Caller };
        if checks != client.checks {
            tracing::warn!(client = client.label, "without root, all users act as the server's user");
        }
        tracing::debug!(session = client.session.0, client = client.label, "attached");
        export.sessions.fetch_add(1, Ordering::Relaxed);
        let budget = Budget::new(export.options.limits);
        let allowance = Allowance::new(budget.clone(), descriptors);
        Ok(Self(Arc::new(Session {
            id: client.session,
            checks,
            table: NodeTable::new(),
            clock: Clock::default(),
            files: Files::default(),
            records: Records::new(allowance.clone()),
            budget,
            allowance,
            _node_descriptors: node_descriptors,
            lane: export.pool.lane(),
            notices: Arc::default(),
            watch: Once::new(),
            export,
        })))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.notices.end();
        // Without a subscriber changes are not counted, so that versions from before must not hold again.
        self.export.watchers.ended(|| self.export.changed_everything());
        if self.watch.is_completed() {
            self.export.host_watch.end();
        }
        self.export.sessions.fetch_sub(1, Ordering::Relaxed);
        // Ending the session releases its locks; wake the waiters now rather than at their next attempt.
        self.records.end();
        self.export.waiting.retry();
        tracing::debug!(session = self.id.0, "detached");
    }
}

/// Guard of an opening's locks: dropping it, on whatever thread, releases the locks taken through the
/// opening.
struct OpeningEnd {
    session: Arc<Session>,
    open: Arc<OpenFile>,
    through: OpenId,
}

impl Drop for OpeningEnd {
    fn drop(&mut self) {
        self.session.records.unlock_through(self.open.node, self.through);
        self.session.export.waiting.retry();
    }
}

impl Session {
    /// Releases an owner's record locks on a file, as any close of the file by the owner does (fcntl(2)).
    fn flushed(&self, open: &OpenFile, owner: LockOwner) {
        if self.records.knows(open.node, owner) {
            self.records.unlock_all(open.node, owner);
            self.export.waiting.retry();
        }
    }

    fn statfs(&self, node: NodeId) -> Result<StatFs> {
        let found = file_system_stat(self.location(node)?.fd())?;
        Ok(StatFs {
            block_size: found.block_size_bytes,
            blocks: found.blocks,
            blocks_free: found.blocks_free,
            blocks_available: found.blocks_available,
            files: found.files,
            files_free: found.files_free,
            name_max: found.name_max_len,
        })
    }

    fn syncfs(&self) -> Result<()> {
        for mount in self.export.mounts.all() {
            if let Some(descriptor) = mount.descriptor() {
                sync::file_system(descriptor)?;
            }
        }
        Ok(())
    }
}

/// Methods on a name in a directory that [`LocalSession::dispatch_named`] runs.
macro_rules! named {
    ($($method:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)+) => {
        $(fn $method(&self, cx: &Ctx, parent: NodeId, name: Name<'_> $(, $argument: $kind)*) -> Answer<$answer> {
            self.dispatch_named(cx, parent, name, move |session, cx, name| {
                session.$method(cx, parent, name $(, $argument)*)
            })
        })+
    };
}

impl FileSystem for LocalSession {
    tombolo_core::forward!(own self; xattrs locks ranges changes versions descriptors);

    named! {
        mkdir(mode: NewMode) -> Made;
        mknod(file_type: FileType, mode: NewMode, rdev: Device) -> Made;
        rmdir() -> Change;
    }

    fn profile(&self) -> Profile {
        Profile {
            permission_check: self.0.checks,
            read_only: self.0.export.options.read_only,
            name_max: tombolo_core::fs::NAME_MAX as u32,
            file_size_max: FILE_SIZE_MAX,
            time_granularity_ns: 1,
            writes_by_owner: true,
        }
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        if self.is_quick(parent) {
            return self.now(|session| session.lookup(cx, parent, name));
        }
        let in_memory = self.0.export.pace.timed(|| self.0.lookup_in_memory(cx, parent, name));
        if let Some(result) = in_memory {
            return Answer::Done(result);
        }
        let name = name.to_owned();
        self.later(cx, move |session, cx| session.lookup(cx, parent, name.as_name()))
    }

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        for &(node, count) in look_ups {
            if let Some(last) = self.0.forget_node(node, count) {
                self.drop_in_pool(cx, last);
            }
        }
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        match self.0.attributes_without_blocking(node, file) {
            Ok(Some(attr)) => Answer::ok(attr),
            Ok(None) => self.dispatch(cx, node, move |session, _| session.attributes(node, file)),
            Err(error) => Answer::err(error),
        }
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let set = *set;
        if self.is_quick(node) && !self.0.frees_much(node, &set) {
            return self.now(|session| session.set_attributes(cx, node, file, &set));
        }
        self.later(cx, move |session, cx| session.set_attributes(cx, node, file, &set))
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.dispatch(cx, node, move |session, cx| session.access(cx, node, mask))
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.dispatch(cx, node, move |session, _| session.read_link(node))
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let how = *how;
        self.dispatch_named(cx, parent, name, move |session, cx, name| session.create(cx, parent, name, &how))
    }

    fn create_unnamed(&self, cx: &Ctx, parent: NodeId, how: &Create) -> Answer<Created> {
        let how = *how;
        self.dispatch(cx, parent, move |session, cx| session.create_unnamed(cx, parent, &how))
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        if self.is_quick(parent) {
            return self.now(|session| session.symlink(cx, parent, name, target));
        }
        let (name, target) = (name.to_owned(), target.to_vec());
        self.later(cx, move |session, cx| session.symlink(cx, parent, name.as_name(), &target))
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.dispatch_named(cx, parent, name, move |session, cx, name| session.link(cx, node, parent, name))
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        let quick = self.is_quick(parent);
        if quick && !self.0.is_big(parent, name, cx.found.as_deref()) {
            return self.now(|session| session.unlink(cx, parent, name));
        }
        let name = name.to_owned();
        let work = move |session: &Session, cx: &Ctx| session.unlink(cx, parent, name.as_name());
        // If this removal is slow only because of the file's size, its duration is no sample for others.
        if quick { self.in_pool(cx, work) } else { self.later(cx, work) }
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
        let quick = self.is_quick(from_parent) && self.is_quick(to_parent);
        if quick && !self.0.is_big(to_parent, to, None) {
            return self.now(|session| session.rename(cx, from_parent, from, to_parent, to, flags));
        }
        let (from, to) = (from.to_owned(), to.to_owned());
        let work = move |session: &Session, cx: &Ctx| {
            session.rename(cx, from_parent, from.as_name(), to_parent, to.as_name(), flags)
        };
        if quick { self.in_pool(cx, work) } else { self.later(cx, work) }
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        let empties =
            SetAttr { size: flags.contains(OpenFlags::TRUNCATE).then_some(0), ..SetAttr::default() };
        if self.is_quick(node) && !self.0.frees_much(node, &empties) {
            return self.now(|session| session.open(cx, node, flags));
        }
        self.later(cx, move |session, cx| session.open(cx, node, flags))
    }

    fn release(&self, cx: &Ctx, file: File) {
        let Some(open) = self.0.files.remove(file) else { return };
        self.0.table.closes(open.node);
        // Closing takes long if it frees the space of a large deleted file, or on a remote file system, where
        // it releases locks and flushes data.
        let frees_much = || stat::stat(open.fd()).is_ok_and(|stat| stat.links == 0 && is_big(&stat));
        let is_slow = !open.medium.local || (open.cursor.is_none() && frees_much());
        let ending = OpeningEnd { session: self.0.clone(), open, through: file.open };
        if is_slow {
            self.drop_in_pool(cx, ending);
        }
    }

    fn flush(&self, cx: &Ctx, file: File, owner: LockOwner) -> Answer<()> {
        let open = or_answer!(self.0.files.find(file));
        if open.medium.local {
            self.0.flushed(&open, owner);
            return Answer::ok(());
        }
        let syncs = open.flags.contains(OpenFlags::WRITE);
        if !syncs && !self.0.records.knows(open.node, owner) {
            return Answer::ok(());
        }
        self.in_pool(cx, move |session, _| {
            session.flushed(&open, owner);
            if syncs { Ok(sync::data(open.fd())?) } else { Ok(()) }
        })
    }

    fn is_prompt(&self, file: File) -> bool {
        self.0.files.find(file).is_ok_and(|open| open.medium.local)
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncScope) -> Answer<()> {
        let open = or_answer!(self.0.files.find(file));
        // A file system in memory has no disk to wait for.
        if open.medium.memory {
            return self.now(|_| open.sync(what));
        }
        self.in_pool(cx, move |_, _| open.sync(what))
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.transfer_in(cx, file, offset, into)
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        self.transfer_out(cx, file, *how, from)
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.list(cx, file, cookie, page)
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        self.dispatch(cx, node, move |session, _| session.statfs(node))
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        self.in_pool(cx, |session, _| session.syncfs())
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        let root = self.0.export.mounts.mount(0).ok()?;
        if root.handles { Some(self) } else { None }
    }
}

impl fmt::Debug for LocalSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = &self.0;
        let nodes = session.budget.used(Resource::Nodes);
        write!(
            f,
            "LocalSession({}: {nodes} nodes, {} with a descriptor)",
            session.id.0,
            session.open_places()
        )
    }
}
