//! Locks. Whole-file locks (flock) belong to an opening's own descriptor. Record locks belong to an owner: each owner on a
//! file has one descriptor, whose open file description holds the locks (OFD locks), so that owners, sessions and
//! processes of the host all see each other.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{
    Answer, Ctx, Error, File, Lock, LockFamily, LockKind, LockOwner, LockRange, Locks, NodeId, OpenFlags,
    OpenId, Resource, Result,
};
use tombolo_sys::Errno;
use tombolo_sys::lock::{self, LockKind as SysKind, LockRange as SysRange};
use tombolo_sys::open::OpenFlags as SysFlags;

use crate::files::OpenFile;
use crate::session::{LocalSession, Session};

/// The owners of record locks in a session.
#[derive(Default)]
pub(crate) struct Holders(Mutex<HashMap<(NodeId, LockOwner), Holder>>);

#[derive(Clone)]
struct Holder {
    descriptor: Arc<OwnedFd>,
    pid: u32,
    /// The openings through which locks were asked for: one, mostly.
    through: Vec<OpenId>,
}

impl Holders {
    /// Gives all locks back.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(NodeId, LockOwner), Holder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks for LocalSession {
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        let lock = *lock;
        self.on(cx, file, move |session, open| session.test_lock(&open, &lock))
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let attempt = match self.0.files.find(file).and_then(|open| self.0.prepare(file, open, lock)) {
            Ok(attempt) => attempt,
            Err(error) => return Answer::err(error),
        };
        if !attempt.local && !wait {
            return self.in_pool(cx, move |_, _| Ok(attempt.run()?));
        }
        match if attempt.local { attempt.run() } else { Err(Errno::AGAIN) } {
            Err(Errno::AGAIN) if wait => {
                let Some(permit) = self.0.budget.take(Resource::Pending, 1) else {
                    return Answer::err(Error::Busy);
                };
                self.0.export.waiting.until(cx, permit, move || attempt.run())
            }
            outcome => outcome.map_err(Error::from).into(),
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
        self.on(cx, file, move |session, open| {
            match family {
                LockFamily::Flock => lock::unflock(open.fd())?,
                LockFamily::Posix => session.unlock_range(open.node, owner, range)?,
            }
            session.export.waiting.look();
            Ok(())
        })
    }
}

impl LocalSession {
    /// Does something with an opening: at once, unless its file system would have to be asked over a wire.
    fn on<T: Send + 'static>(
        &self,
        cx: &Ctx,
        file: File,
        work: impl FnOnce(&Session, Arc<OpenFile>) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        match self.0.files.find(file) {
            Ok(open) if open.local => work(&self.0, open).into(),
            Ok(open) => self.in_pool(cx, move |session, _| work(session, open)),
            Err(error) => Answer::err(error),
        }
    }
}

/// A lock to be tried, perhaps more than once.
struct Attempt {
    target: Target,
    kind: SysKind,
    range: SysRange,
    local: bool,
}

enum Target {
    /// The whole file, for an opening.
    Whole(Arc<OpenFile>),
    /// Records, for an owner.
    Records(Arc<OwnedFd>),
}

impl Attempt {
    fn run(&self) -> tombolo_sys::Result<()> {
        match &self.target {
            Target::Whole(open) => lock::try_flock(open.fd(), self.kind),
            Target::Records(descriptor) => lock::try_lock(descriptor.as_fd(), self.kind, self.range),
        }
    }
}

impl Session {
    /// Gives back all record locks of an owner on a file.
    pub(crate) fn unlock_all(&self, node: NodeId, owner: LockOwner) {
        if self.holders.lock().remove(&(node, owner)).is_some() {
            self.budget.give_back(Resource::Opens, 1);
            self.export.waiting.look();
        }
    }

    /// Gives back the record locks that were taken through an opening that has ended.
    pub(crate) fn unlock_through(&self, file: File) {
        let mut holders = self.holders.lock();
        if holders.is_empty() {
            return;
        }
        let before = holders.len();
        holders.retain(|(node, _), holder| *node != file.node || !holder.through.contains(&file.open));
        let gone = before - holders.len();
        drop(holders);
        self.budget.give_back(Resource::Opens, gone as u64);
    }

    fn prepare(&self, file: File, open: Arc<OpenFile>, lock: &Lock) -> Result<Attempt> {
        let (kind, local) = (sys_kind(lock.kind), open.local);
        if lock.family == LockFamily::Flock {
            let range = SysRange { start: 0, len: 0 };
            return Ok(Attempt { target: Target::Whole(open), kind, range, local });
        }
        // fcntl(2): the kind of lock must suit the way in which the file was opened.
        let needs = if lock.kind == LockKind::Write { OpenFlags::WRITE } else { OpenFlags::READ };
        if !open.flags.contains(needs) {
            return Err(Error::BadOpen);
        }
        let range = sys_range(lock.range)?;
        let descriptor = self.holder(file, &open, lock)?;
        Ok(Attempt { target: Target::Records(descriptor), kind, range, local })
    }

    /// The descriptor of an owner. It stays until the owner's flush, even with nothing locked: another thread of the
    /// owner may be about to lock something through it.
    fn holder(&self, file: File, open: &OpenFile, lock: &Lock) -> Result<Arc<OwnedFd>> {
        let mut holders = self.holders.lock();
        if let Some(holder) = holders.get_mut(&(file.node, lock.owner)) {
            if !holder.through.contains(&file.open) {
                holder.through.push(file.open);
            }
            return Ok(holder.descriptor.clone());
        }
        if !self.budget.try_add(Resource::Opens, 1) {
            return Err(Error::NoLocks);
        }
        let made = self.holder_for(open).inspect_err(|_| self.budget.give_back(Resource::Opens, 1))?;
        let descriptor = Arc::new(made);
        let holder = Holder { descriptor: descriptor.clone(), pid: lock.pid, through: vec![file.open] };
        holders.insert((file.node, lock.owner), holder);
        Ok(descriptor)
    }

    /// A descriptor for a new owner: for both kinds of lock if possible, since locks cannot move to another one later.
    fn holder_for(&self, open: &OpenFile) -> Result<OwnedFd> {
        let own = &self.export.own;
        own.reopen(open.fd(), SysFlags::RDWR)
            .or_else(|_| own.reopen(open.fd(), SysFlags::RDONLY))
            .map_err(Error::from)
    }

    fn unlock_range(&self, node: NodeId, owner: LockOwner, range: LockRange) -> Result<()> {
        let range = sys_range(range)?;
        let holder = self.holders.lock().get(&(node, owner)).cloned();
        match holder {
            Some(holder) => Ok(lock::unlock(holder.descriptor.as_fd(), range)?),
            None => Ok(()),
        }
    }

    fn test_lock(&self, open: &OpenFile, asked: &Lock) -> Result<Option<Lock>> {
        if asked.family == LockFamily::Flock {
            return self.test_flock(open, asked);
        }
        let range = sys_range(asked.range)?;
        let own = self.holders.lock().get(&(open.node, asked.owner)).cloned();
        // The opening's own description never holds records, so everybody's locks are in its way.
        let from = own.as_ref().map_or(open.fd(), |holder| holder.descriptor.as_fd());
        let Some(conflict) = lock::conflict(from, sys_kind(asked.kind), range)? else { return Ok(None) };
        let (owner, pid) = self.holder_of(open.node, conflict.range).unwrap_or((LockOwner(0), conflict.pid));
        let kind = if conflict.kind == SysKind::Shared { LockKind::Read } else { LockKind::Write };
        Ok(Some(Lock { family: LockFamily::Posix, kind, range: waist_range(conflict.range), owner, pid }))
    }

    /// Who in this session holds a lock that stands in somebody's way: the one whom it does not stand in the way of.
    fn holder_of(&self, node: NodeId, range: SysRange) -> Option<(LockOwner, u32)> {
        let holders = self.holders.lock();
        let mut candidates = holders.iter().filter(|((on, _), _)| *on == node);
        let own = |fd: BorrowedFd<'_>| matches!(lock::conflict(fd, SysKind::Exclusive, range), Ok(None));
        candidates
            .find(|(_, holder)| own(holder.descriptor.as_fd()))
            .map(|((_, owner), holder)| (*owner, holder.pid))
    }

    /// There is no way to ask about whole-file locks but to try.
    fn test_flock(&self, open: &OpenFile, asked: &Lock) -> Result<Option<Lock>> {
        let probe = self.export.own.reopen(open.fd(), SysFlags::RDONLY)?;
        match lock::try_flock(probe.as_fd(), sys_kind(asked.kind)) {
            Ok(()) => Ok(None),
            Err(Errno::AGAIN) => {
                let owner = LockOwner(0);
                let kind = LockKind::Write;
                Ok(Some(Lock { family: LockFamily::Flock, kind, range: LockRange::ALL, owner, pid: 0 }))
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

fn sys_kind(kind: LockKind) -> SysKind {
    match kind {
        LockKind::Read => SysKind::Shared,
        LockKind::Write => SysKind::Exclusive,
    }
}

/// The largest offset that the kernel has; a range up to here reaches to the end of the file.
const OFFSET_MAX: u64 = i64::MAX as u64;

fn sys_range(range: LockRange) -> Result<SysRange> {
    if range.last < range.start || range.start > OFFSET_MAX {
        return Err(Error::InvalidArgument);
    }
    let len = if range.last >= OFFSET_MAX { 0 } else { range.last - range.start + 1 };
    Ok(SysRange { start: range.start, len })
}

fn waist_range(range: SysRange) -> LockRange {
    let last = if range.len == 0 { u64::MAX } else { range.start + range.len - 1 };
    LockRange { start: range.start, last }
}
