//! Handling of files that are truncated beneath their mappings.
//!
//! The owner of the file behind a region may truncate it during a copy; the kernel then raises SIGBUS, which
//! would end the whole server because of one hostile guest. One process-wide handler, installed with the
//! first mapped region, looks the faulting address up in a fixed table. For a fault inside a region, the
//! handler maps private zero pages over the whole region, marks it poisoned, and resumes the instruction; one
//! `mmap` per region, so a peer cannot exhaust the mappings by truncating page by page. Any other fault is
//! passed to the previous handler.
//!
//! The handler is async-signal-safe: it reads atomics, calls `mmap`, and allocates, locks and logs nothing.
//! It skips an entry of the table that is being modified. No region is missed thereby: the faulting thread
//! references the region in which it faulted, so the entry of that region is not being modified.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

/// Maximum number of mapped regions in a process. A guest has one to a few, so this suffices for hundreds of
/// guests; the bound allows the fault handler to search without locks.
pub const REGION_LIMIT: usize = 4096;

static TABLE: [Entry; REGION_LIMIT] = [const { Entry::new() }; REGION_LIMIT];
static HANDLER: OnceLock<Result<(), i32>> = OnceLock::new();
static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));

/// An entry of the table, for one mapping: a sequence lock around `start` and `len`.
struct Entry {
    /// `true` while a [`Registration`] owns the entry.
    taken: AtomicBool,
    poisoned: AtomicBool,
    /// Odd while `start` and `len` are being changed.
    version: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
}

/// One region's entry in the table; the entry is free again when this is dropped.
pub(crate) struct Registration(&'static Entry);

impl Registration {
    /// Allocates an entry. Returns `None` if no entry is left. Installs the handler at the first call.
    pub(crate) fn take() -> io::Result<Option<Registration>> {
        if let Err(code) = HANDLER.get_or_init(install) {
            return Err(io::Error::from_raw_os_error(*code));
        }
        Ok(TABLE.iter().find(|entry| !entry.taken.swap(true, Ordering::AcqRel)).map(|entry| {
            entry.poisoned.store(false, Ordering::Relaxed);
            Registration(entry)
        }))
    }

    /// Registers the mapping with the handler.
    pub(crate) fn publish(&self, start: usize, len: usize) {
        self.0.set(start, len);
    }

    /// Unregisters the mapping; called before it is unmapped.
    pub(crate) fn retract(&self) {
        self.0.set(0, 0);
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.0.poisoned.load(Ordering::Acquire)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.retract();
        self.0.taken.store(false, Ordering::Release);
    }
}

impl Entry {
    const fn new() -> Entry {
        Entry {
            taken: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            version: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        }
    }

    /// Sets start and length. Only the [`Registration`] that owns the entry calls this, so an entry has one
    /// writer.
    fn set(&self, start: usize, len: usize) {
        self.version.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns start and length, unless they are being changed or unset.
    fn read(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let (start, len) = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let at_rest = before.is_multiple_of(2) && before == self.version.load(Ordering::Relaxed);
        (at_rest && len > 0).then_some((start, len))
    }
}

/// The former action of SIGBUS. Written once, before the handler can run, and only read afterwards.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: the only write happens inside `HANDLER.get_or_init`, before our handler is installed.
unsafe impl Sync for Previous {}

fn install() -> Result<(), i32> {
    let failed = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    let previous = PREVIOUS.0.get().cast::<libc::sigaction>();
    // SAFETY: the call only queries the current action; `previous` has space for it, and nothing else reads
    // it yet.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), previous) } != 0 {
        return Err(failed());
    }
    // SAFETY: all zero bytes is a valid `sigaction`: default action, empty mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    // The handler runs on the alternative stack, because the previous handler may be the one that reports
    // stack overflows.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `action` is complete, and `on_sigbus` has the signature required by SA_SIGINFO.
    if unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } != 0 {
        return Err(failed());
    }
    Ok(())
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the location of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to this thread's errno. A handler must preserve its value.
    let saved = unsafe { *errno };
    if !recover(info) {
        call_previous(signal, info, context);
    }
    // SAFETY: `errno` is the address of this thread's errno, which is valid as long as the thread runs.
    unsafe { *errno = saved };
}

/// Returns `true` if the fault was in a region and the instruction can be resumed.
fn recover(info: *const libc::siginfo_t) -> bool {
    // SAFETY: the kernel passes a valid structure to an SA_SIGINFO handler.
    let info = unsafe { &*info };
    // A code of zero or below: a process sent the signal, so it has no fault address.
    if info.si_code <= 0 {
        return false;
    }
    // SAFETY: a SIGBUS raised by the kernel has an address.
    let address = unsafe { info.si_addr() } as usize;
    let hit = |&(start, len): &(usize, usize)| address.wrapping_sub(start) < len;
    let found = TABLE.iter().find_map(|entry| Some((entry, entry.read().filter(hit)?)));
    let Some((entry, (start, len))) = found else { return false };
    entry.poisoned.store(true, Ordering::Release);
    // SAFETY: the call replaces pages of this process's own mapping, which the faulting thread keeps alive.
    // Only raw copies and atomics, which may read any bytes, access these pages.
    let mapped = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

/// Performs the former action of the signal.
fn call_previous(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written before this handler was installed, and never again.
    let previous = unsafe { &*PREVIOUS.0.get().cast::<libc::sigaction>() };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zero bytes is a valid `sigaction`, namely the default one.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: `default` is complete. The signal raised next, or the resumed instruction, ends the
            // process.
            unsafe { libc::sigaction(signal, &default, std::ptr::null_mut()) };
            // SAFETY: raise is async-signal-safe; the signal is blocked until we return.
            unsafe { libc::raise(signal) };
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: the handler was installed by sigaction with SA_SIGINFO, so it is a function of this
            // type.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the handler was installed by sigaction without SA_SIGINFO, so it is a function of this
            // type.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        }
    }
}
