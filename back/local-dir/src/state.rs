//! State of an export and its sessions, and the choice between the calling thread and the pool.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::{Duration, Instant};

use tombolo_core::fs::{
    Attr, File, FileType, Name, NodeId, NoticeQueue, OpenFlags, PermissionCheck, Watchers,
};
use tombolo_core::{Answer, Budget, Ctx, Error, Resource, Result, SessionId, lock};
use tombolo_host_runtime::descriptors::{self, Share};
use tombolo_host_runtime::pace::Pace;
use tombolo_host_runtime::thread_pool::{Lane, ThreadPool};
use tombolo_shm::window::Window;
use tombolo_sys::handle::FileHandle;
use tombolo_sys::open::OwnDescriptors;
use tombolo_sys::stat::{self, Stat};

use crate::files::{Allowance, Files, OpenFile};
use crate::host_watch::HostWatch;
use crate::mounts::Mounts;
use crate::options::{Options, Submounts};
use crate::records::Records;
use crate::table::{Identity, NodeTable};
use crate::turns::Turns;
use crate::waiting::Waiting;

/// A node's descriptor, which stays open while the `Location` lives, and the identity of its file.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    descriptor: Arc<OwnedFd>,
    pub identity: Identity,
}

impl Location {
    pub fn new(identity: Identity, descriptor: Arc<OwnedFd>) -> Self {
        Self { descriptor, identity }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    pub fn kind(&self) -> u32 {
        self.identity.kind
    }
}

/// State shared by the sessions of an export.
#[derive(Debug)]
pub(crate) struct ExportState {
    pub options: Options,
    pub root: Location,
    /// The root's handle, set by the first request for it: the node table has no entry for the root.
    pub root_handle: OnceLock<FileHandle>,
    /// Access to this process's descriptors in `/proc`, through which `O_PATH` ones are reopened.
    pub own: OwnDescriptors,
    pub mounts: Mounts,
    pub pool: ThreadPool,
    /// Recent pace of metadata operations, which decides between the calling thread and the pool.
    pub pace: Pace,
    /// Recent pace of small writes and copies, which decides between thread and pool for those.
    pub write_pace: Pace,
    /// `true` if this process may act as other users.
    pub may_assume: bool,
    /// Requests that wait for locks.
    pub waiting: Waiting,
    pub last_mount_scan: LastMountScan,
    /// Number of sessions, among which the descriptors of nodes are divided.
    pub sessions: AtomicUsize,
    /// The descriptor share of the nodes of all sessions.
    pub node_descriptors: Share,
    pub turns: Turns,
    /// Sessions subscribed to changes.
    pub watchers: Watchers<Session>,
    pub host_watch: HostWatch,
    /// Change counters, created when a session first reads them; `None` if there is no memory for them.
    pub window: OnceLock<Option<Window>>,
}

/// Minimum number of descriptors for the nodes of a session.
pub(crate) const DESCRIPTORS_MIN: usize = 16;

impl ExportState {
    /// Returns the number of descriptors that the nodes of each session may have at present.
    pub fn descriptors_each(&self) -> usize {
        (self.node_descriptors.guaranteed() / self.sessions.load(Ordering::Relaxed).max(1))
            .max(DESCRIPTORS_MIN)
    }
}

/// Minimum interval between reads of the mount list for handles, however many need it.
const MOUNT_SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Time of the last read of the mount list for a handle.
#[derive(Debug, Default)]
pub(crate) struct LastMountScan(Mutex<Option<Instant>>);

impl LastMountScan {
    /// Returns `true` if a read is due, and counts it as done.
    pub fn is_due(&self) -> bool {
        let mut last = lock(&self.0);
        let due = last.is_none_or(|last| last.elapsed() >= MOUNT_SCAN_INTERVAL);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// Eviction clock: the nodes with a descriptor, the next to be examined first. Above the limit of
/// descriptors, a node that was not used for a whole round loses its descriptor.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    pub round: Mutex<VecDeque<NodeId>>,
    /// Number of open descriptors; may lag behind by those that are being counted.
    pub open: AtomicIsize,
}

/// A session of a directory. Operations in the pool share its [`Session`].
pub(crate) struct LocalSession(pub(crate) Arc<Session>);

/// State of a session, shared with the threads that execute its operations.
pub(crate) struct Session {
    pub id: SessionId,
    pub export: Arc<ExportState>,
    /// The party that actually checks permissions.
    pub checks: PermissionCheck,
    pub table: NodeTable,
    pub clock: Clock,
    pub files: Files,
    pub records: Arc<Records>,
    pub budget: Arc<Budget>,
    pub allowance: Arc<Allowance>,
    /// Descriptors reserved for the session's nodes, independent of other sessions.
    pub _node_descriptors: descriptors::Permit,
    /// The session's queue in the pool.
    pub lane: Lane,
    pub notices: Arc<NoticeQueue>,
    /// Completed once the session has subscribed to changes.
    pub watch: Once,
}

/// Allocated size of a file (4 MiB, in units of 512 bytes) above which removal or truncation takes noticeably
/// long.
const BIG_BLOCKS: u64 = 8192;

impl LocalSession {
    /// Returns `true` if metadata operations on `node` or its entries may run on the calling thread.
    #[inline]
    pub(crate) fn is_quick(&self, node: NodeId) -> bool {
        self.0.export.pace.is_quick() && self.0.is_local(node)
    }

    /// Runs a metadata operation on the calling thread, and samples its duration.
    #[inline]
    pub(crate) fn now<T>(&self, work: impl FnOnce(&Session) -> Result<T>) -> Answer<T> {
        Answer::Done(self.0.export.pace.timed(|| work(&self.0)))
    }

    /// Runs a metadata operation in the thread pool. Its duration counts for the choice between the calling
    /// thread and the pool.
    pub(crate) fn later<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce(&Session, &Ctx) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.in_pool(cx, move |session, cx| session.export.pace.timed(|| work(session, cx)))
    }

    /// Runs a metadata operation on `node` on the calling thread if that is quick, else in the pool.
    pub(crate) fn dispatch<T: Send + 'static>(
        &self,
        cx: &Ctx,
        node: NodeId,
        work: impl FnOnce(&Session, &Ctx) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        if self.is_quick(node) { self.now(|session| work(session, cx)) } else { self.later(cx, work) }
    }

    /// Does the same as [`LocalSession::dispatch`] for an operation on a name in a directory. The name is
    /// copied for the pool only.
    pub(crate) fn dispatch_named<T: Send + 'static>(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        work: impl FnOnce(&Session, &Ctx, Name<'_>) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        if self.is_quick(parent) {
            return self.now(|session| work(session, cx, name));
        }
        let name = name.to_owned();
        self.later(cx, move |session, cx| work(session, cx, name.as_name()))
    }

    /// Transfers `bytes` of data in the pool; the bytes count against the session's budget until the transfer
    /// has ended. Fails with [`Error::WouldBlock`] if the budget is exhausted.
    pub(crate) fn transfer_in_pool<T: Send + 'static>(
        &self,
        cx: &Ctx,
        bytes: usize,
        work: impl FnOnce(&Session, &Ctx) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let Some(permit) = self.0.budget.take(Resource::BytesInFlight, bytes as u64) else {
            return Answer::err(Error::WouldBlock);
        };
        self.in_pool(cx, move |session, cx| {
            let _permit = permit;
            work(session, cx)
        })
    }

    /// Returns the open file if it was opened with these flags.
    pub(crate) fn opening(&self, file: File, flags: OpenFlags) -> Result<Arc<OpenFile>> {
        let open = self.0.files.find(file)?;
        open.require(flags)?;
        Ok(open)
    }

    /// Runs an operation in the pool, and leaves it to `work` to sample the duration. Fails with
    /// [`Error::WouldBlock`] if too many of the session's operations are pending.
    pub(crate) fn in_pool<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce(&Session, &Ctx) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let Some(permit) = self.0.budget.take(Resource::Pending, 1) else {
            return Answer::err(Error::WouldBlock);
        };
        let (session, own_cx) = (Arc::clone(&self.0), cx.clone());
        self.0.lane.run(cx, move || {
            let _permit = permit;
            work(&session, &own_cx)
        })
    }

    /// Drops a value in the pool, because that may take long; on this thread if the pool accepts no more
    /// work.
    pub(crate) fn drop_in_pool(&self, cx: &Ctx, value: impl Send + 'static) {
        let work = move |_: &Session, _: &Ctx| {
            drop(value);
            Ok(())
        };
        drop(self.in_pool(cx, work));
    }
}

impl Session {
    /// Refuses changes to a read-only export.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.export.options.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Refuses files on other mounts if those are hidden.
    pub(crate) fn admit(&self, stat: &Stat) -> Result<()> {
        let hidden = self.export.options.submounts == Submounts::Hide
            && self.export.mounts.index_of(stat).is_none_or(|index| index != 0);
        if hidden { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Returns `true` if a node is known to lie on this machine; `false` also if it has no open descriptor
    /// while some mount is remote.
    #[inline]
    pub(crate) fn is_local(&self, node: NodeId) -> bool {
        let mounts = &self.export.mounts;
        mounts.all_local()
            || self.open_location(node).ok().flatten().is_some_and(|location| {
                mounts.mount(location.identity.key.mount).is_ok_and(|mount| mount.medium.local)
            })
    }

    /// Returns `true` if removing this name frees much space. `found`: the file's attributes, if available.
    pub(crate) fn is_big(&self, parent: NodeId, name: Name<'_>, found: Option<&Attr>) -> bool {
        if let Some(found) = found {
            return found.file_type == FileType::Regular && found.blocks > BIG_BLOCKS && found.nlink == 1;
        }
        let Ok(Some(dir)) = self.open_location(parent) else { return false };
        stat::stat_entry(dir.fd(), name.as_bytes()).is_ok_and(|stat| is_big(&stat) && stat.links == 1)
    }

    pub(crate) fn write_pace(&self) -> &Pace {
        &self.export.write_pace
    }
}

pub(crate) fn is_big(stat: &Stat) -> bool {
    stat.is_regular() && stat.blocks > BIG_BLOCKS
}
