//! Locks. Whole-file locks (flock) belong to an opening's own descriptor; record locks are in
//! [`records`](crate::records).

use std::os::fd::AsFd;
use std::sync::Arc;

use tombolo_core::fs::{File, Lock, LockFamily, LockKind, LockOwner, LockRange, Locks};
use tombolo_core::{Answer, Ctx, Error, Resource, Result, or_answer};
use tombolo_sys::Errno;
use tombolo_sys::lock;
use tombolo_sys::open::{OpenFlags as SysFlags, OwnDescriptors};

use crate::files::OpenFile;
use crate::records::{LockRequest, Records, RegisteredWait, sys_kind};
use crate::state::{ExportState, LocalSession, Session};
use crate::waiting::Claim;

impl Locks for LocalSession {
    fn test(&self, cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        let lock = *lock;
        self.on(cx, file, move |session, open| match lock.family {
            LockFamily::Flock => session.test_flock(&open, &lock),
            LockFamily::Posix => session.records.conflict(&open, &lock),
        })
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let open = or_answer!(self.0.files.find(file));
        let local = open.medium.local;
        let attempt = or_answer!(Attempt::new(open, file, lock));
        if !local && !wait {
            return self.in_pool(cx, move |session, _| attempt.run(&session.export.own, &session.records));
        }
        match if local { attempt.run(&self.0.export.own, &self.0.records) } else { Err(Error::WouldBlock) } {
            Err(Error::WouldBlock) if wait => self.0.wait_for(cx, attempt),
            outcome => outcome.into(),
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
                LockFamily::Posix => session.records.unlock(open.node, owner, range)?,
            }
            session.export.waiting.retry();
            Ok(())
        })
    }
}

impl LocalSession {
    /// Runs work on an opening: on the calling thread, or in the pool for remote file systems.
    fn on<T: Send + 'static>(
        &self,
        cx: &Ctx,
        file: File,
        work: impl FnOnce(&Session, Arc<OpenFile>) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        match self.0.files.find(file) {
            Ok(open) if open.medium.local => work(&self.0, open).into(),
            Ok(open) => self.in_pool(cx, move |session, _| work(session, open)),
            Err(error) => Answer::err(error),
        }
    }
}

/// A lock to be tried, possibly several times.
enum Attempt {
    /// The whole file, for an opening.
    Whole(Arc<OpenFile>, LockKind),
    /// A byte range, for an owner.
    Records(LockRequest),
}

impl Attempt {
    fn new(open: Arc<OpenFile>, file: File, lock: &Lock) -> Result<Self> {
        if lock.family == LockFamily::Flock {
            return Ok(Self::Whole(open, lock.kind));
        }
        let request = LockRequest { open, through: file.open, lock: *lock };
        request.check()?;
        Ok(Self::Records(request))
    }

    fn run(&self, own: &OwnDescriptors, records: &Records) -> Result<()> {
        match self {
            Self::Whole(open, kind) => Ok(lock::try_flock(open.fd(), sys_kind(*kind))?),
            Self::Records(request) => records.lock(own, request),
        }
    }
}

/// An attempt that is repeated. It holds no reference to the session, which waiters must not keep alive.
struct WaitingAttempt {
    attempt: Attempt,
    /// Present for record locks.
    registered: Option<RegisteredWait>,
    export: Arc<ExportState>,
    records: Arc<Records>,
}

impl Claim for WaitingAttempt {
    fn attempt(&self) -> Result<()> {
        self.attempt.run(&self.export.own, &self.records)
    }

    fn release(&self) {
        let released = match &self.attempt {
            Attempt::Whole(open, _) => lock::unflock(open.fd()).map_err(Error::from),
            Attempt::Records(_) => self.registered.as_ref().map_or(Ok(()), RegisteredWait::undo),
        };
        if let Err(error) = released {
            tracing::debug!(%error, "cannot release the lock of a cancelled wait");
        }
        self.export.waiting.retry();
    }
}

impl Session {
    /// Queues the attempt for repetition. Fails with [`Error::Busy`] if too many of the session's operations
    /// are pending.
    fn wait_for(self: &Arc<Self>, cx: &Ctx, attempt: Attempt) -> Answer<()> {
        let Some(permit) = self.budget.take(Resource::Pending, 1) else { return Answer::err(Error::Busy) };
        let registered = match &attempt {
            Attempt::Records(request) => self.records.wait(request).map(Some),
            Attempt::Whole(..) => Ok(None),
        };
        let registered = or_answer!(registered);
        let (export, records) = (self.export.clone(), self.records.clone());
        self.export.waiting.until(cx, permit, WaitingAttempt { attempt, registered, export, records })
    }

    /// Tests a whole-file lock by trying it, as the kernel cannot be queried for one.
    fn test_flock(&self, open: &OpenFile, request: &Lock) -> Result<Option<Lock>> {
        let probe = self.export.own.reopen(open.fd(), SysFlags::RDONLY)?;
        match lock::try_flock(probe.as_fd(), sys_kind(request.kind)) {
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
