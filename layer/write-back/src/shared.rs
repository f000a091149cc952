//! [`Shared`]: the state that all sessions and the write-back thread use, and how they wait for each other.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_core::fs::{Client, FileSystem, LockTable, NodeId, PermissionCheck, Watermarks};
use tombolo_core::{Ctx, Error, Identity, Result, lock};
use tombolo_host_runtime::pace::Pace;
use tombolo_host_runtime::promise::Promise;
use tombolo_host_runtime::thread_pool::Lane;

use crate::Options;
use crate::data_file::DataFiles;
use crate::journal::{Journal, Ticket};
use crate::tree::Tree;

/// State of an export: differences, journal, and what sessions and the thread share.
pub(crate) struct Shared {
    pub below: Arc<dyn FileSystem>,
    pub options: Options,
    pub journal: Journal,
    pub lane: Lane,
    pub files: Arc<DataFiles>,
    pub control: Control,
    pub gate: Gate,
    /// Advisory locks of all sessions.
    pub locks: LockTable,
    /// Pace of writes to the local disk.
    pub write_pace: Pace,
    /// Owners that the origin substitutes for others.
    pub squashed: Squashed,
    room: Mutex<Room>,
    /// Files being appended to, each with the promise of the append's end.
    appends: Mutex<HashMap<NodeId, Arc<Promise<()>>>>,
    tree: Mutex<Tree>,
}

/// Requested owners of new files, with the owner that the origin assigned instead and does not change: user
/// and group of both.
#[derive(Debug, Default)]
pub(crate) struct Squashed(Mutex<HashMap<[u32; 2], [u32; 2]>>);

/// Maximum number of retained pairs; at the limit, all are forgotten.
const SQUASHED_MAX: usize = 1024;

impl Squashed {
    pub(crate) fn has(&self, [uid, gid, owner @ ..]: [u32; 4]) -> bool {
        lock(&self.0).get(&[uid, gid]) == Some(&owner)
    }

    /// Returns the user to which the origin maps `user`, if it is another.
    pub(crate) fn taken_for(&self, user: &Identity) -> Option<Identity> {
        let [uid, gid] = lock(&self.0).get(&[user.uid, user.gid]).copied()?;
        Some(Identity { uid, gid, groups: None })
    }

    pub(crate) fn add(&self, [uid, gid, owner @ ..]: [u32; 4]) {
        let mut all = lock(&self.0);
        if all.len() >= SQUASHED_MAX {
            all.clear();
        }
        all.insert([uid, gid], owner);
    }
}

/// Communication with the write-back thread.
#[derive(Debug, Default)]
pub(crate) struct Control {
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct ControlState {
    pub is_urgent: bool,
    /// `true` if writers wait for space.
    pub has_waiting: bool,
    pub is_closing: bool,
    /// Times of the first and the last change to be sent by the next attempt, except those in `stuck`.
    pub dirty_since: Option<(Instant, Instant)>,
    /// Time of the first change that the attempt in progress is to send.
    pub sending_since: Option<Instant>,
    /// Latest change that the origin has.
    pub at_origin: u64,
    /// Numbers of begun and of ended attempts to send changes.
    pub begun: u64,
    pub ended: u64,
    /// Reason why the last attempt failed.
    pub failure: Option<String>,
    /// `true` if the origin refused an operation other than a change of attributes in the last attempt.
    pub is_refused: bool,
    /// Latest refusal of requested attributes. The origin may have accepted the attributes since.
    pub refusal: Option<String>,
    /// Number of nodes with an operation that the origin refused in the last attempt.
    pub refused_nodes: usize,
    /// The remaining changes, if the last attempt has left only refused operations and the changes that
    /// depend on them.
    pub stuck: Option<Stuck>,
    /// Change up to which the origin has everything except what it refused and what depends on that.
    pub settled: u64,
    /// Earliest time of the next attempt at new changes, after one that failed or met refusals.
    pub retry: Option<Instant>,
    /// Number of conflicts with other writers.
    pub conflicts: u64,
    /// Number of blocks that failed their checksums at the start.
    pub torn: u64,
}

/// Changes that only wait for what the origin has refused.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub nodes: HashSet<NodeId>,
    /// Nodes whose data could not be sent.
    pub unsent: Arc<HashSet<NodeId>>,
    /// Earliest possible time of the oldest of these changes.
    pub first: Instant,
    /// End of the attempt that met the refusal.
    pub ended: Instant,
}

/// A gate that writers enter. It is closed while a plan is made, so that no write is in progress then.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    left: Condvar,
}

/// The promise of the reopening while the gate is closed; and the number of writers inside.
#[derive(Debug, Default)]
struct GateState {
    closed: Option<Arc<Promise<()>>>,
    inside: usize,
}

/// Guard that reopens the gate, even after a panic.
struct Reopening<'a>(&'a Gate);

/// A writer inside the gate.
pub(crate) struct Inside<'a>(&'a Gate);

/// Space for unsent data: the promise of the next release of space, and the last query of the local disk.
#[derive(Debug)]
struct Room {
    freed: Arc<Promise<()>>,
    looked: Option<Instant>,
    is_disk_full: bool,
}

/// Guard of the only caller that appends to a file.
pub(crate) struct Alone<'a>(&'a Shared, NodeId);

/// Interval between queries of the free space on the local disk.
const ROOM_REFRESH: Duration = Duration::from_millis(200);

/// Time after a refusal in which writers without space fail at once, without another attempt.
const REFUSAL_LASTS: Duration = Duration::from_secs(30);

/// Space left free on the local disk, in bytes.
const DISK_SPARE_BYTES: u64 = 64 << 20;

impl Shared {
    pub(crate) fn new(
        below: Arc<dyn FileSystem>,
        options: Options,
        (journal, tree): (Journal, Tree),
        lane: Lane,
    ) -> Self {
        Self {
            below,
            options,
            journal,
            lane,
            files: tree.files.clone(),
            control: Control::default(),
            gate: Gate::default(),
            locks: LockTable::default(),
            write_pace: Pace::default(),
            squashed: Squashed::default(),
            room: Mutex::new(Room { freed: Arc::default(), looked: None, is_disk_full: false }),
            appends: Mutex::default(),
            tree: Mutex::new(tree),
        }
    }

    pub(crate) fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.tree)
    }

    /// Returns the progress of changes: made, on the disk, and at the origin.
    pub(crate) fn watermarks(&self) -> Watermarks {
        let (at_origin, settled, refused_nodes) = {
            let state = self.control.state();
            (state.at_origin, state.settled.max(state.at_origin), state.refused_nodes)
        };
        let on_disk = self.journal.stable_change();
        let tree = self.tree();
        let refused_nodes = if tree.is_clean() { 0 } else { refused_nodes };
        let refused = (tree.refused_count() + refused_nodes) as u64;
        // `tree.change` is read last, so that no other position exceeds it.
        Watermarks { change: tree.change, on_disk, at_origin, refused, settled }
    }

    /// Makes one change. `work` must make it completely or, if it fails, not at all. The ticket reports when
    /// the change is on the disk.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut Tree) -> Result<T>) -> Result<(T, Ticket)> {
        self.journal.check()?;
        let mut tree = self.tree();
        if tree.ids.end - tree.ids.start < 16 {
            tree.ids = self.journal.reserve_ids(tree.ids.start)?;
        }
        let done = work(&mut tree)?;
        tree.change += 1;
        let batch = tree.take_batch();
        // The batch is added under the tree's lock, so that groups contain changes in order.
        let ticket = self.journal.add(batch);
        drop(tree);
        self.control.made_dirty();
        Ok((done, ticket))
    }

    /// Waits until no other caller appends to a file: each append begins at the end of the previous one.
    pub(crate) async fn append_alone(&self, node: NodeId) -> Alone<'_> {
        loop {
            let before = match lock(&self.appends).entry(node) {
                Entry::Vacant(free) => {
                    free.insert(Arc::default());
                    return Alone(self, node);
                }
                Entry::Occupied(taken) => taken.get().clone(),
            };
            before.kept().await;
        }
    }

    /// Changes internal state, and records it in the journal. This does not count as a change.
    pub(crate) fn note<T>(&self, work: impl FnOnce(&mut Tree) -> T) -> (T, Ticket) {
        let mut tree = self.tree();
        let done = work(&mut tree);
        let batch = tree.take_batch();
        (done, self.journal.add(batch))
    }

    /// Waits until `bytes` more unsent bytes fit, as long as sending data can free space: data of unnamed
    /// files are never sent. Fails if an attempt has just shown that only refused changes occupy the space.
    pub(crate) async fn wait_for_room(&self, bytes: u64) -> Result<()> {
        loop {
            let freed = {
                // The lock is taken first, so that space freed after the check notifies this waiter.
                let mut room = lock(&self.room);
                let dirty_bytes = self.tree().dirty_bytes;
                let is_full = dirty_bytes > 0 && dirty_bytes + bytes > self.options.dirty_bytes_max;
                let has_room = !(is_full || dirty_bytes > 0 && self.is_disk_full(&mut room));
                if has_room || !self.tree().has_unsent_data(|_| true) {
                    return Ok(());
                }
                let unsent = {
                    let state = self.control.state();
                    let stuck = state.stuck.as_ref().filter(|stuck| stuck.ended.elapsed() < REFUSAL_LASTS);
                    stuck.map(|stuck| stuck.unsent.clone())
                };
                if unsent.is_some_and(|unsent| !self.tree().has_unsent_data(|id| !unsent.contains(&id))) {
                    return Err(Error::NoSpace);
                }
                room.freed.clone()
            };
            self.control.tell(|state| state.has_waiting = true);
            freed.kept().await;
        }
    }

    /// Notifies writers that wait for space.
    pub(crate) fn freed(&self) {
        let freed = {
            let mut room = lock(&self.room);
            room.looked = None;
            std::mem::take(&mut room.freed)
        };
        freed.keep(());
    }

    fn is_disk_full(&self, room: &mut Room) -> bool {
        if room.looked.is_none_or(|looked| looked.elapsed() > ROOM_REFRESH) {
            room.looked = Some(Instant::now());
            let free = File::open(self.files.dir()).ok().and_then(|dir| {
                let told = tombolo_sys::statfs::file_system_stat(dir.as_fd()).ok()?;
                Some(told.blocks_available.saturating_mul(u64::from(told.block_size_bytes)))
            });
            room.is_disk_full = free.is_some_and(|free| free < DISK_SPARE_BYTES);
        }
        room.is_disk_full
    }

    /// Runs work on a thread that may wait for the disk.
    pub(crate) async fn in_pool<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // The job has neither interrupt nor deadline, because the work is short.
        self.lane.run(&Ctx::root(SESSION), work).resolve().await
    }
}

/// Number of this layer's only session at the cache.
pub(crate) const SESSION: tombolo_core::SessionId = tombolo_core::SessionId(0);

pub(crate) fn client() -> Client {
    Client { session: SESSION, label: "write-back".into(), checks: PermissionCheck::BackEnd }
}

impl Control {
    pub(crate) fn state(&self) -> MutexGuard<'_, ControlState> {
        lock(&self.state)
    }

    /// Sets the initial state, as read from the journal.
    pub(crate) fn begin(&self, at_origin: u64, is_dirty: bool, torn: u64) {
        self.tell(|state| (state.at_origin, state.torn) = (at_origin, torn));
        if is_dirty {
            self.made_dirty();
        }
    }

    pub(crate) fn made_dirty(&self) {
        let now = Instant::now();
        let mut state = self.state();
        let was_clean = state.dirty_since.is_none();
        let first = state.dirty_since.map_or(now, |(first, _)| first);
        state.dirty_since = Some((first, now));
        drop(state);
        if was_clean {
            self.changed.notify_all();
        }
    }

    /// Makes the write-back thread send changes now.
    pub(crate) fn urge(&self) {
        self.state().is_urgent = true;
        self.changed.notify_all();
    }

    pub(crate) fn close(&self) {
        self.state().is_closing = true;
        self.changed.notify_all();
    }

    pub(crate) fn tell(&self, change: impl FnOnce(&mut ControlState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    pub(crate) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, ControlState>,
        time: Duration,
    ) -> MutexGuard<'a, ControlState> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Gate {
    pub(crate) async fn enter(&self) -> Inside<'_> {
        loop {
            let closed = {
                let mut state = lock(&self.state);
                match &state.closed {
                    None => {
                        state.inside += 1;
                        return Inside(self);
                    }
                    Some(closed) => closed.clone(),
                }
            };
            closed.kept().await;
        }
    }

    /// Runs `work` while no writer is inside, waiting for those that are.
    pub(crate) fn closed<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut state = lock(&self.state);
        state.closed = Some(Arc::default());
        while state.inside > 0 {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let _reopening = Reopening(self);
        work()
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let ended = lock(&self.0.appends).remove(&self.1);
        if let Some(ended) = ended {
            ended.keep(());
        }
    }
}

impl Drop for Reopening<'_> {
    fn drop(&mut self) {
        let closed = lock(&self.0.state).closed.take();
        if let Some(closed) = closed {
            closed.keep(());
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).inside -= 1;
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::Gate;

    #[test]
    fn a_gate_is_open_after_a_panic() {
        let gate = Gate::default();
        let closed = || gate.closed(|| panic!("planted"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(closed)).unwrap_err();
        assert!(gate.state.lock().expect("a lock").closed.is_none());
        drop(tombolo_core::block_on(gate.enter()));
    }
}
