//! Reads and writes of one file through io_uring: many are handed to the kernel by one call, and any thread
//! may do so.
//!
//! The ring can do nothing else (io_uring_register(2), IORING_REGISTER_RESTRICTIONS): seccomp(2) does not see
//! what goes through it.

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

/// The only file that the ring knows.
const FILE: types::Fixed = types::Fixed(0);

/// Of what only wakes the thread that waits.
const WAKE: u64 = u64::MAX;

/// What data go to or come from.
pub enum Memory {
    /// It is read into this.
    Into(Sink),
    /// This is written.
    From(Source),
}

/// One read or write.
pub struct Transfer<T> {
    /// The data's place here.
    pub memory: Memory,
    /// The data's place in the file, in bytes.
    pub offset: u64,
    /// As for [`rw`](crate::rw).
    pub flags: TransferFlags,
    /// Comes back with it.
    pub note: T,
}

/// A ring for one file.
pub struct FileRing<T> {
    ring: IoUring,
    slots: Mutex<Slots<T>>,
    /// Something was added that the kernel was not told of.
    is_queued: AtomicBool,
    /// Held while completions are waited for and taken out.
    taking: Mutex<()>,
}

struct Slots<T> {
    /// What is under way, where it stays until then: the kernel reads the spans when it is told.
    held: Box<[Option<Held<T>>]>,
    free: Vec<usize>,
}

struct Held<T> {
    transfer: Transfer<T>,
    spans: Spans,
}

// SAFETY: the spans' pointers are only passed to the kernel, which may use them on any thread; what they
// point to is kept alive by the transfer's `Sink` or `Source`, which may be sent.
unsafe impl<T: Send> Send for Held<T> {}

impl<T> FileRing<T> {
    /// A ring for so many transfers under way. ENOSYS, EPERM or EACCES where the system has none to give.
    pub fn new(file: BorrowedFd<'_>, depth: u16) -> Result<Self> {
        // One more, for what wakes.
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
        let held = (0..depth).map(|_| None).collect();
        let ring = Self {
            ring,
            slots: Mutex::new(Slots { held, free }),
            is_queued: AtomicBool::new(false),
            taking: Mutex::new(()),
        };
        ring.try_out()?;
        Ok(ring)
    }

    /// A filter of a container may let a ring be made, and not be entered.
    fn try_out(&self) -> Result<()> {
        let slots = self.slots();
        self.queue(&nop());
        drop(slots);
        self.is_queued.store(false, Ordering::Release);
        self.ring.submit_and_wait(1).map_err(|error| errno(&error))?;
        self.wait(|_, _| {});
        Ok(())
    }

    /// Adds a transfer, which begins with the next [`submit`](Self::submit). It comes back if there are as
    /// many under way as there may be.
    pub fn push(&self, transfer: Transfer<T>) -> Option<Transfer<T>> {
        let mut slots = self.slots();
        let Some(index) = slots.free.pop() else { return Some(transfer) };
        let Some(slot) = slots.held.get_mut(index) else { return Some(transfer) };
        let spans = match &transfer.memory {
            Memory::Into(sink) => spans(sink.segments()),
            Memory::From(source) => spans(source.segments()),
        };
        let held = slot.insert(Held { transfer, spans });
        let (at, count) = (held.spans.as_ptr(), held.spans.len() as u32);
        let (offset, flags) = (held.transfer.offset, held.transfer.flags.bits());
        let entry = match held.transfer.memory {
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

    /// With the slots locked, of which there are fewer than entries.
    fn queue(&self, entry: &Entry) {
        // SAFETY: the lock of the slots is held wherever this is called, and no other queue is made
        // elsewhere.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: the spans stay where they are, in a slot of a box that is never moved, and what they point
        // to stays alive, until the completion is taken out; the ring waits for that before it is dropped.
        let pushed = unsafe { queue.push(entry) };
        debug_assert!(pushed.is_ok(), "fewer slots than entries");
        drop(queue);
        self.is_queued.store(true, Ordering::Release);
    }

    /// Tells the kernel of all that was added.
    pub fn submit(&self) {
        if self.is_queued.swap(false, Ordering::AcqRel) {
            self.until_taken();
        }
    }

    /// The kernel takes no more after an entry that it refuses, or when it is out of memory
    /// (io_uring_enter(2), "RETURN VALUE").
    fn until_taken(&self) {
        loop {
            match self.ring.submit().map_err(|error| errno(&error)) {
                Ok(_) if self.is_all_taken() => return,
                // Out of memory for a moment, or of room for completions, which another thread takes out.
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => thread::yield_now(),
                Err(_) => return,
            }
        }
    }

    fn is_all_taken(&self) -> bool {
        let _slots = self.slots();
        // SAFETY: the lock of the slots is held, and no other queue is made elsewhere.
        unsafe { self.ring.submission_shared() }.is_empty()
    }

    /// Waits until something is done, and hands each over with how many bytes went.
    pub fn wait(&self, mut done: impl FnMut(Transfer<T>, Result<usize>)) {
        let taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no pointer is passed; it submits nothing and waits for one completion.
        let waited = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, GETEVENTS, None) };
        if let Err(error) = waited
            && errno(&error) == Errno::BUSY
        {
            thread::yield_now();
        }
        let mut found = Vec::new();
        // SAFETY: the lock is held wherever one is made.
        unsafe { self.ring.completion_shared() }.for_each(|entry| found.push(entry));
        drop(taking);
        for entry in found {
            if let Some(transfer) = self.take(&entry) {
                done(transfer, outcome(&entry));
            }
        }
    }

    fn take(&self, entry: &cqueue::Entry) -> Option<Transfer<T>> {
        let index = usize::try_from(entry.user_data()).ok()?;
        let mut slots = self.slots();
        let held = slots.held.get_mut(index)?.take()?;
        slots.free.push(index);
        Some(held.transfer)
    }

    /// Lets [`wait`](Self::wait) return.
    pub fn wake(&self) {
        let slots = self.slots();
        self.queue(&nop());
        drop(slots);
        self.submit();
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        let slots = self.slots();
        slots.free.len() == slots.held.len()
    }

    fn slots(&self) -> MutexGuard<'_, Slots<T>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for FileRing<T> {
    /// The kernel uses the memory until the end.
    fn drop(&mut self) {
        while !self.is_idle() {
            self.submit();
            self.wait(|_, _| {});
        }
    }
}

/// What does nothing but end.
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
    fn transfers_come_back_with_what_went_and_no_more_than_are_allowed_are_taken() {
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
    fn what_waits_can_be_woken_and_what_is_under_way_ends_before_the_ring_does() {
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
    fn what_follows_an_entry_that_the_kernel_refuses_is_taken_too() {
        let file = file();
        let Some(ring) = ring(&file, 4) else { return };
        // It names no file, which the ring wants of each.
        ring.queue(&opcode::Nop::new().build().user_data(WAKE));
        let buffer = Buffer::new(4096);
        let memory = Memory::Into(buffer.sink(0..4096));
        assert!(ring.push(Transfer { memory, offset: 0, flags: TransferFlags::empty(), note: 5 }).is_none());
        ring.submit();
        assert!(ring.is_all_taken());
        let mut found = Vec::new();
        while found.is_empty() {
            ring.wait(|transfer, outcome| found.push((transfer.note, outcome)));
        }
        assert_eq!(found, [(5, Ok(4096))]);
    }

    /// Whatever gets hold of the process must not find a way around its seccomp filter here.
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
            ring.until_taken();
            let taking = ring.taking.lock().expect("a lock");
            // SAFETY: the lock is held.
            let found: Vec<_> =
                unsafe { ring.ring.completion_shared() }.map(|entry| entry.result()).collect();
            drop(taking);
            assert_eq!(found, [-libc::EACCES]);
        }
    }
}
