//! The operations of the protocol, and how much of a request each needs in private memory.

use crate::error::DecodeError;
use crate::layout::header::InHeader;
use crate::layout::{attr, dir, init, lock, misc, open, rw, xattr};

/// Declares the operations once: name, number, bytes of fixed arguments, the most bytes that follow those.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $fixed:expr, $tail:expr;)+) => {
        /// `enum fuse_opcode`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($(#[$doc])* $name = $number),+ }

        impl Opcode {
            /// Every operation this codec knows, by rising number.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),+];

            /// The operation of that number, if this codec knows it.
            #[must_use]
            pub fn from_wire(number: u32) -> Option<Opcode> {
                match number { $($number => Some(Opcode::$name),)+ _ => None }
            }

            /// Its name, for logs and counters.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => stringify!($name)),+ }
            }

            /// Bytes of fixed arguments that follow the header. The oldest form counts where a later minor
            /// version made them longer.
            #[must_use]
            pub const fn fixed_bytes(self) -> usize {
                match self { $(Opcode::$name => $fixed),+ }
            }

            /// The most bytes of names, values and extensions that may follow the fixed arguments. A WRITE's
            /// data does not count: it stays where it is.
            const fn tail_bytes_max(self) -> usize {
                match self { $(Opcode::$name => $tail),+ }
            }
        }
    };
}

/// The kernel lets a name of up to 1,024 bytes through; we take the room for it and answer ENAMETOOLONG.
const NAME: usize = 1024 + 1;
/// Longest target of a symbolic link, `PATH_MAX` with its NUL.
const TARGET: usize = 4096;
/// Largest value of an extended attribute, `XATTR_SIZE_MAX`.
const VALUE: usize = 64 * 1024;
/// Extensions: security contexts and supplementary groups; `total_extlen` could say more than anyone sends.
const EXTENSIONS: usize = 64 * 1024;
/// The kernel fills a whole read of the device with forgets.
const FORGETS: usize = 2 * 1024 * 1024;
/// An ioctl number encodes sizes up to 14 bits.
const IOCTL: usize = 16 * 1024;

opcodes! {
    /// Find a name in a directory.
    Lookup = 1, 0, NAME;
    /// Give look-ups of a node back; has no reply.
    Forget = 2, size_of::<dir::ForgetIn>(), 0;
    /// Ask for attributes.
    Getattr = 3, size_of::<attr::GetattrIn>(), 0;
    /// Change attributes.
    Setattr = 4, size_of::<attr::SetattrIn>(), 0;
    /// Ask for a symbolic link's target.
    Readlink = 5, 0, 0;
    /// Make a symbolic link.
    Symlink = 6, 0, NAME + TARGET + EXTENSIONS;
    /// Make a file, device node, pipe or socket.
    Mknod = 8, size_of::<dir::MknodIn>(), NAME + EXTENSIONS;
    /// Make a directory.
    Mkdir = 9, size_of::<dir::MkdirIn>(), NAME + EXTENSIONS;
    /// Remove a name.
    Unlink = 10, 0, NAME;
    /// Remove a directory.
    Rmdir = 11, 0, NAME;
    /// Move a name.
    Rename = 12, size_of::<dir::RenameIn>(), 2 * NAME;
    /// Give a file another name.
    Link = 13, size_of::<dir::LinkIn>(), NAME;
    /// Open a file.
    Open = 14, size_of::<open::OpenIn>(), 0;
    /// Read from a file.
    Read = 15, size_of::<rw::ReadIn>(), 0;
    /// Write to a file.
    Write = 16, size_of::<rw::WriteIn>(), 0;
    /// Ask about the file system.
    Statfs = 17, 0, 0;
    /// The last descriptor of an open file is gone.
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
    /// A descriptor was closed.
    Flush = 25, size_of::<open::FlushIn>(), 0;
    /// Agree on version and capabilities.
    Init = 26, init::INIT_IN_SHORT, 1024;
    /// Open a directory.
    Opendir = 27, size_of::<open::OpenIn>(), 0;
    /// List a directory.
    Readdir = 28, size_of::<rw::ReadIn>(), 0;
    /// The last descriptor of an open directory is gone.
    Releasedir = 29, size_of::<open::ReleaseIn>(), 0;
    /// Make a directory durable.
    Fsyncdir = 30, size_of::<open::FsyncIn>(), 0;
    /// Which lock is in the way?
    Getlk = 31, size_of::<lock::LkIn>(), 0;
    /// Take or drop a lock, or fail.
    Setlk = 32, size_of::<lock::LkIn>(), 0;
    /// Take a lock, and wait for it.
    Setlkw = 33, size_of::<lock::LkIn>(), 0;
    /// access(2).
    Access = 34, size_of::<misc::AccessIn>(), 0;
    /// Make a file and open it.
    Create = 35, size_of::<open::CreateIn>(), NAME + EXTENSIONS;
    /// The caller of a request no longer waits; has no reply.
    Interrupt = 36, size_of::<misc::InterruptIn>(), 0;
    /// Map a file's block to the device's.
    Bmap = 37, size_of::<misc::BmapIn>(), 0;
    /// The session ends.
    Destroy = 38, 0, 0;
    /// ioctl(2).
    Ioctl = 39, size_of::<misc::IoctlIn>(), IOCTL;
    /// poll(2).
    Poll = 40, size_of::<misc::PollIn>(), 0;
    /// Answers a RETRIEVE notification, which this codec never sends.
    NotifyReply = 41, size_of::<rw::WriteIn>(), 0;
    /// Many forgets in one; has no reply.
    BatchForget = 42, size_of::<dir::BatchForgetIn>(), FORGETS;
    /// Allocate, punch, zero a range.
    Fallocate = 43, size_of::<rw::FallocateIn>(), 0;
    /// List a directory with attributes.
    Readdirplus = 44, size_of::<rw::ReadIn>(), 0;
    /// Move a name, with flags.
    Rename2 = 45, size_of::<dir::Rename2In>(), 2 * NAME + EXTENSIONS;
    /// Find data or a hole.
    Lseek = 46, size_of::<rw::LseekIn>(), 0;
    /// Copy between files.
    CopyFileRange = 47, size_of::<rw::CopyFileRangeIn>(), 0;
    /// Map a file into the DAX window.
    Setupmapping = 48, size_of::<rw::SetupmappingIn>(), 0;
    /// Unmap from the DAX window.
    Removemapping = 49, size_of::<rw::RemovemappingIn>(), 4096;
    /// Make the file system durable.
    Syncfs = 50, size_of::<misc::SyncfsIn>(), 0;
    /// Make a file without a name and open it.
    Tmpfile = 51, size_of::<open::CreateIn>(), NAME + EXTENSIONS;
    /// statx(2).
    Statx = 52, size_of::<attr::StatxIn>(), 0;
    /// Copy between files; the answer counts in 64 bits.
    CopyFileRange64 = 53, size_of::<rw::CopyFileRangeIn>(), 0;
}

impl Opcode {
    /// Has this request no reply?
    #[must_use]
    pub fn is_silent(self) -> bool {
        matches!(self, Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply)
    }
}

/// How a request divides into what must be copied to private memory and what stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes from the start of the request, header included, that [`crate::Request::decode`] must be given.
    pub private_bytes: usize,
    /// Bytes after those: the data of a WRITE.
    pub payload_bytes: usize,
}

impl Extent {
    /// Divides the request that starts with `header`.
    ///
    /// # Errors
    /// [`DecodeError::Length`] if the request is shorter than its operation's arguments, or longer than any
    /// that a kernel sends. An unknown operation is not an error here: its header alone is private.
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
            return Err(length("longer than its arguments may be"));
        }
        Ok(Extent { private_bytes: total, payload_bytes: 0 })
    }
}
