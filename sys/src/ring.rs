//! Reads and writes of one file through io_uring: several are submitted by one system call, from any thread.
//!
//! The ring is restricted to these operations (io_uring_register(2), IORING_REGISTER_RESTRICTIONS), because
//! seccomp(2) does not filter operations of a ring.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use io_uring::register::Restriction;
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, cqueue, opcode, types};
use tombolo_mem::{Sink, Source};

use crate::errno::{Errno, Result};
use crate::rw::{Spans, TransferFlags, spans};

/// The ring's only registered file.
const FILE: types::Fixed = types::Fixed(0);

/// User data of the no-op that wakes the waiting thread.
const WAKE: u64 = u64::MAX;

/// The memory of a transfer, which also determines its direction.
pub enum Memory {
    /// Destination of a read.
    Into(Sink),
    /// Source of a write.
    From(Source),
}

/// A read or write of the ring's file.
pub struct Transfer<T> {
    /// Destination or source of the data.
    pub memory: Memory,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Flags, with the meanings given in [`rw`](crate::rw).
    pub flags: TransferFlags,
    /// A value to be returned with the completion.
    pub note: T,
}

/// A ring for one file.
pub struct FileRing<T> {
    ring: IoUring,
    slots: Mutex<Slots<T>>,
    /// `true` if entries were added since the last submission.
    is_queued: AtomicBool,
    /// Locked while completions are awaited and removed.
    completing: Mutex<()>,
}

struct Slots<T> {
    /// Transfers in flight, in memory that does not move, because the kernel reads their lists of spans at
    /// submission.
    in_flight: Box<[Option<InFlight<T>>]>,
    free: Vec<usize>,
}

struct InFlight<T> {
    transfer: Transfer<T>,
    spans: Spans,
}

// SAFETY: the spans' pointers are only passed to the kernel, which may use them on any thread; their memory
// is kept alive by the transfer's `Sink` or `Source`, which are Send.
unsafe impl<T: Send> Send for InFlight<T> {}

impl<T> FileRing<T> {
    /// Creates a ring for `depth` transfers in flight. ENOSYS, EPERM or EACCES where the system does not
    /// allow it.
    pub fn new(file: BorrowedFd<'_>, depth: u16) -> Result<Self> {
        // The extra entry is for the wake-up.
        let ring = IoUring::builder()
            .setup_r_disabled()
            .build(u32::from(depth) + 1)
            .map_err(|error| errno(&error))?;
        let submitter = ring.submitter();
        submitter.register_files(&[file.as_raw_fd()]).map_err(|error| errno(&error))?;
        let mut only = [
            Restriction::sqe_op(opcode::Readv::CODE),
            Restriction::sqe_op(opcode::Writev::CODE),
            Restriction::sqe_op(opcode::Nop::CODE),
            Restriction::sqe_flags_required(Flags::FIXED_FILE.bits()),
        ];
        submitter.register_restrictions(&mut only).map_err(|error| errno(&error))?;
        submitter.register_enable_rings().map_err(|error| errno(&error))?;
        let free = (0..usize::from(depth)).collect();
        let in_flight = (0..depth).map(|_| None).collect();
        let ring = Self {
            ring,
            slots: Mutex::new(Slots { in_flight, free }),
            is_queued: AtomicBool::new(false),
            completing: Mutex::new(()),
        };
        ring.probe()?;
        Ok(ring)
    }

    /// Tests the ring: the seccomp filter of a container may allow its creation, but not its use.
    fn probe(&self) -> Result<()> {
        let slots = self.slots();
        self.queue(&nop());
        drop(slots);
        self.is_queued.store(false, Ordering::Release);
        self.ring.submit_and_wait(1).map_err(|error| errno(&error))?;
        self.wait(|_, _| {});
        Ok(())
    }

    /// Adds a transfer, which starts with the next [`submit`](Self::submit). Returns the transfer if the
    /// maximum number is in flight.
    pub fn push(&self, transfer: Transfer<T>) -> Option<Transfer<T>> {
        let mut slots = self.slots();
        let Some(index) = slots.free.pop() else { return Some(transfer) };
        let Some(slot) = slots.in_flight.get_mut(index) else { return Some(transfer) };
        let spans = match &transfer.memory {
            Memory::Into(sink) => spans(sink.segments()),
            Memory::From(source) => spans(source.segments()),
        };
        let in_flight = slot.insert(InFlight { transfer, spans });
        let (at, count) = (in_flight.spans.as_ptr(), in_flight.spans.len() as u32);
        let (offset, flags) = (in_flight.transfer.offset, in_flight.transfer.flags.bits());
        let entry = match in_flight.transfer.memory {
            Memory::Into(_) => {
                opcode::Readv::new(FILE, at, count).offset(offset).rw_flags(flags as i32).build()
            }
            Memory::From(_) => {
                opcode::Writev::new(FILE, at, count).offset(offset).rw_flags(flags as i32).build()
            }
        };
        self.queue(&entry.user_data(index as u64));
        None
    }

    /// Adds an entry to the submission queue. The caller must have locked the slots. The queue has more
    /// entries than there are slots.
    fn queue(&self, entry: &Entry) {
        // SAFETY: every caller has locked the slots, and no other submission queue is created.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: the spans stay in a slot of a box that is never moved, and their memory stays alive, until
        // the completion is removed; the ring waits for that before it is dropped.
        let pushed = unsafe { queue.push(entry) };
        debug_assert!(pushed.is_ok(), "fewer slots than entries");
        drop(queue);
        self.is_queued.store(true, Ordering::Release);
    }

    /// Submits all added entries to the kernel.
    pub fn submit(&self) {
        if self.is_queued.swap(false, Ordering::AcqRel) {
            self.submit_all();
        }
    }

    /// Submits until the queue is empty, or the kernel reports a lasting error. The kernel stops after an
    /// entry that it refuses, or when out of memory (io_uring_enter(2), "RETURN VALUE").
    fn submit_all(&self) {
        loop {
            match self.ring.submit().map_err(|error| errno(&error)) {
                Ok(_) if self.is_all_submitted() => return,
                // The kernel is temporarily out of memory, or of space for completions, which another thread
                // removes.
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => thread::yield_now(),
                Err(_) => return,
            }
        }
    }

    fn is_all_submitted(&self) -> bool {
        let _slots = self.slots();
        // SAFETY: the slots are locked, and no other submission queue is created.
        unsafe { self.ring.submission_shared() }.is_empty()
    }

    /// Waits for completions, a [`wake`](Self::wake) or a signal, and passes the transfer of each completion
    /// to `done` with the number of bytes, or the error.
    pub fn wait(&self, mut done: impl FnMut(Transfer<T>, Result<usize>)) {
        let completing = self.completing.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no pointer is passed: the call submits no entry and waits for one completion.
        let waited = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, GETEVENTS, None) };
        if let Err(error) = waited
            && errno(&error) == Errno::BUSY
        {
            thread::yield_now();
        }
        let mut found = Vec::new();
        // SAFETY: every creator of a completion queue has locked `completing`.
        unsafe { self.ring.completion_shared() }.for_each(|entry| found.push(entry));
        drop(completing);
        for entry in found {
            if let Some(transfer) = self.take(&entry) {
                done(transfer, outcome(&entry));
            }
        }
    }

    fn take(&self, entry: &cqueue::Entry) -> Option<Transfer<T>> {
        let index = usize::try_from(entry.user_data()).ok()?;
        let mut slots = self.slots();
        let in_flight = slots.in_flight.get_mut(index)?.take()?;
        slots.free.push(index);
        Some(in_flight.transfer)
    }

    /// Makes [`wait`](Self::wait) return, on one thread that waits or the next one that does.
    pub fn wake(&self) {
        let slots = self.slots();
        self.queue(&nop());
        drop(slots);
        self.submit();
    }

    /// Returns `true` if nothing is in flight.
    pub fn is_idle(&self) -> bool {
        let slots = self.slots();
        slots.free.len() == slots.in_flight.len()
    }

    fn slots(&self) -> MutexGuard<'_, Slots<T>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for FileRing<T> {
    /// Waits for all transfers, because the kernel uses their memory.
    fn drop(&mut self) {
        while !self.is_idle() {
            self.submit();
            self.wait(|_, _| {});
        }
    }
}

/// Returns an entry without effect, whose completion ends a [`wait`](FileRing::wait).
fn nop() -> Entry {
    opcode::Nop::new().build().flags(Flags::FIXED_FILE).user_data(WAKE)
}

/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;

fn outcome(entry: &cqueue::Entry) -> Result<usize> {
    usize::try_from(entry.result()).map_err(|_| Errno::from_raw_os_error(-entry.result()))
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use tombolo_mem::Buffer;

    use super::*;

    fn file() -> File {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[7; 8192], 0).expect("write");
        file
    }

    fn ring(file: &File, depth: u16) -> Option<FileRing<usize>> {
        match FileRing::new(file.as_fd(), depth) {
            Ok(ring) => Some(ring),
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => tombolo_skip::skip!("there is no io_uring"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn transfers_return_their_counts_and_depth_is_bounded() {
        let file = file();
        let Some(ring) = ring(&file, 2) else { return };
        let mut buffer = Buffer::new(4096);
        let read = |note, offset| Transfer {
            memory: Memory::Into(buffer.sink(0..2048)),
            offset,
            flags: TransferFlags::empty(),
            note,
        };
        let memory = Memory::From(Source::from(vec![9; 100]));
        let write = Transfer { memory, offset: 4096, flags: TransferFlags::DSYNC, note: 1 };
        assert!(ring.push(write).is_none());
        assert!(ring.push(read(2, 8000)).is_none());
        assert!(ring.push(read(3, 0)).is_some(), "two at most");
        ring.submit();
        let mut found = Vec::new();
        while found.len() < 2 {
            ring.wait(|transfer, outcome| found.push((transfer.note, outcome)));
        }
        found.sort_unstable_by_key(|(note, _)| *note);
        assert_eq!(found, [(1, Ok(100)), (2, Ok(192))]);
        assert!(ring.is_idle());
        drop(ring);
        assert_eq!(&buffer.as_slice().expect("ours alone")[..192], [7; 192]);
        let mut written = [0; 101];
        file.read_exact_at(&mut written, 4096).expect("read");
        assert_eq!((written[99], written[100]), (9, 7));
    }

    #[test]
    fn wake_ends_wait_and_drop_awaits_transfers() {
        let file = file();
        let Some(ring) = ring(&file, 4) else { return };
        thread::scope(|scope| {
            let waiting = scope.spawn(|| ring.wait(|_, _| panic!("nothing was asked")));
            ring.wake();
            waiting.join().expect("woken");
        });
        let mut buffer = Buffer::new(4096);
        let memory = Memory::Into(buffer.sink(0..4096));
        assert!(ring.push(Transfer { memory, offset: 0, flags: TransferFlags::empty(), note: 0 }).is_none());
        drop(ring);
        assert_eq!(buffer.as_slice().expect("ours alone"), [7; 4096]);
    }

    #[test]
    fn entries_behind_a_refused_one_are_submitted() {
        let file = file();
        let Some(ring) = ring(&file, 4) else { return };
        // Without a file, which the ring requires in each entry.
        ring.queue(&opcode::Nop::new().build().user_data(WAKE));
        let buffer = Buffer::new(4096);
        let memory = Memory::Into(buffer.sink(0..4096));
        assert!(ring.push(Transfer { memory, offset: 0, flags: TransferFlags::empty(), note: 5 }).is_none());
        ring.submit();
        assert!(ring.is_all_submitted());
        let mut found = Vec::new();
        while found.is_empty() {
            ring.wait(|transfer, outcome| found.push((transfer.note, outcome)));
        }
        assert_eq!(found, [(5, Ok(4096))]);
    }

    /// Offers no way around the seccomp filter to code that takes over the process.
    #[test]
    fn the_ring_can_neither_open_nor_connect() {
        let file = file();
        let Some(ring) = ring(&file, 4) else { return };
        let path = c"/etc/passwd";
        for entry in [
            opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::Nop::new().build(),
        ] {
            ring.queue(&entry.user_data(0));
            ring.submit_all();
            let completing = ring.completing.lock().expect("a lock");
            // SAFETY: the queue is locked.
            let found: Vec<_> =
                unsafe { ring.ring.completion_shared() }.map(|entry| entry.result()).collect();
            drop(completing);
            assert_eq!(found, [-libc::EACCES]);
        }
    }
}
