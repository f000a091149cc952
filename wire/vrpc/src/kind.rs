//! Which message it is.

use crate::DecodeError;

/// Set in the kind of an answer; the rest is the kind of the request that it answers.
pub const REPLY: u32 = 1 << 31;

macro_rules! kinds {
    ($($(#[$meta:meta])* $name:ident = $number:literal),+ $(,)?) => {
        /// What a request asks for. The numbers are for ever.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Kind { $($(#[$meta])* $name = $number),+ }

        impl Kind {
            /// All of them, by number.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The request with this number; `None` for unknown ones and for answers.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)+
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Nothing: a round trip.
    Null = 1,
    /// What the session is.
    Profile = 2,
    /// Gives an identity a number.
    Caller = 3,
    /// Asks an outstanding request to end.
    Interrupt = 4,
    /// Takes look-ups back.
    Forget = 5,
    /// `FileSystem::lookup`.
    Lookup = 16,
    /// `FileSystem::getattr`.
    Getattr = 17,
    /// `FileSystem::setattr`.
    Setattr = 18,
    /// `FileSystem::access`.
    Access = 19,
    /// `FileSystem::readlink`.
    Readlink = 20,
    /// `FileSystem::create`.
    Create = 21,
    /// `FileSystem::create_unnamed`.
    CreateUnnamed = 22,
    /// `FileSystem::mkdir`.
    Mkdir = 23,
    /// `FileSystem::symlink`.
    Symlink = 24,
    /// `FileSystem::mknod`.
    Mknod = 25,
    /// `FileSystem::link`.
    Link = 26,
    /// `FileSystem::unlink`.
    Unlink = 27,
    /// `FileSystem::rmdir`.
    Rmdir = 28,
    /// `FileSystem::rename`.
    Rename = 29,
    /// `FileSystem::open`.
    Open = 30,
    /// `FileSystem::release`.
    Release = 31,
    /// `FileSystem::flush`.
    Flush = 32,
    /// `FileSystem::fsync`.
    Fsync = 33,
    /// `FileSystem::read`.
    Read = 34,
    /// `FileSystem::write`.
    Write = 35,
    /// `FileSystem::readdir`.
    Readdir = 36,
    /// `FileSystem::statfs`.
    Statfs = 37,
    /// `FileSystem::syncfs`.
    Syncfs = 38,
    /// `Xattrs::get`.
    XattrGet = 64,
    /// `Xattrs::set`.
    XattrSet = 65,
    /// `Xattrs::list`.
    XattrList = 66,
    /// `Xattrs::remove`.
    XattrRemove = 67,
    /// `Locks::test`.
    LockTest = 80,
    /// `Locks::lock`.
    Lock = 81,
    /// `Locks::unlock`.
    Unlock = 82,
    /// `PersistentHandles::handle_of`.
    HandleOf = 96,
    /// `PersistentHandles::resolve`.
    Resolve = 97,
    /// `PersistentHandles::parent`.
    Parent = 98,
    /// `Ranges::allocate`.
    Allocate = 112,
    /// `Ranges::seek`.
    Seek = 113,
    /// `Ranges::copy`.
    Copy = 114,
}

impl Kind {
    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The number of its answer.
    #[must_use]
    pub const fn reply_number(self) -> u32 {
        self as u32 | REPLY
    }

    pub(crate) fn decode(number: u32) -> Result<Self, DecodeError> {
        Self::from_number(number).ok_or(DecodeError::UnknownKind(number))
    }
}
