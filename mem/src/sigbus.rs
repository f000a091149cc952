//! Surviving a file that shrinks under its mapping.
//!
//! The owner of the file behind a region may truncate it while we copy; the kernel then sends SIGBUS, which
//! would end the whole server because of one hostile guest. One process-wide handler, installed with the
//! first mapped region, looks the faulting address up in a fixed table. Inside a region it puts private zero
//! pages over that whole region, marks it poisoned, and lets the instruction run again; one `mmap` per
//! region, so a peer cannot make us run out of mappings by shrinking page by page. Any other fault goes to
//! the handler that was there before.
//!
//! The handler is async-signal-safe: it reads atomics, calls `mmap`, and allocates, locks and logs nothing. A
//! slot that is being taken or given back while the handler reads it is skipped. That is no loss: the thread
//! that faulted holds its own region, so the slot it needs is at rest.

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

/// How many mapped regions can live in a process at a time. A guest has one to a few, so this is hundreds of
/// guests; the bound is what lets the fault handler look without locks.
pub const REGION_LIMIT: usize = 4096;

static TABLE: [Entry; REGION_LIMIT] = [const { Entry::new() }; REGION_LIMIT];
static HANDLER: OnceLock<Result<(), i32>> = OnceLock::new();
static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));

struct Entry {
    taken: AtomicBool,
    poisoned: AtomicBool,
    /// Odd while `start` and `len` are being changed.
    version: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
}

/// One region's place in the table. Freed when dropped.
pub(crate) struct Slot(&'static Entry);

impl Slot {
    /// A free place, or none; installs the handler if this is the first.
    pub(crate) fn take() -> io::Result<Option<Slot>> {
        if let Err(code) = HANDLER.get_or_init(install) {
            return Err(io::Error::from_raw_os_error(*code));
        }
        Ok(TABLE.iter().find(|entry| !entry.taken.swap(true, Ordering::AcqRel)).map(|entry| {
            entry.poisoned.store(false, Ordering::Relaxed);
            Slot(entry)
        }))
    }

    /// Makes the mapping known to the handler.
    pub(crate) fn publish(&self, start: usize, len: usize) {
        self.0.set(start, len);
    }

    /// Makes the handler forget the mapping; called before it is unmapped.
    pub(crate) fn retract(&self) {
        self.0.set(0, 0);
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.0.poisoned.load(Ordering::Acquire)
    }
}

impl Drop for Slot {
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

    /// Only the slot's holder calls this, so there is one writer.
    fn set(&self, start: usize, len: usize) {
        self.version.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Start and length, unless they are changing or unset.
    fn read(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let (start, len) = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let at_rest = before.is_multiple_of(2) && before == self.version.load(Ordering::Relaxed);
        (at_rest && len > 0).then_some((start, len))
    }
}

/// The action that SIGBUS had before ours. Written once, before the handler can run, and only read after.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: see above: the only write happens inside `HANDLER.get_or_init`, before our handler is installed.
unsafe impl Sync for Previous {}

fn install() -> Result<(), i32> {
    let failed = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    let previous = PREVIOUS.0.get().cast::<libc::sigaction>();
    // SAFETY: asks only for the present action; `previous` has room for it, and nothing else reads it yet.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), previous) } != 0 {
        return Err(failed());
    }
    // SAFETY: all zero bytes is a valid `sigaction`: default action, empty mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    // On the alternative stack, because the handler before ours may be the one that reports stack overflows.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `action` is complete, and `on_sigbus` has the signature that SA_SIGINFO asks for.
    if unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } != 0 {
        return Err(failed());
    }
    Ok(())
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the location of this thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. A handler must leave errno as it found it.
    let saved = unsafe { *errno };
    if !mend(info) {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// Whether the fault lay in a region and can be run again.
fn mend(info: *const libc::siginfo_t) -> bool {
    // SAFETY: the kernel hands a valid structure to a SA_SIGINFO handler.
    let info = unsafe { &*info };
    // Zero and below: sent by a process, so there is no address in it.
    if info.si_code <= 0 {
        return false;
    }
    // SAFETY: a SIGBUS that the kernel raised carries the address.
    let address = unsafe { info.si_addr() } as usize;
    let hit = |&(start, len): &(usize, usize)| address.wrapping_sub(start) < len;
    let found = TABLE.iter().find_map(|entry| Some((entry, entry.read().filter(hit)?)));
    let Some((entry, (start, len))) = found else { return false };
    entry.poisoned.store(true, Ordering::Release);
    // SAFETY: replaces pages of our own mapping, which the faulting thread keeps alive; nothing ever refers
    // to them but through raw copies, which may see any bytes.
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

/// Does what would have happened without us.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written before this handler was installed, and never again.
    let previous = unsafe { &*PREVIOUS.0.get().cast::<libc::sigaction>() };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zero bytes is a valid `sigaction`, namely the default one.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: `default` is complete. The signal raised next, or the instruction run again, ends the
            // process.
            unsafe { libc::sigaction(signal, &default, std::ptr::null_mut()) };
            // SAFETY: raise is async-signal-safe; the signal is blocked until we return.
            unsafe { libc::raise(signal) };
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: the address came from sigaction with SA_SIGINFO set, so it is a function of this type.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the address came from sigaction without SA_SIGINFO, so it is a function of this type.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        }
    }
}
