//! Memory of a peer that may be passed on.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tombolo_mem::Region;
use tombolo_shm::link::ForwardRegion;

use super::introducer::Introducer;
use crate::end::End;
use tombolo_host_runtime::lock;

/// Ends the link that some memory belongs to.
pub(crate) type Sever = Box<dyn Fn(End) + Send + Sync>;

/// Memory of a peer that may be passed on, to whom it may go, and who knows it.
pub(crate) struct Passable {
    /// Which of all that there ever was in this process.
    number: u64,
    memory: OwnedFd,
    bytes: u64,
    nameable: Range<u64>,
    user: u32,
    sever: OnceLock<Sever>,
    /// Those who may have introduced it.
    introducers: Mutex<Vec<Weak<Introducer>>>,
}

/// What is left on the region. It goes with the region, and takes back what was introduced.
struct Note(Arc<Passable>);

static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

impl Passable {
    /// Leaves a note on a region, of which `memory` are the first `bytes`, that it may be passed on: to processes of that user and of root,
    /// and for references to its `nameable` part.
    pub(crate) fn mark(
        region: &Region,
        memory: OwnedFd,
        bytes: u64,
        nameable: Range<u64>,
        user: u32,
    ) -> Arc<Passable> {
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let (sever, introducers) = (OnceLock::new(), Mutex::default());
        let passable = Arc::new(Passable { number, memory, bytes, nameable, user, sever, introducers });
        region.leave_note(Note(Arc::clone(&passable)));
        passable
    }

    /// The note on a region.
    pub(super) fn of(region: &Region) -> Option<&Arc<Passable>> {
        region.note::<Note>().map(|note| &note.0)
    }

    /// How the link that the memory belongs to is ended, once there is one.
    pub(crate) fn belongs_to(&self, sever: Sever) {
        let _ = self.sever.set(sever);
    }

    /// Somebody may be reading it for longer than its owner is told: it must not be used again.
    pub(super) fn give_up(&self) {
        if let Some(sever) = self.sever.get() {
            sever(End::Failed("its memory may still be read by a domain that was lost".into()));
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether a process of that user may have it.
    pub(super) fn may_go_to(&self, user: u32) -> bool {
        user == 0 || user == self.user
    }

    /// Whether `len` bytes at `offset` may be named.
    pub(super) fn may_name(&self, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len);
        offset >= self.nameable.start && end.is_some_and(|end| end <= self.nameable.end)
    }

    /// What is said of it, but for the number that it gets.
    pub(super) fn introduce(&self, domain: tombolo_shm::address::Domain) -> ForwardRegion {
        ForwardRegion { domain, user: self.user, bytes: self.bytes, nameable: self.nameable.clone() }
    }

    /// The memory goes: whoever has introduced it is told then.
    pub(super) fn is_known_by(&self, introducer: &Arc<Introducer>) {
        let mut introducers = lock(&self.introducers);
        introducers.retain(|known| known.strong_count() > 0);
        introducers.push(Arc::downgrade(introducer));
    }
}

impl AsFd for Passable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let introducers = std::mem::take(&mut *lock(&self.0.introducers));
        for introducer in introducers.iter().filter_map(Weak::upgrade) {
            introducer.withdraw(self.0.number);
        }
    }
}
