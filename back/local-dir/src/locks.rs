//! Locks. Whole-file locks (flock) belong to an opening's own descriptor. Record locks belong to an owner: each owner on a
//! file has one descriptor, whose open file description holds the locks (OFD locks), so that owners, sessions and
//! processes of the host all see each other.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{
    Answer, Ctx, Error, File, Lock, LockFamily, LockKind, LockOwner, LockRange, Locks, NodeId, OpenFlags,
    Resource, Result,
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
    fn test(&self, _cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        self.0.files.find(file).and_then(|open| self.0.test_lock(&open, lock)).into()
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let attempt = match self.0.files.find(file).and_then(|open| self.0.prepare(open, lock)) {
            Ok(attempt) => attempt,
            Err(error) => return Answer::err(error),
        };
        match attempt.run() {
            Err(Errno::AGAIN) if wait => {
                let Some(permit) = self.0.budget.take(Resource::Pending, 1) else {
                    return Answer::err(Error::Busy);
                };
                self.0.export.waiting.until(cx, permit, move || attempt.run())
            }
            Err(errno) => {
                self.0.let_go_if_idle(&attempt);
                Answer::err(errno)
            }
            Ok(()) => Answer::ok(()),
        }
    }

    fn unlock(
        &self,
        _cx: &Ctx,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Answer<()> {
        let result = self.0.files.find(file).and_then(|open| match family {
            LockFamily::Flock => Ok(lock::unflock(open.fd())?),
            LockFamily::Posix => self.0.unlock_range(open.node, owner, range),
        });
        self.0.export.waiting.look();
        result.into()
    }
}

/// A lock to be tried, perhaps more than once.
struct Attempt {
    target: Target,
    kind: SysKind,
    range: SysRange,
    key: (NodeId, LockOwner),
}

enum Target {
    /// The whole file, for an opening.
    Whole(Arc<OpenFile>),
    /// Records, for an owner.
    Records { descriptor: Arc<OwnedFd>, fresh: bool },
}

impl Attempt {
    fn run(&self) -> tombolo_sys::Result<()> {
        match &self.target {
            Target::Whole(open) => lock::try_flock(open.fd(), self.kind),
            Target::Records { descriptor, .. } => lock::try_lock(descriptor.as_fd(), self.kind, self.range),
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

    fn prepare(&self, open: Arc<OpenFile>, lock: &Lock) -> Result<Attempt> {
        let kind = sys_kind(lock.kind);
        let key = (open.node, lock.owner);
        if lock.family == LockFamily::Flock {
            let range = SysRange { start: 0, len: 0 };
            return Ok(Attempt { target: Target::Whole(open), kind, range, key });
        }
        // fcntl(2): the kind of lock must suit the way in which the file was opened.
        let needs = if lock.kind == LockKind::Write { OpenFlags::WRITE } else { OpenFlags::READ };
        if !open.flags.contains(needs) {
            return Err(Error::BadOpen);
        }
        let range = sys_range(lock.range)?;
        let mut holders = self.holders.lock();
        let (descriptor, fresh) = match holders.get(&key) {
            Some(holder) => (holder.descriptor.clone(), false),
            None => {
                let descriptor = Arc::new(self.holder_for(&open)?);
                if !self.budget.try_add(Resource::Opens, 1) {
                    return Err(Error::NoLocks);
                }
                holders.insert(key, Holder { descriptor: descriptor.clone(), pid: lock.pid });
                (descriptor, true)
            }
        };
        Ok(Attempt { target: Target::Records { descriptor, fresh }, kind, range, key })
    }

    /// A descriptor for a new owner: for both kinds of lock if possible, since locks cannot move to another one later.
    fn holder_for(&self, open: &OpenFile) -> Result<OwnedFd> {
        let own = &self.export.own;
        own.reopen(open.fd(), SysFlags::RDWR)
            .or_else(|_| own.reopen(open.fd(), SysFlags::RDONLY))
            .map_err(Error::from)
    }

    /// An owner that was made for a lock which it then did not get needs no descriptor.
    fn let_go_if_idle(&self, attempt: &Attempt) {
        if let Target::Records { fresh: true, .. } = attempt.target {
            self.unlock_all(attempt.key.0, attempt.key.1);
        }
    }

    fn unlock_range(&self, node: NodeId, owner: LockOwner, range: LockRange) -> Result<()> {
        let range = sys_range(range)?;
        if range == (SysRange { start: 0, len: 0 }) {
            self.unlock_all(node, owner);
            return Ok(());
        }
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
