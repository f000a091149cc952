use crate::copy;
use crate::error::{MapError, OutOfBounds};
use crate::sigbus;
use std::alloc::{self, Layout};
use std::any::Any;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A reference-counted span of memory.
///
/// A clone references the same memory, and costs one atomic increment. Others may change the bytes at any
/// time (a guest that owns them, another thread with the same region), so contents are copied out and in, and
/// never borrowed while the region is shared.
#[derive(Clone)]
pub struct Region(Arc<Span>);

struct Span {
    start: NonNull<u8>,
    len: usize,
    /// `true` if this process may store to the span. A store to a read-only mapping would end the process.
    writable: bool,
    owner: Owner,
    /// Object attached by [`Region::leave_note`].
    note: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The access of this process to a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    ReadWrite,
}

/// The way to free the memory after the last reference is dropped.
enum Owner {
    Empty,
    Heap(Layout),
    /// Anonymous pages, mapped for a large private region.
    Pages,
    Vec {
        capacity: usize,
    },
    Mapping(Mapping),
}

struct Mapping {
    /// Start of the first page (or huge page); the region itself may begin later.
    start: NonNull<u8>,
    len: usize,
    /// Entry of the mapping in the table of the SIGBUS handler.
    slot: sigbus::Registration,
}

// SAFETY: a span is an address range and the owner that frees it; nothing in it is bound to a thread. The
// bytes are accessed by `copy` and atomics, which allow for concurrent writers.
unsafe impl Send for Span {}
// SAFETY: as above; no method of a shared span returns references to the bytes.
unsafe impl Sync for Span {}

const PAGE: usize = 4096;

/// Length from which private memory is mapped: the kernel provides zeroed pages on first access, whereas the
/// allocator writes zeroes to all of it.
const MAPPED_FROM_BYTES: usize = 4 << 20;

/// Defines a load and a store of one machine word.
macro_rules! atomic_access {
    ($word:ty, $atomic:ty, $load:ident, $store:ident, $what:literal) => {
        #[doc = concat!("Loads ", $what, " in the host's byte order, in one access.")]
        /// Fails outside of the region and at a misaligned address. `order` must be valid for loads.
        #[inline]
        pub fn $load(&self, offset: usize, order: Ordering) -> Result<$word, OutOfBounds> {
            let at = self.aligned_span(offset, size_of::<$word>(), size_of::<$word>())?;
            // SAFETY: the address is inside the region, aligned, and alive as long as `self` is borrowed; an
            // atomic may be changed by others at any time.
            Ok(unsafe { <$atomic>::from_ptr(at.cast()) }.load(order))
        }

        #[doc = concat!("Stores ", $what, " in the host's byte order, in one access.")]
        /// Fails outside of the region, on a read-only region, and at a misaligned address. `order` must be
        /// valid for stores.
        #[inline]
        pub fn $store(&self, offset: usize, value: $word, order: Ordering) -> Result<(), OutOfBounds> {
            self.writable(offset, size_of::<$word>())?;
            let at = self.aligned_span(offset, size_of::<$word>(), size_of::<$word>())?;
            // SAFETY: the address is inside the region, aligned, writable, and alive as long as `self` is
            // borrowed; an atomic may be changed by others at any time.
            unsafe { <$atomic>::from_ptr(at.cast()) }.store(value, order);
            Ok(())
        }
    };
}

impl Region {
    /// Allocates zeroed private memory, page-aligned. Aborts when memory is exhausted, as `Vec` does.
    pub fn heap(len: usize) -> Region {
        let layout = Layout::from_size_align(len, PAGE).unwrap_or_else(|_| capacity_overflow(len));
        if len == 0 {
            return Region::private(NonNull::dangling(), 0, Owner::Empty);
        }
        if len >= MAPPED_FROM_BYTES {
            let start = map_pages(len).unwrap_or_else(|| alloc::handle_alloc_error(layout));
            return Region::private(start, len, Owner::Pages);
        }
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc::alloc_zeroed(layout) };
        let start = NonNull::new(memory).unwrap_or_else(|| alloc::handle_alloc_error(layout));
        Region::private(start, len, Owner::Heap(layout))
    }

    /// Maps `len` bytes of `file` from byte `offset`, shared and writable. Other processes with the file may
    /// write to it at any time. If the file is truncated, this process's first load or store beyond the new
    /// end makes the whole region private zeroes, and the region is [poisoned](Self::is_poisoned) from then
    /// on; a system call fails with EFAULT instead.
    ///
    /// The offset needs no alignment. At most [`REGION_LIMIT`](crate::REGION_LIMIT) mapped regions can exist
    /// at a time.
    pub fn map(file: impl AsFd, offset: u64, len: usize) -> Result<Region, MapError> {
        Region::map_for(Access::ReadWrite, file.as_fd(), offset, len)
    }

    /// Maps `len` bytes of a peer's `file` from byte `offset`, shared, read-only: a descriptor open for
    /// reading suffices. All writes to the region are refused. Truncation, offset and limit are as for
    /// [`map`](Self::map).
    pub fn map_read_only(file: impl AsFd, offset: u64, len: usize) -> Result<Region, MapError> {
        Region::map_for(Access::Read, file.as_fd(), offset, len)
    }

    fn map_for(access: Access, file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Region, MapError> {
        let span_error = || MapError::Span { offset, len: len as u64 };
        let plan = MapPlan::new(file, offset, len)?;
        let slot = sigbus::Registration::take().map_err(MapError::System)?.ok_or(MapError::TooMany)?;
        let file_offset = libc::off_t::try_from(plan.file_offset).map_err(|_| span_error())?;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new shared mapping at an address that the kernel chooses affects no memory in use.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                plan.len,
                protection,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                file_offset,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(MapError::System(io::Error::last_os_error()));
        }
        let start = NonNull::new(address.cast::<u8>()).ok_or_else(span_error)?;
        slot.publish(start.as_ptr() as usize, plan.len);
        // SAFETY: `lead` is less than the mapping's length (the plan adds it to `len`, which is not zero).
        let first = unsafe { start.add(plan.lead) };
        let owner = Owner::Mapping(Mapping { start, len: plan.len, slot });
        let (writable, note) = (access == Access::ReadWrite, OnceLock::new());
        Ok(Region(Arc::new(Span { start: first, len, writable, owner, note })))
    }

    /// Returns the length, in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Returns `true` if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns `true` if this process may write to the region. Others may in any case.
    pub fn is_writable(&self) -> bool {
        self.0.writable
    }

    /// Returns `true` if an access failed because the file beneath the region was truncated or its file
    /// system was full. The bytes are then private zeroes, plus this process's later writes, which reach no
    /// other process. Never `true` for heap memory, and never reset.
    pub fn is_poisoned(&self) -> bool {
        match &self.0.owner {
            Owner::Mapping(mapping) => mapping.slot.is_poisoned(),
            _ => false,
        }
    }

    /// Returns `true` if both are clones of one region. Two mappings of the same file are different regions.
    pub fn same(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Attaches an object of the caller's type, the note, to the memory. It is retrievable through every
    /// clone of the region, and thus from a [`Source`](crate::Source) of it
    /// ([`within`](crate::Source::within)), and is dropped after the memory was freed. Returns `false` if
    /// there is a note already, which is retained.
    pub fn leave_note(&self, note: impl Any + Send + Sync) -> bool {
        self.0.note.set(Box::new(note)).is_ok()
    }

    /// Returns the attached note; `None` if there is none, or if it has another type.
    pub fn note<T: Any>(&self) -> Option<&T> {
        self.0.note.get()?.downcast_ref()
    }

    /// Copies `out.len()` bytes from `offset` out of the region. Each byte has a value that it had in the
    /// region at some time during the call.
    #[inline]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.span(offset, out.len())?;
        // SAFETY: `span` checked that the source is inside the region, which `self` keeps alive; `out` is
        // exclusive.
        unsafe { copy::copy(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` into the region at `offset`. Fails outside of the region and on a read-only one.
    #[inline]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.writable_span(offset, bytes.len())?;
        // SAFETY: `writable_span` checked that the target is inside the region and writable; `self` keeps it
        // alive.
        unsafe { copy::copy(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    atomic_access!(u16, AtomicU16, load_u16, store_u16, "two bytes");
    atomic_access!(u32, AtomicU32, load_u32, store_u32, "four bytes");
    atomic_access!(u64, AtomicU64, load_u64, store_u64, "eight bytes");

    /// Sets bits of the byte at `offset` atomically with the given ordering; the other bits are unchanged,
    /// even if another process modifies them concurrently. Fails outside of the region and on a read-only
    /// one.
    #[inline]
    pub fn set_bits(&self, offset: usize, bits: u8, order: Ordering) -> Result<(), OutOfBounds> {
        let at = self.writable_span(offset, 1)?;
        // SAFETY: the address is inside the region, which is writable and alive as long as `self` is
        // borrowed; an atomic may be changed by others at any time.
        unsafe { AtomicU8::from_ptr(at) }.fetch_or(bits, order);
        Ok(())
    }

    /// Replaces the bits of `mask` in the eight bytes at `offset`, in the host's byte order, atomically with
    /// the given ordering, and returns the previous value. Fails outside of the region, on a read-only one,
    /// and at a misaligned address.
    pub fn replace_bits(
        &self,
        offset: usize,
        mask: u64,
        bits: u64,
        order: Ordering,
    ) -> Result<u64, OutOfBounds> {
        self.writable(offset, size_of::<u64>())?;
        let at = self.aligned_span(offset, size_of::<u64>(), size_of::<u64>())?;
        let replaced = |value: u64| Some(value & !mask | bits & mask);
        // SAFETY: the address is aligned and inside the region, which is writable and alive as long as `self`
        // is borrowed; an atomic may be changed by others at any time.
        let before =
            unsafe { AtomicU64::from_ptr(at.cast()) }.fetch_update(order, Ordering::Acquire, replaced);
        // The closure never refuses.
        Ok(before.unwrap_or_else(|value| value))
    }

    /// Returns the address of `len` bytes at `offset`, if they are inside the region and aligned to `align`
    /// bytes.
    #[inline]
    pub(crate) fn aligned_span(
        &self,
        offset: usize,
        len: usize,
        align: usize,
    ) -> Result<*mut u8, OutOfBounds> {
        let at = self.span(offset, len)?;
        if !(at as usize).is_multiple_of(align) {
            return Err(self.out_of_bounds(offset, len));
        }
        Ok(at)
    }

    /// Returns the address of `len` bytes at `offset`, if they are inside a writable region.
    #[inline]
    pub(crate) fn writable_span(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        self.writable(offset, len)?;
        self.span(offset, len)
    }

    /// Fails if the region is read-only; does not check the range, which is only for the error.
    #[inline]
    pub(crate) fn writable(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        if !self.0.writable {
            return Err(OutOfBounds { offset, len, region_len: 0 });
        }
        Ok(())
    }

    /// Returns the address of `len` bytes at `offset`, if they are inside the region.
    #[inline]
    pub(crate) fn span(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        match offset.checked_add(len) {
            Some(end) if end <= self.0.len => {}
            _ => return Err(self.out_of_bounds(offset, len)),
        }
        // SAFETY: `offset` was just checked to be at most the region's length.
        Ok(unsafe { self.0.start.as_ptr().add(offset) })
    }

    /// Returns the offset of an address inside the region.
    pub(crate) fn offset_of(&self, address: *const u8) -> usize {
        (address as usize).wrapping_sub(self.0.start.as_ptr() as usize)
    }

    /// Returns `true` if the address belongs to this region.
    pub(crate) fn holds(&self, address: *const u8) -> bool {
        self.offset_of(address) < self.0.len
    }

    /// Returns the bytes as a plain slice; `None` if there are other references to the memory, or if it is a
    /// mapping, which other processes may change.
    pub(crate) fn exclusive(&mut self) -> Option<&mut [u8]> {
        let span = Arc::get_mut(&mut self.0)?;
        if matches!(span.owner, Owner::Mapping(_)) {
            return None;
        }
        // SAFETY: the span is private memory, initialised at its allocation, and `get_mut` proved that no
        // sink, source or other region references it; the slice borrows `self`, so none can be created while
        // it lives.
        Some(unsafe { std::slice::from_raw_parts_mut(span.start.as_ptr(), span.len) })
    }

    fn private(start: NonNull<u8>, len: usize, owner: Owner) -> Region {
        Region(Arc::new(Span { start, len, writable: true, owner, note: OnceLock::new() }))
    }

    fn out_of_bounds(&self, offset: usize, len: usize) -> OutOfBounds {
        OutOfBounds { offset, len, region_len: self.0.len }
    }
}

/// Takes ownership of the vector without copying it.
impl From<Vec<u8>> for Region {
    fn from(bytes: Vec<u8>) -> Region {
        let mut bytes = ManuallyDrop::new(bytes);
        let (len, capacity) = (bytes.len(), bytes.capacity());
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Region::private(start, len, Owner::Vec { capacity })
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0.owner {
            Owner::Mapping(_) => "mapping",
            _ => "heap",
        };
        f.debug_struct("Region").field("kind", &kind).field("len", &self.0.len).finish()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Empty => {}
            // SAFETY: allocated in `Region::heap` with this layout, and freed once.
            Owner::Heap(layout) => unsafe { alloc::dealloc(self.start.as_ptr(), *layout) },
            // SAFETY: `map_pages` has mapped this length at the address, and the last reference is dropped.
            Owner::Pages => unsafe {
                libc::munmap(self.start.as_ptr().cast(), self.len);
            },
            Owner::Vec { capacity } => {
                // SAFETY: these are the parts of a vector that `From<Vec<u8>>` took apart, and they are
                // reassembled only once.
                drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, *capacity) });
            }
            Owner::Mapping(mapping) => {
                // Retracted first: the fault handler must not mistake a later mapping at this address for
                // this one.
                mapping.slot.retract();
                // SAFETY: `Region::map_for` has mapped this length at the address, and the last reference is
                // dropped.
                unsafe { libc::munmap(mapping.start.as_ptr().cast(), mapping.len) };
            }
        }
    }
}

/// Maps zeroed private memory. Returns `None` if the kernel refuses.
fn map_pages(len: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new private mapping at an address that the kernel chooses affects no memory in use.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED { None } else { NonNull::new(address.cast()) }
}

/// A mapping of whole pages that contains a span of a file: `lead` bytes of the mapping precede the span.
struct MapPlan {
    file_offset: u64,
    lead: usize,
    len: usize,
}

impl MapPlan {
    fn new(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<MapPlan, MapError> {
        let span_error = || MapError::Span { offset, len: len as u64 };
        let end = offset.checked_add(len as u64).filter(|_| len > 0).ok_or_else(span_error)?;
        let facts = FileFacts::of(file)?;
        if let Some(file_len) = facts.regular_len.filter(|file_len| end > *file_len) {
            return Err(MapError::PastEnd { end, file_len });
        }
        let page = facts.page as u64;
        let file_offset = offset - offset % page;
        let mapped = end.checked_next_multiple_of(page).ok_or_else(span_error)? - file_offset;
        let len = usize::try_from(mapped).map_err(|_| span_error())?;
        isize::try_from(len).map_err(|_| span_error())?;
        Ok(MapPlan { file_offset, lead: (offset - file_offset) as usize, len })
    }
}

/// The properties of a file that are needed to map it.
struct FileFacts {
    /// Length of a regular file; mappable devices do not report theirs.
    regular_len: Option<u64>,
    /// Granularity of mappings: huge pages on hugetlbfs.
    page: usize,
}

impl FileFacts {
    fn of(file: BorrowedFd<'_>) -> io::Result<FileFacts> {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the descriptor is open while borrowed, and the buffer is large enough for the structure.
        if unsafe { libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fstat succeeded, so it filled the structure.
        let stat = unsafe { stat.assume_init() };
        let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        let regular_len = if regular { u64::try_from(stat.st_size).ok() } else { None };
        Ok(FileFacts { regular_len, page: mapping_unit(file)? })
    }
}

fn mapping_unit(file: BorrowedFd<'_>) -> io::Result<usize> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open while borrowed, and the buffer is large enough for the structure.
    if unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fstatfs succeeded, so it filled the structure.
    let stat = unsafe { stat.assume_init() };
    let huge = stat.f_type == libc::HUGETLBFS_MAGIC;
    let unit = usize::try_from(stat.f_bsize).unwrap_or(PAGE);
    Ok(if huge && unit.is_power_of_two() { unit } else { system_page() })
}

fn system_page() -> usize {
    // SAFETY: sysconf only reads a value.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).unwrap_or(PAGE)
}

#[cold]
fn capacity_overflow(len: usize) -> ! {
    panic!("{len} bytes are more than an address space holds")
}
