//! Linux error numbers in replies.
//!
//! The numbers are those of `asm-generic/errno-base.h` and `asm-generic/errno.h` (x86, arm64, riscv and most
//! others), defined here because a codec must not depend on the C library of its host.

/// A Linux error number, 1 to 4095.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(u16);

/// Declares the numbers with their names.
macro_rules! errnos {
    ($($name:ident = $number:literal, $doc:literal;)+) => {
        impl Errno {
            $(#[doc = $doc] pub const $name: Errno = Errno($number);)+

            /// All numbers with a name.
            pub const ALL: &[Errno] = &[$(Errno::$name),+];

            /// Returns the C library's name of the number, for logs; `None` if this codec does not use the
            /// number.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($number => Some(stringify!($name)),)+ _ => None }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted.";
    ENOENT = 2, "No such file or directory.";
    EINTR = 4, "Interrupted.";
    EIO = 5, "Input/output error.";
    ENXIO = 6, "No such device or address; past the last data (SEEK_DATA).";
    E2BIG = 7, "Argument list too long.";
    EBADF = 9, "Bad file descriptor.";
    EAGAIN = 11, "Try again; the lock is held.";
    ENOMEM = 12, "Out of memory.";
    EACCES = 13, "Permission denied.";
    EFAULT = 14, "Bad address.";
    EBUSY = 16, "Busy.";
    EEXIST = 17, "Exists already.";
    EXDEV = 18, "Cross-device link.";
    ENODEV = 19, "No such device; not possible on this kind of file.";
    ENOTDIR = 20, "Not a directory.";
    EISDIR = 21, "Is a directory.";
    EINVAL = 22, "Invalid argument.";
    ENFILE = 23, "Too many open files in the system.";
    EMFILE = 24, "Too many open files in the process.";
    ENOTTY = 25, "Inappropriate ioctl.";
    ETXTBSY = 26, "The program is being run.";
    EFBIG = 27, "File too large.";
    ENOSPC = 28, "No space left.";
    ESPIPE = 29, "Illegal seek.";
    EROFS = 30, "Read-only file system.";
    EMLINK = 31, "Too many links.";
    EPIPE = 32, "Broken pipe.";
    ERANGE = 34, "Result too large; the buffer is too small.";
    EDEADLK = 35, "A lock would deadlock.";
    ENAMETOOLONG = 36, "Name too long.";
    ENOLCK = 37, "No locks available.";
    ENOSYS = 38, "Not implemented.";
    ENOTEMPTY = 39, "Directory not empty.";
    ELOOP = 40, "Too many symbolic links.";
    ENODATA = 61, "No such extended attribute.";
    ETIME = 62, "Timer expired.";
    EPROTO = 71, "Protocol error.";
    EOVERFLOW = 75, "Value too large.";
    EOPNOTSUPP = 95, "Not supported here.";
    ECONNABORTED = 103, "Connection aborted.";
    ENOTCONN = 107, "Not connected; the server of the mount is gone.";
    ETIMEDOUT = 110, "Timed out.";
    ESTALE = 116, "Stale handle.";
    EDQUOT = 122, "Quota exceeded.";
    ECANCELED = 125, "Cancelled.";
}

impl Errno {
    /// Returns the error with this number; `None` for 0 and beyond 4095, which are no error numbers.
    #[must_use]
    pub fn from_wire(number: u16) -> Option<Errno> {
        (1..4096).contains(&number).then_some(Errno(number))
    }

    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }

    /// Returns the negated number, for a reply's header.
    #[must_use]
    pub fn to_wire(self) -> i32 {
        -i32::from(self.0)
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}
