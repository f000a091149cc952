//! Memory of a peer that may be forwarded to a further server.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tombolo_core::lock;
use tombolo_mem::Region;
use tombolo_shm::link::ForwardRegion;

use super::region_forwarder::RegionForwarder;
use crate::end::EndReason;

/// A function that ends the link to which some memory belongs.
pub(crate) type CutFn = Box<dyn Fn(EndReason) + Send + Sync>;

/// Memory of a peer that may be forwarded, the users that may map it, and the links over which it was
/// forwarded.
pub(crate) struct ForwardableRegion {
    /// Unique number in this process, never reused.
    number: u64,
    memory: OwnedFd,
    /// Length that is forwarded, from the beginning.
    bytes: u64,
    /// Offsets that requests may refer to: the bulk memory.
    nameable: Range<u64>,
    /// User, besides root, whose processes may map the memory.
    user: u32,
    cut: OnceLock<CutFn>,
    /// Links to which the region may have been forwarded.
    forwarders: Mutex<Vec<Weak<RegionForwarder>>>,
}

/// Object attached to the [`Region`] and dropped with its last clone: dropping it withdraws the memory from
/// all forwarders.
struct Note(Arc<ForwardableRegion>);

static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

impl ForwardableRegion {
    /// Marks a region as forwardable to processes of `user` and of root, by a note attached to it. `memory`
    /// is the descriptor of its first `bytes`; only the `nameable` part may be referenced.
    pub(crate) fn mark(
        region: &Region,
        memory: OwnedFd,
        bytes: u64,
        nameable: Range<u64>,
        user: u32,
    ) -> Arc<ForwardableRegion> {
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let (cut, forwarders) = (OnceLock::new(), Mutex::default());
        let forwardable =
            Arc::new(ForwardableRegion { number, memory, bytes, nameable, user, cut, forwarders });
        region.leave_note(Note(Arc::clone(&forwardable)));
        forwardable
    }

    /// Returns the forwardable memory that [`mark`](Self::mark) attached to a region, or `None` if the
    /// region may not be forwarded.
    pub(super) fn of(region: &Region) -> Option<&Arc<ForwardableRegion>> {
        region.note::<Note>().map(|note| &note.0)
    }

    /// Sets the function that ends the link to which the memory belongs.
    pub(crate) fn set_cut_fn(&self, cut: CutFn) {
        let _ = self.cut.set(cut);
    }

    /// Ends the link to which the memory belongs, so that its owner does not reuse it: a server to which it
    /// was forwarded may still read it after the owner's request is answered.
    pub(super) fn cut_link(&self) {
        if let Some(cut) = self.cut.get() {
            cut(EndReason::Failed("its memory may still be read by a lost domain".into()));
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns `true` if a process of `user` may map the memory.
    pub(super) fn permits_user(&self, user: u32) -> bool {
        user == 0 || user == self.user
    }

    /// Returns `true` if `len` bytes at `offset` may be referenced.
    pub(super) fn permits_range(&self, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len);
        offset >= self.nameable.start && end.is_some_and(|end| end <= self.nameable.end)
    }

    /// Returns the message that forwards the memory under the number `domain`.
    pub(super) fn announce(&self, domain: tombolo_shm::address::Domain) -> ForwardRegion {
        ForwardRegion { domain, user: self.user, bytes: self.bytes, nameable: self.nameable.clone() }
    }

    /// Registers a forwarder, to be notified when the memory is dropped.
    pub(super) fn add_forwarder(&self, forwarder: &Arc<RegionForwarder>) {
        let mut forwarders = lock(&self.forwarders);
        forwarders.retain(|known| known.strong_count() > 0);
        forwarders.push(Arc::downgrade(forwarder));
    }
}

impl AsFd for ForwardableRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let forwarders = std::mem::take(&mut *lock(&self.0.forwarders));
        for forwarder in forwarders.iter().filter_map(Weak::upgrade) {
            forwarder.withdraw(self.0.number);
        }
    }
}
