//! Operations of the protocol, and the division of requests into bytes copied to be decoded, and payload.

use crate::error::DecodeError;
use crate::layout::header::InHeader;
use crate::layout::{attr, dir, init, lock, misc, open, rw, xattr};

/// Declares the operations: name, number, length of fixed arguments, maximum length of the bytes behind
/// those.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $fixed:expr, $tail:expr;)+) => {
        /// `enum fuse_opcode`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($(#[$doc])* $name = $number),+ }

        impl Opcode {
            /// All known operations, by ascending number.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),+];

            /// Returns the operation with that number, if known.
            #[must_use]
            pub fn from_wire(number: u32) -> Option<Opcode> {
                match number { $($number => Some(Opcode::$name),)+ _ => None }
            }

            /// Returns the name of the variant, for logs and counters.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => stringify!($name)),+ }
            }

            /// Returns the length of the fixed arguments behind the header; where later minor versions
            /// extended them, that of the oldest form.
            #[must_use]
            pub const fn fixed_bytes(self) -> usize {
                match self { $(Opcode::$name => $fixed),+ }
            }

            /// Returns the maximum length of variable-length arguments behind the fixed ones, such as names,
            /// values, extensions and forgets. Excludes the data of WRITE and NOTIFY_REPLY, which are not
            /// copied.
            const fn tail_bytes_max(self) -> usize {
                match self { $(Opcode::$name => $tail),+ }
            }
        }
    };
}

/// Maximum length of a name with its NUL: the kernel passes names of up to `PATH_MAX` (Linux 6.14; before,
/// 1,024 bytes), and those that are too long for the file system are answered ENAMETOOLONG.
const NAME: usize = 4096;
/// Maximum length of a symbolic link's target: `PATH_MAX` with its NUL.
const TARGET: usize = 4096;
/// Maximum length of an extended attribute's value: `XATTR_SIZE_MAX`.
const VALUE: usize = 64 * 1024;
/// Maximum length of extensions (security contexts, supplementary groups): less than `total_extlen` permits.
const EXTENSIONS: usize = 64 * 1024;
/// Maximum length of forgets: the kernel fills a whole read of the device with them.
const FORGETS: usize = 2 * 1024 * 1024;
/// Maximum length of an ioctl's input: the number encodes sizes of up to 14 bits.
const IOCTL: usize = 16 * 1024;

opcodes! {
    /// Look a name up.
    Lookup = 1, 0, NAME;
    /// Release look-ups of a node; has no reply.
    Forget = 2, size_of::<dir::ForgetIn>(), 0;
    /// Get attributes.
    Getattr = 3, size_of::<attr::GetattrIn>(), 0;
    /// Set attributes.
    Setattr = 4, size_of::<attr::SetattrIn>(), 0;
    /// Read a symbolic link's target.
    Readlink = 5, 0, 0;
    /// Create a symbolic link.
    Symlink = 6, 0, NAME + TARGET + EXTENSIONS;
    /// Create a file, device node, pipe or socket.
    Mknod = 8, size_of::<dir::MknodIn>(), NAME + EXTENSIONS;
    /// Create a directory.
    Mkdir = 9, size_of::<dir::MkdirIn>(), NAME + EXTENSIONS;
    /// Remove a name.
    Unlink = 10, 0, NAME;
    /// Remove a directory.
    Rmdir = 11, 0, NAME;
    /// Rename.
    Rename = 12, size_of::<dir::RenameIn>(), 2 * NAME;
    /// Create another name of a file.
    Link = 13, size_of::<dir::LinkIn>(), NAME;
    /// Open a file.
    Open = 14, size_of::<open::OpenIn>(), 0;
    /// Read from a file.
    Read = 15, size_of::<rw::ReadIn>(), 0;
    /// Write to a file.
    Write = 16, size_of::<rw::WriteIn>(), 0;
    /// Get the state of the file system.
    Statfs = 17, 0, 0;
    /// Close an open file, whose last descriptor was closed; the kernel ignores errors.
    Release = 18, size_of::<open::ReleaseIn>(), 0;
    /// Make a file durable.
    Fsync = 20, size_of::<open::FsyncIn>(), 0;
    /// Set an extended attribute.
    Setxattr = 21, xattr::SETXATTR_IN_SHORT, NAME + VALUE + 8;
    /// Read an extended attribute.
    Getxattr = 22, size_of::<xattr::GetxattrIn>(), NAME;
    /// List extended attributes.
    Listxattr = 23, size_of::<xattr::GetxattrIn>(), 0;
    /// Remove an extended attribute.
    Removexattr = 24, 0, NAME;
    /// Report delayed errors to a program that closes a descriptor, and release its POSIX locks.
    Flush = 25, size_of::<open::FlushIn>(), 0;
    /// Negotiate version and capabilities.
    Init = 26, init::INIT_IN_SHORT, 1024;
    /// Open a directory.
    Opendir = 27, size_of::<open::OpenIn>(), 0;
    /// List a directory.
    Readdir = 28, size_of::<rw::ReadIn>(), 0;
    /// The last descriptor of an open directory was closed.
    Releasedir = 29, size_of::<open::ReleaseIn>(), 0;
    /// Make a directory durable.
    Fsyncdir = 30, size_of::<open::FsyncIn>(), 0;
    /// Get a conflicting lock.
    Getlk = 31, size_of::<lock::LkIn>(), 0;
    /// Acquire or release a lock without waiting.
    Setlk = 32, size_of::<lock::LkIn>(), 0;
    /// Acquire a lock, waiting for it.
    Setlkw = 33, size_of::<lock::LkIn>(), 0;
    /// access(2).
    Access = 34, size_of::<misc::AccessIn>(), 0;
    /// Create a file and open it.
    Create = 35, size_of::<open::CreateIn>(), NAME + EXTENSIONS;
    /// Interrupt a request; has no reply.
    Interrupt = 36, size_of::<misc::InterruptIn>(), 0;
    /// Map a file's block to the device's.
    Bmap = 37, 16, 0;
    /// End the session: the file system was unmounted.
    Destroy = 38, 0, 0;
    /// ioctl(2).
    Ioctl = 39, size_of::<misc::IoctlIn>(), IOCTL;
    /// poll(2).
    Poll = 40, 24, 0;
    /// Response to a RETRIEVE notification, which this codec never sends.
    NotifyReply = 41, size_of::<rw::WriteIn>(), 0;
    /// Several forgets; has no reply.
    BatchForget = 42, size_of::<dir::BatchForgetIn>(), FORGETS;
    /// Allocate, punch or zero a range.
    Fallocate = 43, size_of::<rw::FallocateIn>(), 0;
    /// List a directory with attributes.
    Readdirplus = 44, size_of::<rw::ReadIn>(), 0;
    /// Rename, with flags.
    Rename2 = 45, size_of::<dir::Rename2In>(), 2 * NAME + EXTENSIONS;
    /// Find data or a hole.
    Lseek = 46, size_of::<rw::LseekIn>(), 0;
    /// Copy between files.
    CopyFileRange = 47, size_of::<rw::CopyFileRangeIn>(), 0;
    /// Map a file into the DAX window.
    Setupmapping = 48, 40, 0;
    /// Unmap from the DAX window.
    Removemapping = 49, 4, 4096;
    /// Make the file system durable.
    Syncfs = 50, size_of::<misc::SyncfsIn>(), 0;
    /// Create an unnamed file and open it.
    Tmpfile = 51, size_of::<open::CreateIn>(), NAME + EXTENSIONS;
    /// statx(2).
    Statx = 52, size_of::<attr::StatxIn>(), 0;
    /// Copy between files, with a 64-bit result.
    CopyFileRange64 = 53, size_of::<rw::CopyFileRangeIn>(), 0;
}

impl Opcode {
    /// Returns `true` for requests without a reply.
    #[must_use]
    pub fn is_silent(self) -> bool {
        matches!(self, Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply)
    }
}

/// The division of a request into private bytes and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length of the part, from the start of the request, that [`crate::Request::decode`] needs in private
    /// memory.
    pub private_bytes: usize,
    /// Length of the remainder: the data of a WRITE or NOTIFY_REPLY, or all arguments of an unknown
    /// operation.
    pub payload_bytes: usize,
}

impl Extent {
    /// Divides the request that starts with `header`.
    ///
    /// # Errors
    /// [`DecodeError::Length`] if the request is shorter than its operation's arguments, or longer than any
    /// that a kernel sends. An unknown operation is no error at this point: only its header is private.
    pub fn of(header: &InHeader) -> Result<Extent, DecodeError> {
        let total = header.len as usize;
        let head = size_of::<InHeader>();
        let Some(opcode) = Opcode::from_wire(header.opcode) else {
            return Ok(Extent { private_bytes: head, payload_bytes: total.saturating_sub(head) });
        };
        let least = head + opcode.fixed_bytes();
        let length = |what| DecodeError::Length { opcode, what, found_bytes: total };
        if total < least {
            return Err(length("shorter than its arguments"));
        }
        if matches!(opcode, Opcode::Write | Opcode::NotifyReply) {
            return Ok(Extent { private_bytes: least, payload_bytes: total - least });
        }
        if total - least > opcode.tail_bytes_max() {
            return Err(length("longer than its maximum"));
        }
        Ok(Extent { private_bytes: total, payload_bytes: 0 })
    }
}
