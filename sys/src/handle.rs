//! File handles: identifiers of files that survive renames and restarts.

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::errno::{Errno, Result, check, retry};
use crate::open::{OpenFlags, check_component};

/// A handle issued by the kernel. Meaningful only on its file system.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FileHandle {
    /// The kind in native byte order, followed by the file system's bytes: one small allocation per node.
    raw: Box<[u8]>,
}

const KIND_LEN: usize = size_of::<i32>();

/// Maximum length of a handle (MAX_HANDLE_SZ).
pub const HANDLE_MAX_LEN: usize = 128;

/// `struct file_handle`, with space for the maximum.
#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_MAX_LEN],
}

impl FileHandle {
    /// Returns the handle of the object of `fd`, and the id of its mount.
    ///
    /// EOPNOTSUPP where the file system has none (proc, some FUSE).
    pub fn of(fd: BorrowedFd<'_>) -> Result<(Self, u64)> {
        name_to_handle(fd, c"", libc::AT_EMPTY_PATH)
    }

    /// Returns the handle of an entry of `dir`, without following a symbolic link. May block on disk I/O.
    pub fn of_entry(dir: BorrowedFd<'_>, name: &[u8]) -> Result<(Self, u64)> {
        check_component(name)?;
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        name_to_handle(dir, &name, 0)
    }

    /// Assembles a handle from its stored parts; EINVAL if it exceeds the kernel's maximum.
    pub fn from_parts(kind: i32, bytes: &[u8]) -> Result<Self> {
        if bytes.len() > HANDLE_MAX_LEN {
            return Err(Errno::INVAL);
        }
        Ok(Self { raw: [&kind.to_ne_bytes(), bytes].concat().into() })
    }

    /// Returns the kind assigned by the file system.
    pub fn kind(&self) -> i32 {
        self.raw.first_chunk().map_or(0, |kind| i32::from_ne_bytes(*kind))
    }

    /// Returns the bytes assigned by the file system.
    pub fn bytes(&self) -> &[u8] {
        self.raw.get(KIND_LEN..).unwrap_or_default()
    }

    /// Returns `true` if the handle contains the inode number (its low half) as a word of its own, as on
    /// ext4, xfs, btrfs and tmpfs.
    pub fn contains_inode(&self, inode: u64) -> bool {
        let number = (inode as u32).to_ne_bytes();
        self.bytes().chunks_exact(number.len()).any(|word| word == number)
    }

    /// Returns the inode number, for the kinds of handles of ext4, f2fs, xfs, btrfs and tmpfs.
    pub fn inode(&self) -> Option<u64> {
        /// `FILEID_INO32_GEN`, `FILEID_INO64_GEN`, `FILEID_BTRFS_WITHOUT_PARENT` (include/linux/exportfs.h).
        const INO32: i32 = 1;
        const INO64: i32 = 0x81;
        const BTRFS: i32 = 0x4d;
        let bytes = self.bytes();
        let half = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes).map(u64::from);
        match (self.kind(), bytes.len()) {
            (INO32, 8) => half(0),
            // tmpfs: generation, and the two halves of the number.
            (INO32, 12) => Some(half(1 << 2)? | half(2 << 2)? << 32),
            (INO64, 12) | (BTRFS, 20) => bytes.first_chunk().copied().map(u64::from_ne_bytes),
            _ => None,
        }
    }

    /// Opens the file on the file system of `mount`.
    ///
    /// ESTALE if the file no longer exists, EPERM without CAP_DAC_READ_SEARCH. May block on disk I/O.
    pub fn open(&self, mount: BorrowedFd<'_>, flags: OpenFlags) -> Result<OwnedFd> {
        let mut raw = RawHandle { len: 0, kind: self.kind(), bytes: [0; HANDLE_MAX_LEN] };
        let bytes = self.bytes();
        raw.bytes.get_mut(..bytes.len()).ok_or(Errno::INVAL)?.copy_from_slice(bytes);
        raw.len = u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
        let flags = flags | OpenFlags::CLOEXEC;
        let mut tries = REUSE_TRIES;
        let fd = loop {
            match retry(|| open_raw(mount, &raw, flags)) {
                // ext4 returns ENOMEM while the inode number is being reassigned to another file, and ESTALE
                // a moment later.
                Err(Errno::NOMEM) if tries > 0 => tries -= 1,
                outcome => break outcome?,
            }
            std::thread::yield_now();
        };
        let number = i32::try_from(fd).map_err(|_| Errno::BADF)?;
        // SAFETY: the kernel has just created this descriptor for this call, and no other owner has it.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

impl std::fmt::Debug for FileHandle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "FileHandle({}:", self.kind())?;
        self.bytes().iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
        out.write_str(")")
    }
}

/// Maximum number of retries while a new file replaces the old one, which takes a much shorter time.
const REUSE_TRIES: u32 = 1000;

fn open_raw(mount: BorrowedFd<'_>, handle: &RawHandle, flags: OpenFlags) -> Result<usize> {
    let handle: *const RawHandle = handle;
    // SAFETY: the kernel reads a header and `len` bytes behind it; the handle has them, and outlives the
    // call.
    let outcome =
        unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), handle, flags.bits()) };
    check(outcome)
}

fn name_to_handle(dir: BorrowedFd<'_>, name: &std::ffi::CStr, flags: i32) -> Result<(FileHandle, u64)> {
    let mut raw = RawHandle { len: HANDLE_MAX_LEN as u32, kind: 0, bytes: [0; HANDLE_MAX_LEN] };
    let mut mount: libc::c_int = 0;
    retry(|| {
        // SAFETY: the name ends in NUL, `raw` has space for the `len` bytes that it announces, `mount` is one
        // integer.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                dir.as_raw_fd(),
                name.as_ptr(),
                &raw mut raw,
                &raw mut mount,
                flags,
            )
        };
        check(outcome)
    })?;
    let bytes = raw.bytes.get(..raw.len as usize).ok_or(Errno::OVERFLOW)?;
    Ok((FileHandle::from_parts(raw.kind, bytes)?, u64::from(mount.unsigned_abs())))
}
