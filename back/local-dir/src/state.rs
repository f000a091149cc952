//! What an export and its sessions hold, and where their work is done: at once, or in the pool.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tombolo_core::fs::{
    Attr, File, FileType, Name, NodeId, NoticeQueue, OpenFlags, PermissionCheck, Watchers,
};
use tombolo_core::{Answer, Budget, Ctx, Error, Resource, Result, SessionId};
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
use crate::table::{Identity, Table};
use crate::turns::Turns;
use crate::waiting::Waiting;

/// Where a node is: a descriptor that stays open while this lives.
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

/// What the sessions of an export share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub options: Options,
    pub root: Location,
    /// Once it was asked for: the root is never closed, and in no table.
    pub root_handle: OnceLock<FileHandle>,
    pub own: OwnDescriptors,
    pub mounts: Mounts,
    pub pool: ThreadPool,
    /// Work on names.
    pub pace: Pace,
    /// Small writes.
    pub write_pace: Pace,
    /// Whether this process may act as other users.
    pub may_assume: bool,
    pub waiting: Waiting,
    pub last_look: LastLook,
    pub sessions: AtomicUsize,
    /// What the nodes of all sessions may have open.
    pub node_descriptors: Share,
    /// Changes of directories.
    pub turns: Turns,
    /// Sessions that are told of changes.
    pub watchers: Watchers<Session>,
    pub host_watch: HostWatch,
    /// Where changes are counted, once a session looks; empty if there is no memory for it.
    pub window: OnceLock<Option<Window>>,
}

/// The nodes of no session get fewer descriptors than this.
pub(crate) const DESCRIPTORS_MIN: usize = 16;

impl Shared {
    /// How many descriptors the nodes of each session may have at present.
    pub fn descriptors_each(&self) -> usize {
        (self.node_descriptors.guaranteed() / self.sessions.load(Ordering::Relaxed).max(1))
            .max(DESCRIPTORS_MIN)
    }

    /// A session has begun.
    pub fn attached(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// A session has ended.
    pub fn detached(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The list of mounts is read at most this often, however many handles ask for it.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// When the mounts were last looked for.
#[derive(Debug, Default)]
pub(crate) struct LastLook(Mutex<Option<Instant>>);

impl LastLook {
    /// Whether it is time to look again; if so, it counts as done.
    pub fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= AT_MOST_EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// The nodes that have a descriptor, in the order in which they got it: a clock that evicts what was not used
/// for a whole round.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    pub round: Mutex<VecDeque<NodeId>>,
    /// May be short by those that are just being counted.
    pub open: AtomicIsize,
}

/// A session's view of a directory. What may take long goes on in the pool with a share of [`Session`].
pub(crate) struct LocalSession(pub(crate) Arc<Session>);

/// What a session holds.
pub(crate) struct Session {
    pub id: SessionId,
    pub export: Arc<Shared>,
    /// The party that really checks permissions.
    pub checks: PermissionCheck,
    pub table: Table,
    pub clock: Clock,
    pub files: Files,
    pub records: Arc<Records>,
    pub budget: Arc<Budget>,
    /// What it may have open.
    pub allowance: Arc<Allowance>,
    /// For its nodes, whatever the others' have.
    pub _node_descriptors: descriptors::Permit,
    pub lane: Lane,
    /// What it is to be told.
    pub notices: Arc<NoticeQueue>,
    /// It has asked.
    pub watch: Once,
}

/// Removing or cutting off more than this (4 MiB, in units of 512 bytes) takes the file system long enough to
/// matter.
const BIG_BLOCKS: u64 = 8192;

impl LocalSession {
    /// Whether work on names around `node` may be done at once.
    #[inline]
    pub(crate) fn is_quick(&self, node: NodeId) -> bool {
        self.0.export.pace.is_quick() && self.0.is_local(node)
    }

    /// Does work on names at once, and learns how long it takes.
    #[inline]
    pub(crate) fn now<T>(&self, work: impl FnOnce(&Session) -> Result<T>) -> Answer<T> {
        Answer::Done(self.0.export.pace.timed(|| work(&self.0)))
    }

    /// Does work on names in the pool, and learns how long it takes there.
    pub(crate) fn later<T: Send + 'static>(
        &self,
        cx: &Ctx,
        work: impl FnOnce(&Session, &Ctx) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.in_pool(cx, move |session, cx| session.export.pace.timed(|| work(session, cx)))
    }

    /// Does work on names around `node` at once if that is quick, or else in the pool.
    pub(crate) fn dispatch<T: Send + 'static>(
        &self,
        cx: &Ctx,
        node: NodeId,
        work: impl FnOnce(&Session, &Ctx) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        if self.is_quick(node) { self.now(|session| work(session, cx)) } else { self.later(cx, work) }
    }

    /// Moves `bytes` of data in the pool; they count against the session's budget until that is done.
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

    /// An opening that was made for this.
    pub(crate) fn opening(&self, file: File, flags: OpenFlags) -> Result<Arc<OpenFile>> {
        let open = self.0.files.find(file)?;
        open.require(flags)?;
        Ok(open)
    }

    /// Does work in the pool that is slow by nature.
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
}

impl Session {
    /// Refuses changes to an export that is read-only.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.export.options.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Refuses what lies on another mount, where such are hidden.
    pub(crate) fn admit(&self, stat: &Stat) -> Result<()> {
        let hidden = self.export.options.submounts == Submounts::Hide
            && self.export.mounts.index_of(stat).is_none_or(|index| index != 0);
        if hidden { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Whether a node lies on this machine.
    #[inline]
    pub(crate) fn is_local(&self, node: NodeId) -> bool {
        let mounts = &self.export.mounts;
        mounts.all_local()
            || self.location_at_hand(node).ok().flatten().is_some_and(|location| {
                mounts.mount(location.identity.key.mount).is_ok_and(|mount| mount.medium.local)
            })
    }

    /// Whether taking this name away frees much space. `found` is what has it, if that is known.
    pub(crate) fn is_big(&self, parent: NodeId, name: Name<'_>, found: Option<&Attr>) -> bool {
        if let Some(found) = found {
            return found.file_type == FileType::Regular && found.blocks > BIG_BLOCKS && found.nlink == 1;
        }
        let Ok(Some(dir)) = self.location_at_hand(parent) else { return false };
        stat::stat_entry(dir.fd(), name.as_bytes()).is_ok_and(|stat| is_big(&stat) && stat.links == 1)
    }

    /// How quick small writes are.
    pub(crate) fn write_pace(&self) -> &Pace {
        &self.export.write_pace
    }
}

/// Whether a file holds enough to be slow to free.
pub(crate) fn is_big(stat: &Stat) -> bool {
    stat.is_regular() && stat.blocks > BIG_BLOCKS
}
