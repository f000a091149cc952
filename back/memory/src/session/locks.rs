use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use tombolo_core::fs::{AccessMask, File, Lock, LockFamily, LockKind, LockOwner, LockRange, Locks, OpenId};
use tombolo_core::{Answer, Ctx, Error, Raised, Result};

use super::{Session, View, Wakes};
use crate::directory::Ino;
use crate::lock_table::{Claim, Grant, Owner, owner_of};
use crate::tree::Shared;
use crate::tree::Tree;

/// How many ranges of one file may be locked.
const RANGES_MAX: usize = 65_536;

impl Locks for Session {
    fn test(&self, _cx: &Ctx, file: File, lock: &Lock) -> Answer<Option<Lock>> {
        self.view().test_lock(file, lock).into()
    }

    fn lock(&self, cx: &Ctx, file: File, lock: &Lock, wait: bool) -> Answer<()> {
        let outcome = self.view().take_lock(file, lock, wait);
        match outcome {
            Ok(Taken::Held) => Answer::ok(()),
            Ok(Taken::Waiting { ino, claim, grant }) => Answer::later(Wait {
                shared: self.shared.clone(),
                ino,
                claim,
                grant,
                raised: cx.interrupt.raised(),
            }),
            Err(error) => Answer::err(error),
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
        self.view().unlock(file, family, range, owner).into()
    }
}

enum Taken {
    Held,
    Waiting { ino: Ino, claim: Claim, grant: Arc<Grant> },
}

impl View<'_> {
    fn test_lock(&self, file: File, lock: &Lock) -> Result<Option<Lock>> {
        let claim = self.claim(file, lock)?;
        let node = self.tree.node(self.opening(file)?.ino)?;
        Ok(node.locks.conflict(&claim).map(|held| held.lock))
    }

    fn take_lock(&mut self, file: File, lock: &Lock, wait: bool) -> Result<Taken> {
        // A POSIX lock needs an opening that could do what it keeps others from (fcntl(2)).
        let needed = match (lock.family, lock.kind) {
            (LockFamily::Flock, _) => AccessMask::empty(),
            (LockFamily::Posix, LockKind::Read) => AccessMask::READ,
            (LockFamily::Posix, LockKind::Write) => AccessMask::WRITE,
        };
        let ino = self.check_opened_for(file, needed)?;
        let claim = self.claim(file, lock)?;
        let locks = &self.tree.node(ino)?.locks;
        if locks.len() >= RANGES_MAX {
            return Err(Error::NoLocks);
        }
        if locks.conflict(&claim).is_none() {
            self.tree.node_mut(ino)?.locks.grant(claim);
            // A lock that became weaker lets others in.
            self.grant_waiters(ino);
            return Ok(Taken::Held);
        }
        if !wait {
            return Err(Error::WouldBlock);
        }
        if lock.family == LockFamily::Posix && would_deadlock(&self.tree, &claim, ino) {
            return Err(Error::Deadlock);
        }
        let grant = self.tree.node_mut(ino)?.locks.enqueue(claim);
        self.tree.waiting.push((claim.owner, ino));
        Ok(Taken::Waiting { ino, claim, grant })
    }

    fn unlock(&mut self, file: File, family: LockFamily, range: LockRange, owner: LockOwner) -> Result<()> {
        let ino = self.opening(file)?.ino;
        let range = if family == LockFamily::Flock { LockRange::ALL } else { checked(range)? };
        self.cut_locks(ino, owner_of(family, self.session.id, file.open.0, owner), range);
        Ok(())
    }

    pub(super) fn drop_opening_locks(&mut self, ino: Ino, open: OpenId) {
        if let Ok(node) = self.tree.node_mut(ino) {
            node.locks.cut_through(open.0);
        }
        self.grant_waiters(ino);
    }

    pub(super) fn drop_process_locks(&mut self, ino: Ino, owner: LockOwner) {
        self.cut_locks(ino, Owner::Process { session: self.session.id, owner }, LockRange::ALL);
    }

    pub(super) fn drop_session_locks(&mut self, ino: Ino) {
        let (session, View { tree, wakes, .. }) = (self.session.id, self);
        let mut ended = Vec::new();
        if let Ok(node) = tree.node_mut(ino) {
            node.locks.end_session(session, |owner, waker| {
                ended.push((owner, ino));
                wakes.0.extend(waker);
            });
        }
        ended.iter().for_each(|&(owner, ino)| stop_waiting(tree, owner, ino));
        grant_waiters(tree, wakes, ino);
    }

    fn cut_locks(&mut self, ino: Ino, owner: Owner, range: LockRange) {
        if let Ok(node) = self.tree.node_mut(ino) {
            node.locks.cut(owner, range);
        }
        self.grant_waiters(ino);
    }

    fn grant_waiters(&mut self, ino: Ino) {
        grant_waiters(&mut self.tree, &mut self.wakes, ino);
    }

    fn claim(&self, file: File, lock: &Lock) -> Result<Claim> {
        let range = if lock.family == LockFamily::Flock { LockRange::ALL } else { checked(lock.range)? };
        let owner = owner_of(lock.family, self.session.id, file.open.0, lock.owner);
        Ok(Claim { owner, open: file.open.0, lock: Lock { range, ..*lock } })
    }
}

fn checked(range: LockRange) -> Result<LockRange> {
    if range.start <= range.last { Ok(range) } else { Err(Error::InvalidArgument) }
}

fn grant_waiters(tree: &mut Tree, wakes: &mut Wakes, ino: Ino) {
    let mut granted = Vec::new();
    if let Ok(node) = tree.node_mut(ino) {
        node.locks.grant_waiters(|owner, waker| {
            granted.push(owner);
            wakes.0.extend(waker);
        });
    }
    granted.into_iter().for_each(|owner| stop_waiting(tree, owner, ino));
}

fn stop_waiting(tree: &mut Tree, owner: Owner, ino: Ino) {
    if let Some(index) = tree.waiting.iter().position(|&waiting| waiting == (owner, ino)) {
        tree.waiting.swap_remove(index);
    }
}

/// True when some holder in the way of `claim` waits, itself or through others, for what the claim's owner holds.
fn would_deadlock(tree: &Tree, claim: &Claim, ino: Ino) -> bool {
    let owners_in_way = |claim: &Claim, ino: Ino| -> Vec<Owner> {
        let node = tree.node(ino).ok();
        node.into_iter().flat_map(|node| node.locks.conflicts(claim).map(|held| held.owner)).collect()
    };
    let mut seen = Vec::new();
    let mut todo = owners_in_way(claim, ino);
    while let Some(owner) = todo.pop() {
        if owner == claim.owner {
            return true;
        }
        if seen.contains(&owner) {
            continue;
        }
        seen.push(owner);
        for &(_, ino) in tree.waiting.iter().filter(|(waiting, _)| *waiting == owner) {
            let Ok(node) = tree.node(ino) else { continue };
            todo.extend(node.locks.waiting_for(owner).flat_map(|claim| owners_in_way(claim, ino)));
        }
    }
    false
}

/// A lock that waits. Dropped before its time, it leaves the queue.
struct Wait {
    shared: Arc<Shared>,
    ino: Ino,
    claim: Claim,
    grant: Arc<Grant>,
    raised: Raised,
}

impl Future for Wait {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(outcome) = self.grant.poll(context.waker()) {
            return Poll::Ready(outcome);
        }
        if Pin::new(&mut self.raised).poll(context).is_ready() && self.withdraw() {
            return Poll::Ready(Err(Error::Interrupted));
        }
        // Granted between the two looks: the second one finds it.
        self.grant.poll(context.waker()).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Wait {
    fn withdraw(&self) -> bool {
        let mut tree = self.shared.tree.lock().unwrap_or_else(PoisonError::into_inner);
        let withdrawn = tree.node_mut(self.ino).is_ok_and(|node| node.locks.withdraw(&self.grant));
        if withdrawn {
            stop_waiting(&mut tree, self.claim.owner, self.ino);
        }
        withdrawn
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.withdraw();
    }
}
