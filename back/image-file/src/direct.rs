//! Direct transfers: past the page cache, through a ring of the kernel's, or by the pool where there is none
//! or it is full.

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

/// Transfers of one disk that the kernel has at a time. More than that go to the pool.
const DEPTH: u16 = 256;

/// So many are handed to the kernel together at most: what is gathered for longer leaves the disk idle
/// meanwhile.
const GATHERED_MAX: usize = 4;

/// How transfers of an image are performed that is opened for direct ones.
pub(crate) struct Ring {
    shared: Arc<Shared>,
    /// What takes out what is done. It starts with the first transfer: a sandbox that closes before is its
    /// too. None: it did not start.
    thread: OnceLock<Option<JoinHandle<()>>>,
    /// Added since the last `submit`, also in vain.
    gathered: AtomicUsize,
}

struct Shared {
    ring: FileRing<Pending>,
    is_ending: AtomicBool,
}

struct Pending {
    /// Of a write: what it changes.
    changes: Option<Arc<Image>>,
    promise: Arc<Promise<Result<usize>>>,
}

impl Ring {
    /// None where the system has none to give.
    pub(crate) fn new(file: &File, options: &OpenOptions) -> Option<Self> {
        // Opened once more: a process that is killed has closed its files when it is gone, but for those that
        // rings know, which the kernel closes when their transfers are done. What that means to others is
        // this opening's lock; the other locks are the other opening's.
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
                tracing::warn!(%error, "no io_uring for direct transfers, so threads perform them: see tombolo doctor");
                return None;
            }
        };
        let shared = Arc::new(Shared { ring, is_ending: AtomicBool::new(false) });
        Some(Self { shared, thread: OnceLock::new(), gathered: AtomicUsize::new(0) })
    }

    fn start(&self) -> Option<JoinHandle<()>> {
        let shared = self.shared.clone();
        let started = thread::Builder::new().name("disk-ring".into()).spawn(move || shared.serve());
        let failed = |error| tracing::warn!(%error, "no thread for direct transfers: the pool performs them");
        started.map_err(failed).ok()
    }

    pub(crate) fn submit(&self) {
        self.gathered.store(0, Ordering::Relaxed);
        self.shared.ring.submit();
    }

    /// How many bytes will have gone; None if the ring is full, or of no use.
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
        if self.gathered.fetch_add(1, Ordering::Relaxed) + 1 >= GATHERED_MAX {
            self.submit();
        }
        full.is_none().then(|| Answer::later(async move { Ok(promise.kept().await?) }))
    }
}

impl Drop for Ring {
    /// When it is gone the file is closed, and another may open it.
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
        self.shared.ring.wake();
        // What the thread answers may drop the disk.
        if let Some(thread) =
            self.thread.take().flatten().filter(|it| it.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        while !self.is_ending.load(Ordering::SeqCst) || !self.ring.is_idle() {
            self.ring.wait(|transfer, outcome| {
                // What a request's answer sets off must not end the others'.
                let _ = catch_unwind(AssertUnwindSafe(|| finish(transfer, outcome)));
            });
        }
    }
}

fn finish(transfer: Transfer<Pending>, outcome: Result<usize>) {
    let Transfer { memory, note: Pending { changes, promise }, .. } = transfer;
    // Also of one that failed a part may be there.
    if let Some(image) = changes {
        image.changed();
    }
    // The caller's memory is its own again when it is answered.
    drop(memory);
    promise.keep(outcome);
}

/// Whether a direct transfer takes this memory as it lies.
pub(crate) fn is_aligned(mut segments: impl Iterator<Item = Segment>, alignment: Alignment) -> bool {
    segments.all(|segment| {
        let is_whole = segment.len.is_multiple_of(alignment.range_bytes as usize);
        is_whole && segment.ptr.addr().is_multiple_of(alignment.memory_bytes as usize)
    })
}

impl ImageFile {
    /// Reads through the ring, if that can be.
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

    /// The same for a write.
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

/// What is read or written in pieces, as the memory that it is wanted in is not aligned, in bytes.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
