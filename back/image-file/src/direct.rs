//! Direct I/O, past the page cache: through an io_uring, or in the pool if there is no ring or no thread for
//! it, if it is full, or if the memory is not aligned.

use std::fs::File;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use tombolo_core::block::OpenOptions;
use tombolo_core::{Answer, Ctx, Stability};
use tombolo_host_runtime::promise::Promise;
use tombolo_mem::{Segment, Sink, Source};
use tombolo_sys::Result;
use tombolo_sys::direct::{self, Alignment};
use tombolo_sys::open::{OpenFlags, OwnDescriptors};
use tombolo_sys::ring::{FileRing, Memory, Transfer};
use tombolo_sys::rw::TransferFlags;

use crate::claim::User;
use crate::image::{Image, ImageFile};

/// Maximum number of transfers in the ring; further ones go to the pool.
const DEPTH: u16 = 256;

/// Maximum number of transfers submitted at once. A larger batch would leave the disk idle while it fills.
const BATCH_MAX: usize = 4;

/// The ring of an image opened for direct I/O.
pub(crate) struct Ring {
    shared: Arc<RingState>,
    /// The completion thread, started by the first transfer, so that it is subject to a sandbox entered
    /// before. `None` if it could not be started.
    thread: OnceLock<Option<JoinHandle<()>>>,
    /// Number of transfers pushed to the ring since the last `submit`, including refused ones.
    batched: AtomicUsize,
}

struct RingState {
    ring: FileRing<Pending>,
    is_ending: AtomicBool,
}

struct Pending {
    /// For a write, the image that counts a change when the transfer ends.
    changes: Option<Arc<Image>>,
    promise: Arc<Promise<Result<usize>>>,
}

impl Ring {
    /// Creates a ring; `None`, with a warning, if this fails, mostly because the system provides no io_uring.
    pub(crate) fn new(file: &File, options: &OpenOptions) -> Option<Self> {
        // The ring has an open file description of its own, which holds the ring's lock; that of `file` holds
        // all other locks. When a process is killed its files are closed with it, except those of rings,
        // which the kernel closes after their transfers.
        let flags = if options.read_only { OpenFlags::RDONLY } else { OpenFlags::RDWR };
        let own = || {
            let own = OwnDescriptors::open()?.reopen(file.as_fd(), flags)?;
            direct::enable(own.as_fd())?;
            if options.locks {
                User::of(options).lock_ring(own.as_fd())?;
            }
            FileRing::new(own.as_fd(), DEPTH)
        };
        let ring = match own() {
            Ok(ring) => ring,
            Err(error) => {
                tracing::warn!(%error, "no io_uring for direct I/O, using threads instead: see tombolo doctor");
                return None;
            }
        };
        let shared = Arc::new(RingState { ring, is_ending: AtomicBool::new(false) });
        Some(Self { shared, thread: OnceLock::new(), batched: AtomicUsize::new(0) })
    }

    fn start(&self) -> Option<JoinHandle<()>> {
        let shared = self.shared.clone();
        let started = thread::Builder::new().name("disk-ring".into()).spawn(move || shared.serve());
        let failed = |error| tracing::warn!(%error, "no thread for direct I/O, using the pool instead");
        started.map_err(failed).ok()
    }

    pub(crate) fn submit(&self) {
        self.batched.store(0, Ordering::Relaxed);
        self.shared.ring.submit();
    }

    /// Queues a transfer, whose byte count is the answer; `None` if the ring is full or has no completion
    /// thread. Submits a full batch.
    fn begin(
        &self,
        memory: Memory,
        offset: u64,
        flags: TransferFlags,
        changes: Option<Arc<Image>>,
    ) -> Option<Answer<usize>> {
        self.thread.get_or_init(|| self.start()).as_ref()?;
        let promise = Arc::<Promise<Result<usize>>>::default();
        let note = Pending { changes, promise: promise.clone() };
        let full = self.shared.ring.push(Transfer { memory, offset, flags, note });
        if self.batched.fetch_add(1, Ordering::Relaxed) + 1 >= BATCH_MAX {
            self.submit();
        }
        full.is_none().then(|| Answer::later(async move { Ok(promise.kept().await?) }))
    }
}

impl Drop for Ring {
    /// Waits for the end of the completion thread, unless called on it. The ring's file is then closed.
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        self.shared.ring.wake();
        // The thread's last answer may drop the disk; then this runs on the thread itself.
        if let Some(thread) =
            self.thread.take().flatten().filter(|it| it.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl RingState {
    fn serve(&self) {
        while !self.is_ending.load(Ordering::SeqCst) || !self.ring.is_idle() {
            self.ring.wait(|transfer, outcome| {
                // A panic in one request's continuation must not affect the others.
                let _ = catch_unwind(AssertUnwindSafe(|| finish(transfer, outcome)));
            });
        }
    }
}

fn finish(transfer: Transfer<Pending>, outcome: Result<usize>) {
    let Transfer { memory, note: Pending { changes, promise }, .. } = transfer;
    // Counted also on failure: a failed write may have changed a part of its range.
    if let Some(image) = changes {
        image.changed();
    }
    // Dropped before the answer, after which the caller may reuse the memory.
    drop(memory);
    promise.keep(outcome);
}

/// Returns `true` if a direct transfer can use this memory.
pub(crate) fn is_aligned(mut segments: impl Iterator<Item = Segment>, alignment: Alignment) -> bool {
    segments.all(|segment| {
        let is_whole = segment.len.is_multiple_of(alignment.range_bytes as usize);
        is_whole && segment.ptr.addr().is_multiple_of(alignment.memory_bytes as usize)
    })
}

impl ImageFile {
    /// Reads through the ring; `None` if the ring is missing or cannot take it, or the memory is not aligned.
    pub(crate) fn read_by_ring(&self, cx: &Ctx, offset: u64, into: &Sink) -> Option<Answer<()>> {
        let (ring, _) = self.ring().filter(|(_, alignment)| is_aligned(into.segments(), *alignment))?;
        let answer = ring.begin(Memory::Into(into.clone()), offset, TransferFlags::empty(), None)?;
        let (image, lane, cx, mut rest) = (self.image.clone(), self.lane.clone(), cx.clone(), into.clone());
        Some(answer.then(move |count| {
            if count == rest.len() {
                return Answer::ok(());
            }
            rest.advance(count);
            let offset = offset + count as u64;
            lane.run(&cx, move || match image.is_whole(count) {
                true => image.read_all(offset, rest),
                false => image.pad(offset, &rest),
            })
        }))
    }

    /// Writes through the ring; `None` if the ring is missing or cannot take it, or the memory is not
    /// aligned.
    pub(crate) fn write_by_ring(
        &self,
        cx: &Ctx,
        offset: u64,
        stability: Stability,
        from: &Source,
    ) -> Option<Answer<()>> {
        let (ring, _) = self.ring().filter(|(_, alignment)| is_aligned(from.segments(), *alignment))?;
        let is_stable = stability != Stability::Unstable;
        let flags = if is_stable { TransferFlags::DSYNC } else { TransferFlags::empty() };
        let answer = ring.begin(Memory::From(from.clone()), offset, flags, Some(self.image.clone()))?;
        let (image, lane, cx, mut rest) = (self.image.clone(), self.lane.clone(), cx.clone(), from.clone());
        Some(answer.then(move |count| {
            if count == rest.len() {
                return Answer::ok(());
            }
            rest.advance(count);
            lane.run(&cx, move || image.write_all(offset + count as u64, stability, rest))
        }))
    }
}

/// Maximum size of the bounce buffer for unaligned memory, in bytes.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
