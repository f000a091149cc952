//! Record locks of a session: owners, ranges, and waits.
//!
//! Each owner on a file has one descriptor, whose open file description holds the locks (OFD locks), so that
//! owners, sessions and processes of the host all exclude each other. This module adds what the kernel does
//! not know of such locks: the owner of a conflicting lock, and deadlock detection.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    Granted, GrantedLocks, Lock, LockFamily, LockKind, LockOwner, LockRange, NodeId, OpenFlags, OpenId,
};
use tombolo_core::{Error, Result, lock};
use tombolo_sys::lock::{self as sys_lock, LockKind as SysKind, LockRange as SysRange};
use tombolo_sys::open::{OpenFlags as SysFlags, OwnDescriptors};

use crate::files::{Allowance, OpenFile, OpenPermit};

/// Number of locked ranges of a session from which on no further lock is taken. It may be exceeded, as a lock
/// that splits a range adds two, and concurrent locks are counted when granted.
const RANGES_MAX: usize = 65_536;

/// Maximum number of locks examined for a deadlock; all locks of a file count for each wait on it. A cycle
/// that takes more is not found: its owners wait until one is interrupted.
const STEPS_MAX: usize = 65_536;

/// The record locks of a session.
pub(crate) struct Records {
    allowance: Arc<Allowance>,
    ranges_max: usize,
    table: Mutex<LockTable>,
}

#[derive(Default)]
struct LockTable {
    owners: HashMap<(NodeId, LockOwner), Owner>,
    /// A subset of the locks granted by the kernel, so that no false deadlock is reported.
    locks: HashMap<NodeId, GrantedLocks<()>>,
    ranges: usize,
    waits: HashMap<LockOwner, Vec<Arc<Wait>>>,
    ended: bool,
}

/// A lock owner on a file, retained until its flush or the end of an opening through which it locked. It may
/// have no lock, because it may be about to take one.
struct Owner {
    description: Arc<Description>,
    /// The openings through which locks were requested; mostly one.
    through: Vec<OpenId>,
}

/// The open file description that holds an owner's locks on a file.
struct Description {
    descriptor: OwnedFd,
    /// Lock held during a change of the locks in the table and in the kernel; taken before the table's lock.
    turn: Mutex<()>,
    /// Declared after the descriptor, so that it is released after the close.
    _permit: OpenPermit,
}

/// A request for a record lock, which is released when the opening `through` ends at the latest.
pub(crate) struct LockRequest {
    pub open: Arc<OpenFile>,
    pub through: OpenId,
    pub lock: Lock,
}

struct Wait {
    node: NodeId,
    lock: Lock,
}

/// A registered wait; unregistered on drop.
pub(crate) struct RegisteredWait {
    records: Arc<Records>,
    wait: Arc<Wait>,
    /// `true` if the lock replaces one of the same owner.
    is_conversion: bool,
}

impl Records {
    pub fn new(allowance: Arc<Allowance>) -> Arc<Self> {
        Self::bounded(allowance, RANGES_MAX)
    }

    fn bounded(allowance: Arc<Allowance>, ranges_max: usize) -> Arc<Self> {
        Arc::new(Self { allowance, ranges_max, table: Mutex::default() })
    }

    /// Takes a lock; fails with [`Error::WouldBlock`] if another lock conflicts. An owner without a
    /// descriptor gets a new one.
    pub fn lock(&self, own: &OwnDescriptors, request: &LockRequest) -> Result<()> {
        let range = sys_range(request.lock.range)?;
        loop {
            let description = self.enter(own, request)?;
            let _turn = lock(&description.turn);
            if !self.is_current(request.open.node, request.lock.owner, &description) {
                continue;
            }
            sys_lock::try_lock(description.descriptor.as_fd(), sys_kind(request.lock.kind), range)?;
            let mut table = lock(&self.table);
            if table.ended {
                return Err(Error::Interrupted);
            }
            let granted = Granted { open: request.through, lock: request.lock, note: () };
            table.change(request.open.node, |locks| locks.add(granted));
            return Ok(());
        }
    }

    /// Unlocks a range. Fails with [`Error::NoLocks`] (as F_UNLCK does, fcntl(2)) if that would split a range
    /// and the session is at its limit.
    pub fn unlock(&self, node: NodeId, owner: LockOwner, range: LockRange) -> Result<()> {
        let sys_range = sys_range(range)?;
        let unlocked = self.in_turn(node, owner, |descriptor| {
            let mut table = lock(&self.table);
            let is_full = table.ranges >= self.ranges_max;
            if is_full
                && table
                    .locks
                    .get(&node)
                    .is_some_and(|locks| locks.is_split_by(LockFamily::Posix, owner, range))
            {
                return Err(Error::NoLocks);
            }
            table.change(node, |locks| locks.give_back(LockFamily::Posix, owner, range));
            drop(table);
            Ok(sys_lock::unlock(descriptor.as_fd(), sys_range)?)
        });
        unlocked.unwrap_or(Ok(()))
    }

    /// Releases all locks of an owner on a file: at once, although a request in flight may still use the
    /// descriptor.
    pub fn unlock_all(&self, node: NodeId, owner: LockOwner) {
        self.in_turn(node, owner, |descriptor| {
            lock(&self.table).change(node, |locks| {
                locks.closed(owner);
            });
            // If the kernel refuses, the locks go with the descriptor.
            let _ = sys_lock::unlock(descriptor.as_fd(), SysRange { start: 0, len: 0 });
            lock(&self.table).owners.remove(&(node, owner));
        });
    }

    /// Releases the locks of all owners that locked through this opening, which has ended.
    pub fn unlock_through(&self, node: NodeId, open: OpenId) {
        let owners: Vec<LockOwner> = {
            let table = lock(&self.table);
            let through = |(key, owner): (&(NodeId, LockOwner), &Owner)| {
                (key.0 == node && owner.through.contains(&open)).then_some(key.1)
            };
            table.owners.iter().filter_map(through).collect()
        };
        owners.into_iter().for_each(|owner| self.unlock_all(node, owner));
    }

    pub fn knows(&self, node: NodeId, owner: LockOwner) -> bool {
        lock(&self.table).owners.contains_key(&(node, owner))
    }

    /// Returns a lock of the session or of the host that conflicts with `request`; its owner is 0 unless it
    /// is a recorded one of this session.
    pub fn conflict(&self, open: &OpenFile, request: &Lock) -> Result<Option<Lock>> {
        let own = self.description(open.node, request.owner);
        // The open file description of the opening never has record locks, so a test through it finds all
        // conflicts.
        let from = own.as_ref().map_or(open.fd(), |own| own.descriptor.as_fd());
        let conflict = sys_lock::conflict(from, sys_kind(request.kind), sys_range(request.range)?)?;
        let Some(conflict) = conflict else { return Ok(None) };
        let kind = if conflict.kind == SysKind::Shared { LockKind::Read } else { LockKind::Write };
        let range = waist_range(conflict.range);
        let table = lock(&self.table);
        let mut ours = table.locks.get(&open.node).into_iter().flat_map(|locks| locks.conflicts(request));
        let ours = ours.find(|granted| {
            conflict.pid == 0
                && granted.kind == kind
                && range.start <= granted.range.start
                && granted.range.last <= range.last
        });
        let (owner, pid) = ours.map_or((LockOwner(0), conflict.pid), |granted| (granted.owner, granted.pid));
        Ok(Some(Lock { family: LockFamily::Posix, kind, range, owner, pid }))
    }

    /// Registers a wait. Fails with [`Error::Deadlock`] if the owner would wait, directly or through others,
    /// for itself.
    pub fn wait(self: &Arc<Self>, request: &LockRequest) -> Result<RegisteredWait> {
        let wait = Arc::new(Wait { node: request.open.node, lock: request.lock });
        let mut table = lock(&self.table);
        if table.would_deadlock(&wait) {
            return Err(Error::Deadlock);
        }
        table.waits.entry(wait.lock.owner).or_default().push(wait.clone());
        let Lock { family, owner, range, .. } = wait.lock;
        let is_conversion = table.locks.get(&wait.node).is_some_and(|locks| locks.has(family, owner, range));
        Ok(RegisteredWait { records: self.clone(), wait, is_conversion })
    }

    /// Releases all locks, and grants none from now on.
    pub fn end(&self) {
        let mut table = lock(&self.table);
        table.ended = true;
        table.locks.clear();
        let owners = std::mem::take(&mut table.owners);
        drop(table);
        drop(owners);
    }

    /// Returns a duplicate of the descriptor that holds an owner's locks on a file.
    pub fn duplicate(&self, node: NodeId, owner: LockOwner) -> Result<Option<OwnedFd>> {
        let description = self.description(node, owner);
        description.map(|description| description.descriptor.try_clone().map_err(Error::io)).transpose()
    }

    /// Adopts a descriptor that holds locks, which the owner took through an opening of the file. Their
    /// ranges are unknown: conflicts with them have no owner, and deadlocks through them are not detected.
    pub fn adopt(
        &self,
        open: &OpenFile,
        through: OpenId,
        owner: LockOwner,
        descriptor: OwnedFd,
    ) -> Result<()> {
        let permit = self.allowance.permit().map_err(|_| Error::NoLocks)?;
        let description = Arc::new(Description { descriptor, turn: Mutex::default(), _permit: permit });
        let entry = Owner { description, through: vec![through] };
        lock(&self.table).owners.insert((open.node, owner), entry);
        Ok(())
    }

    fn enter(&self, own: &OwnDescriptors, request: &LockRequest) -> Result<Arc<Description>> {
        if let Some(description) = self.enter_through(request, None)? {
            return Ok(description);
        }
        let permit = self.allowance.permit().map_err(|_| Error::NoLocks)?;
        // The table is not locked during the open, because a remote file system may take long.
        let descriptor = descriptor(own, &request.open)?;
        let new = Arc::new(Description { descriptor, turn: Mutex::default(), _permit: permit });
        self.enter_through(request, Some(&new))?.ok_or(Error::NoLocks)
    }

    /// Returns the owner's description, which becomes `new` if the owner has none; `None` without either.
    /// From now on the end of the opening releases the description's locks.
    fn enter_through(
        &self,
        request: &LockRequest,
        new: Option<&Arc<Description>>,
    ) -> Result<Option<Arc<Description>>> {
        let mut table = lock(&self.table);
        if table.ended {
            return Err(Error::Interrupted);
        }
        // The opening has ended, so nothing would release the lock.
        if request.open.is_ended() {
            return Err(Error::BadOpen);
        }
        if table.ranges >= self.ranges_max {
            return Err(Error::NoLocks);
        }
        match table.owners.entry((request.open.node, request.lock.owner)) {
            Entry::Occupied(owner) => {
                let owner = owner.into_mut();
                if !owner.through.contains(&request.through) {
                    owner.through.push(request.through);
                }
                Ok(Some(owner.description.clone()))
            }
            Entry::Vacant(owner) => Ok(new.map(|description| {
                owner.insert(Owner { description: description.clone(), through: vec![request.through] });
                description.clone()
            })),
        }
    }

    /// Runs work on an owner's descriptor for a file, if there is one, while the owner's other lock changes
    /// on that file are excluded.
    fn in_turn<R>(&self, node: NodeId, owner: LockOwner, work: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        loop {
            let description = self.description(node, owner)?;
            let _turn = lock(&description.turn);
            if self.is_current(node, owner, &description) {
                return Some(work(&description.descriptor));
            }
        }
    }

    /// Returns `false` if the owner's description was removed or replaced while the caller waited for
    /// `Description::turn`.
    fn is_current(&self, node: NodeId, owner: LockOwner, description: &Arc<Description>) -> bool {
        self.description(node, owner).is_some_and(|current| Arc::ptr_eq(&current, description))
    }

    fn description(&self, node: NodeId, owner: LockOwner) -> Option<Arc<Description>> {
        lock(&self.table).owners.get(&(node, owner)).map(|owner| owner.description.clone())
    }
}

impl RegisteredWait {
    /// Releases the lock, which was taken although the wait had been cancelled. A lock that replaces another
    /// one stays, because its owner relies on that one.
    pub fn undo(&self) -> Result<()> {
        let Wait { node, lock } = *self.wait;
        if self.is_conversion { Ok(()) } else { self.records.unlock(node, lock.owner, lock.range) }
    }
}

impl Drop for RegisteredWait {
    fn drop(&mut self) {
        let mut table = lock(&self.records.table);
        let owner = self.wait.lock.owner;
        let Some(waits) = table.waits.get_mut(&owner) else { return };
        waits.retain(|wait| !Arc::ptr_eq(wait, &self.wait));
        if waits.is_empty() {
            table.waits.remove(&owner);
        }
    }
}

impl LockTable {
    fn change(&mut self, node: NodeId, change: impl FnOnce(&mut GrantedLocks<()>)) {
        let locks = self.locks.entry(node).or_default();
        let before = locks.len();
        change(locks);
        let after = locks.len();
        self.ranges = self.ranges + after - before;
        if after == 0 {
            self.locks.remove(&node);
        }
    }

    /// Returns `true` if the owner of the wait would wait for itself: directly, or through waits of other
    /// owners.
    fn would_deadlock(&self, wait: &Wait) -> bool {
        let mut steps = 0;
        let mut in_the_way_of = |wait: &Wait, owners: &mut Vec<LockOwner>| {
            let Some(locks) = self.locks.get(&wait.node) else { return };
            steps += locks.len();
            if steps <= STEPS_MAX {
                owners.extend(locks.conflicts(&wait.lock).map(|granted| granted.owner));
            }
        };
        let (mut todo, mut visited) = (Vec::new(), HashSet::new());
        in_the_way_of(wait, &mut todo);
        while let Some(owner) = todo.pop() {
            if owner == wait.lock.owner {
                return true;
            }
            if visited.insert(owner) {
                let waits = self.waits.get(&owner).into_iter().flatten();
                waits.for_each(|wait| in_the_way_of(wait, &mut todo));
            }
        }
        false
    }
}

/// Opens a descriptor for a new owner, for both kinds of lock if possible, because locks cannot move to
/// another descriptor.
fn descriptor(own: &OwnDescriptors, open: &OpenFile) -> Result<OwnedFd> {
    own.reopen(open.fd(), SysFlags::RDWR)
        .or_else(|_| own.reopen(open.fd(), SysFlags::RDONLY))
        .map_err(Error::from)
}

impl LockRequest {
    /// Checks that the file is open for reading or writing as the kind of lock requires (fcntl(2)).
    pub fn check(&self) -> Result<()> {
        let needs = if self.lock.kind == LockKind::Write { OpenFlags::WRITE } else { OpenFlags::READ };
        if !self.open.flags.contains(needs) {
            return Err(Error::BadOpen);
        }
        sys_range(self.lock.range).map(|_| ())
    }
}

pub(crate) fn sys_kind(kind: LockKind) -> SysKind {
    match kind {
        LockKind::Read => SysKind::Shared,
        LockKind::Write => SysKind::Exclusive,
    }
}

/// The kernel's largest offset; a range up to it extends to the end of the file.
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

#[cfg(test)]
mod tests {
    use tombolo_core::{Budget, Limits};
    use tombolo_host_runtime::descriptors::DescriptorBudget;

    use super::*;
    use crate::mounts::Medium;

    const NODE: NodeId = NodeId(7);

    /// A session's records, and an opening of an empty file.
    struct World {
        records: Arc<Records>,
        own: OwnDescriptors,
        open: Arc<OpenFile>,
    }

    impl World {
        fn new(ranges_max: usize) -> Self {
            let share = DescriptorBudget::of_process().session().expect("descriptors");
            let allowance = Allowance::new(Budget::new(Limits::default()), share);
            let permit = allowance.permit().expect("room");
            let descriptor = OwnedFd::from(tempfile::tempfile().expect("a file"));
            let flags = OpenFlags::READ | OpenFlags::WRITE;
            let medium = Medium { local: true, memory: true, plain_copies: true, seeks_all: true };
            let open = Arc::new(OpenFile::new(descriptor, permit, NODE, flags, medium));
            let own = OwnDescriptors::open().expect("/proc");
            Self { records: Records::bounded(allowance, ranges_max), own, open }
        }

        fn request(&self, owner: u64, start: u64, last: u64) -> LockRequest {
            let (family, kind) = (LockFamily::Posix, LockKind::Write);
            let lock =
                Lock { family, kind, range: LockRange { start, last }, owner: LockOwner(owner), pid: 1 };
            LockRequest { open: self.open.clone(), through: OpenId(1), lock }
        }

        fn lock(&self, owner: u64, start: u64, last: u64) -> Result<()> {
            self.records.lock(&self.own, &self.request(owner, start, last))
        }

        fn unlock(&self, owner: u64, start: u64, last: u64) -> Result<()> {
            self.records.unlock(NODE, LockOwner(owner), LockRange { start, last })
        }
    }

    #[test]
    fn ranges_made_by_unlocking_count() {
        let world = World::new(8);
        world.lock(1, 0, 99).unwrap();
        let split: usize = (1..50).map(|at| usize::from(world.unlock(1, 2 * at, 2 * at).is_ok())).sum();
        assert_eq!((split, lock(&world.records.table).ranges), (7, 8));
        assert!(matches!(world.unlock(1, 50, 50), Err(Error::NoLocks)));
        assert!(matches!(world.lock(2, 200, 200), Err(Error::NoLocks)));
        // The refused part is still locked, in the kernel too.
        let held = world.records.conflict(&world.open, &world.request(3, 50, 50).lock).unwrap();
        assert_eq!(held.map(|granted| granted.owner), Some(LockOwner(1)));
        // Unlocking without a split always succeeds.
        world.unlock(1, 90, 99).unwrap();
        world.unlock(1, 3, 3).unwrap();
        world.unlock(1, 50, 50).unwrap();
        world.unlock(1, 0, u64::MAX).unwrap();
        assert_eq!(lock(&world.records.table).ranges, 0);
        world.lock(2, 0, 99).unwrap();
    }

    #[test]
    fn cancelled_wait_releases_only_new_locks() {
        let world = World::new(8);
        world.lock(1, 0, 9).unwrap();
        for (start, left) in [(5, 1), (20, 0)] {
            let request = world.request(1, start, start + 9);
            let registered = world.records.wait(&request).unwrap();
            world.records.lock(&world.own, &request).unwrap();
            registered.undo().unwrap();
            let conflict = world.records.conflict(&world.open, &world.request(2, start, start + 9).lock);
            assert_eq!(conflict.unwrap().into_iter().count(), left, "{start}");
        }
    }
}
