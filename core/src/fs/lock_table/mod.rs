//! The advisory locks of a file system that implements them itself.

mod file;
mod wait;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use super::{File, Lock, LockFamily, LockKind, LockOwner, LockRange, NodeId, OpenFlags};
use crate::{Answer, Ctx, Error, Result, lock};
use file::{Claim, FileLocks, Grant, Owner, owner_of};
use wait::Wait;

/// Number of locked ranges of a file at which further locks are refused, and an unlock that would split a
/// range in two; few in tests, so that the limit is reached.
const RANGES_MAX: usize = if cfg!(test) { 16 } else { 65_536 };

/// The locks and waiters of all sessions of an export.
#[derive(Clone, Debug, Default)]
pub struct LockTable(Arc<LockTableInner>);

#[derive(Debug, Default)]
struct LockTableInner {
    table: Mutex<LockTableState>,
    next_session: AtomicU64,
}

#[derive(Default)]
struct LockTableState {
    files: HashMap<NodeId, FileLocks>,
    /// Waiting owners, and the files that they wait for.
    waiting: Vec<(Owner, NodeId)>,
    /// Function that returns `true` while locks may be granted; `None`: always.
    may_grant: Option<Box<dyn Fn() -> bool + Send>>,
}

/// One session's locks. Released when dropped.
#[derive(Debug)]
pub struct SessionLocks {
    table: LockTable,
    session: u64,
}

/// Wakers of claims that were granted or refused, called on drop. The holder must not drop this while it
/// holds a mutex, because a waker may continue the waiting request on this thread.
#[derive(Debug, Default)]
#[must_use]
pub struct Woken(Vec<Waker>);

impl Woken {
    /// Takes over the wakers of another.
    pub fn absorb(&mut self, mut more: Self) {
        self.0.append(&mut more.0);
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

impl LockTable {
    /// Returns the locks of a new session.
    pub fn session(&self) -> SessionLocks {
        let session = self.0.next_session.fetch_add(1, Ordering::Relaxed);
        SessionLocks { table: self.clone(), session }
    }

    /// Grants locks only while `may_grant` returns `true`, including to claims that wait already; otherwise
    /// refuses them with [`Error::NoLocks`]. Granted locks persist. `may_grant` runs under the lock.
    pub fn grant_while(&self, may_grant: impl Fn() -> bool + Send + 'static) {
        self.table().may_grant = Some(Box::new(may_grant));
    }

    fn table(&self) -> MutexGuard<'_, LockTableState> {
        lock(&self.0.table)
    }
}

impl SessionLocks {
    /// Implements [`Locks::test`](super::Locks::test).
    ///
    /// # Errors
    /// The range is invalid.
    pub fn test(&self, file: File, lock: &Lock) -> Result<Option<Lock>> {
        let claim = self.claim(file, lock)?;
        let table = self.table.table();
        let conflict = table.files.get(&file.node).and_then(|locks| locks.conflict(&claim));
        Ok(conflict.map(|granted| granted.lock))
    }

    /// Acquires a lock through an opening with these flags; see [`Locks::lock`](super::Locks::lock). The
    /// opening must not end during the call: [`released`](Self::released) would miss the new lock.
    pub fn lock(
        &self,
        cx: &Ctx,
        (file, flags): (File, OpenFlags),
        lock: &Lock,
        wait: bool,
    ) -> (Answer<()>, Woken) {
        let mut woken = Woken::default();
        let answer = match self.take((file, flags), lock, wait, &mut woken) {
            Ok(None) => Answer::ok(()),
            Ok(Some((claim, grant))) => {
                let (table, raised) = (self.table.clone(), cx.interrupt.raised());
                Answer::later(Wait { table, node: file.node, claim, grant, raised })
            }
            Err(error) => Answer::err(error),
        };
        (answer, woken)
    }

    /// Acquires a lock and returns `None`, or enqueues the claim and returns it with its grant.
    fn take(
        &self,
        (file, flags): (File, OpenFlags),
        lock: &Lock,
        wait: bool,
        woken: &mut Woken,
    ) -> Result<Option<(Claim, Arc<Grant>)>> {
        // A POSIX lock needs an opening that permits the conflicting access (fcntl(2)).
        let needed = match (lock.family, lock.kind) {
            (LockFamily::Flock, _) => OpenFlags::empty(),
            (LockFamily::Posix, LockKind::Read) => OpenFlags::READ,
            (LockFamily::Posix, LockKind::Write) => OpenFlags::WRITE,
        };
        if !flags.contains(needed) {
            return Err(Error::BadOpen);
        }
        let claim = self.claim(file, lock)?;
        let mut table = self.table.table();
        if !table.may_grant() {
            return Err(Error::NoLocks);
        }
        let locks = table.files.entry(file.node).or_default();
        if locks.len() >= RANGES_MAX {
            return Err(Error::NoLocks);
        }
        if locks.conflict(&claim).is_none() {
            locks.grant(claim);
            // The new lock may have replaced a write lock of its owner by a read lock, for which others wait.
            table.grant_waiters(file.node, woken);
            return Ok(None);
        }
        if !wait {
            return Err(Error::WouldBlock);
        }
        if lock.family == LockFamily::Posix && table.would_deadlock(&claim, file.node) {
            return Err(Error::Deadlock);
        }
        let grant = table.files.entry(file.node).or_default().enqueue(claim);
        table.waiting.push((claim.owner, file.node));
        Ok(Some((claim, grant)))
    }

    /// Implements [`Locks::unlock`](super::Locks::unlock).
    ///
    /// # Errors
    /// The range is invalid, or unlocking would split a locked range of a file that has the maximum number of
    /// them ([`Error::NoLocks`], as of F_UNLCK in fcntl(2)).
    pub fn unlock(
        &self,
        file: File,
        family: LockFamily,
        range: LockRange,
        owner: LockOwner,
    ) -> Result<Woken> {
        let range = if family == LockFamily::Flock { LockRange::ALL } else { checked(range)? };
        let owner = owner_of(family, self.session, file.open, owner);
        let mut table = self.table.table();
        let is_full = |locks: &FileLocks| locks.len() >= RANGES_MAX && locks.is_split_by(owner, range);
        if table.files.get(&file.node).is_some_and(is_full) {
            return Err(Error::NoLocks);
        }
        Ok(table.cut(file.node, owner, range))
    }

    /// Releases an owner's record locks after it closed a descriptor of the file (fcntl(2)).
    pub fn closed(&self, node: NodeId, owner: LockOwner) -> Woken {
        self.table.table().cut(node, Owner::Process { session: self.session, owner }, LockRange::ALL)
    }

    /// Releases the locks of an opening that has ended.
    pub fn released(&self, file: File) -> Woken {
        self.table.table().end_claims(file.node, |locks, ended| {
            locks.cut_through(self.session, file.open, ended);
        })
    }

    fn claim(&self, file: File, lock: &Lock) -> Result<Claim> {
        let range = if lock.family == LockFamily::Flock { LockRange::ALL } else { checked(lock.range)? };
        let owner = owner_of(lock.family, self.session, file.open, lock.owner);
        Ok(Claim { owner, open: file.open, lock: Lock { range, ..*lock } })
    }
}

impl Drop for SessionLocks {
    fn drop(&mut self) {
        let mut woken = Woken::default();
        let mut table = self.table.table();
        let nodes: Vec<NodeId> = table.files.keys().copied().collect();
        for node in nodes {
            woken.absorb(table.end_claims(node, |locks, ended| locks.end_session(self.session, ended)));
        }
        drop(table);
    }
}

impl std::fmt::Debug for LockTableState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockTableState").field("files", &self.files).finish_non_exhaustive()
    }
}

impl LockTableState {
    /// Ends locks and waits on a file, and grants waiting claims of others.
    fn end_claims(
        &mut self,
        node: NodeId,
        end: impl FnOnce(&mut FileLocks, &mut dyn FnMut(Owner, Option<Waker>)),
    ) -> Woken {
        let (mut ended, mut woken) = (Vec::new(), Woken::default());
        let Some(locks) = self.files.get_mut(&node) else { return woken };
        end(locks, &mut |owner, waker| {
            ended.push(owner);
            woken.0.extend(waker);
        });
        ended.into_iter().for_each(|owner| self.stop_waiting(owner, node));
        self.grant_waiters(node, &mut woken);
        woken
    }

    /// Releases a range of an owner, and grants waiting claims of others.
    fn cut(&mut self, node: NodeId, owner: Owner, range: LockRange) -> Woken {
        let mut woken = Woken::default();
        if let Some(locks) = self.files.get_mut(&node) {
            locks.cut(owner, range);
            self.grant_waiters(node, &mut woken);
        }
        woken
    }

    fn may_grant(&self) -> bool {
        self.may_grant.as_ref().is_none_or(|may_grant| may_grant())
    }

    fn grant_waiters(&mut self, node: NodeId, woken: &mut Woken) {
        let (mut settled, may_grant) = (Vec::new(), self.may_grant());
        if let Some(locks) = self.files.get_mut(&node) {
            locks.settle_waiters(may_grant, |owner, waker| {
                settled.push(owner);
                woken.0.extend(waker);
            });
        }
        settled.into_iter().for_each(|owner| self.stop_waiting(owner, node));
        self.forget_unused(node);
    }

    fn forget_unused(&mut self, node: NodeId) {
        if self.files.get(&node).is_some_and(FileLocks::is_unused) {
            self.files.remove(&node);
        }
    }

    fn stop_waiting(&mut self, owner: Owner, node: NodeId) {
        if let Some(index) = self.waiting.iter().position(|&waiting| waiting == (owner, node)) {
            self.waiting.swap_remove(index);
        }
    }

    /// Removes a waiter from the queue. Returns `false` if its wait had already ended.
    fn withdraw(&mut self, node: NodeId, claim: &Claim, grant: &Arc<Grant>) -> bool {
        let is_withdrawn = self.files.get_mut(&node).is_some_and(|locks| locks.withdraw(grant));
        if is_withdrawn {
            self.stop_waiting(claim.owner, node);
            self.forget_unused(node);
        }
        is_withdrawn
    }

    /// Returns `true` if a holder in conflict with `claim` waits, directly or indirectly, for a lock of the
    /// claim's owner.
    fn would_deadlock(&self, claim: &Claim, node: NodeId) -> bool {
        let owners_in_way = |claim: &Claim, node: NodeId| -> Vec<Owner> {
            let locks = self.files.get(&node);
            locks.into_iter().flat_map(|locks| locks.conflicts(claim).map(|granted| granted.owner)).collect()
        };
        let mut visited = Vec::new();
        let mut pending = owners_in_way(claim, node);
        while let Some(owner) = pending.pop() {
            if owner == claim.owner {
                return true;
            }
            if visited.contains(&owner) {
                continue;
            }
            visited.push(owner);
            for &(_, node) in self.waiting.iter().filter(|(waiting, _)| *waiting == owner) {
                let Some(locks) = self.files.get(&node) else { continue };
                pending.extend(locks.waiting_for(owner).flat_map(|claim| owners_in_way(claim, node)));
            }
        }
        false
    }
}

fn checked(range: LockRange) -> Result<LockRange> {
    if range.start <= range.last { Ok(range) } else { Err(Error::InvalidArgument) }
}

#[cfg(test)]
mod tests {
    use super::super::OpenId;
    use super::*;
    use crate::SessionId;

    #[test]
    fn unlocking_splits_no_range_beyond_the_limit() {
        let locks = LockTable::default().session();
        let (file, owner) = (File { node: NodeId(2), open: OpenId(1) }, LockOwner(1));
        let range = LockRange { start: 0, last: 999 };
        let lock = Lock { family: LockFamily::Posix, kind: LockKind::Write, range, owner, pid: 1 };
        let (answer, _woken) = locks.lock(&Ctx::root(SessionId(1)), (file, OpenFlags::WRITE), &lock, false);
        answer.wait().expect("locked");
        let unlock =
            |at: u64| locks.unlock(file, LockFamily::Posix, LockRange { start: at, last: at }, owner);
        let splits = (1..400).step_by(2).take_while(|at| unlock(*at).is_ok()).count();
        assert_eq!(splits, RANGES_MAX - 1);
        assert!(matches!(unlock(901), Err(Error::NoLocks)));
        // Unlocking at an end splits nothing.
        let _ = unlock(999).expect("unlocked");
    }
}
