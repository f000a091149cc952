//! Arguments and results of creating, opening, reading and writing.

use bitflags::bitflags;

use crate::{Ctx, Error, Result, Stability};

use super::{Attr, Change, Mode, NodeId, OpenId};

/// A node that was looked up or created. The receiver owns one look-up of `node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node, valid until the receiver releases the look-up.
    pub node: NodeId,
    /// The node's attributes at the time of the look-up.
    pub attr: Attr,
}

/// The result of creating a node without opening it.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// The new node, which counts a look-up, and its attributes.
    pub entry: Entry,
    /// Attributes of the parent directory before and after, if requested.
    pub dir: Change,
}

/// The mode of a node to be created.
///
/// Includes the umask because only the back end can apply it: where the parent has a default ACL, the ACL
/// replaces the umask (acl(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewMode {
    /// Requested mode, before the umask is applied.
    pub mode: Mode,
    /// The caller's umask; 0 if it has been applied already.
    pub umask: Mode,
}

impl NewMode {
    /// Returns a mode to which the umask has been applied already.
    pub const fn settled(mode: Mode) -> Self {
        Self { mode, umask: Mode::new(0) }
    }

    /// Returns the mode in the absence of a default ACL.
    pub const fn masked(self) -> Mode {
        self.mode.without(self.umask)
    }
}

bitflags! {
    /// Modes and options of an opening (open(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u16 {
        /// Open for reading.
        const READ = 1;
        /// Open for writing.
        const WRITE = 1 << 1;
        /// Append every write, whatever its offset, except those [in place](Write::in_place).
        const APPEND = 1 << 2;
        /// Truncate to zero length.
        const TRUNCATE = 1 << 3;
        /// Bypass the host's page cache. Buffers, offsets and lengths must be aligned (open(2), O_DIRECT).
        const DIRECT = 1 << 4;
        /// Make each write stable, data and attributes, before it is answered.
        const SYNC = 1 << 5;
        /// Make each write's data stable before it is answered.
        const DATA_SYNC = 1 << 6;
        /// Open a directory for listing; fail for anything else.
        const DIRECTORY = 1 << 7;
        /// Do not update the access time.
        const NO_ACCESS_TIME = 1 << 8;
        /// Open for execution: the kernel reads the file for a user who may lack the right to read it.
        const EXECUTE = 1 << 9;
        /// Do not block (fifos, devices).
        const NONBLOCK = 1 << 10;
        /// Drop set-user-id, set-group-id and file capabilities on truncation.
        const KILL_PRIVILEGES = 1 << 11;
    }
}

/// The result of an open.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The opening, to be released by the receiver.
    pub open: OpenId,
    /// Attributes as of the open, if requested with [`Want::OPEN_ATTRS`](crate::Want::OPEN_ATTRS), and always
    /// for a [volatile](Attr::volatile) file.
    pub attr: Option<Attr>,
}

/// Behaviour of a create if the name exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exclusive {
    /// Open the existing file.
    #[default]
    No,
    /// Fail with [`Error::Exists`](crate::Error::Exists).
    Yes,
    /// Fail, unless the file was created with this verifier: then this create is a retry, and succeeds (RFC
    /// 1813 §3.3.8, EXCLUSIVE).
    Verifier([u8; 8]),
}

/// Options of creating and opening a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// Mode of the new file.
    pub mode: NewMode,
    /// Modes of the opening.
    pub flags: OpenFlags,
    /// Behaviour if the name exists already.
    pub exclusive: Exclusive,
}

/// The result of a create.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// The created or opened node, which counts a look-up, and its attributes.
    pub entry: Entry,
    /// The opening of the file, to be released by the receiver.
    pub open: OpenId,
    /// Attributes of the parent directory before and after, if requested.
    pub dir: Change,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDone {
    /// Bytes stored at the start of the sink.
    pub count: usize,
    /// `true` if the read reached the end of the file. A short read with `false` did not. A completely filled
    /// read may return `false` even at the end: callers that must know (RFC 1813 §3.3.6) check the size.
    pub eof: bool,
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// Byte offset in the file.
    pub offset: u64,
    /// Stability that the data must have when the write is answered.
    pub stability: Stability,
    /// Drop set-user-id, set-group-id and file capabilities.
    pub kill_privileges: bool,
    /// Write at the offset even through an appending opening: the client's kernel writes back a page changed
    /// in a mapping through any opening.
    pub in_place: bool,
    /// The source may be retained after the answer: its memory does not change while referenced. A back end
    /// that answers before the data reach their destination then needs no copy of them.
    pub retainable: bool,
    /// Write only if the caller is the file's owner or the superuser, and the file has a name, according to
    /// its attributes immediately before the write: otherwise nothing is written, and the write fails with
    /// [`Error::WouldBlock`](crate::Error::WouldBlock), or for an unlinked file with
    /// [`Error::Stale`](crate::Error::Stale). For a front end whose openings are shared by users: it checks
    /// other users' rights with separate operations, and its clients cannot refer to unlinked files. To be
    /// set only if the [`Profile`](super::Profile) supports it.
    pub by_owner: bool,
}

impl Write {
    /// Enforces [`Write::by_owner`] for a file with this owner and link count.
    pub fn check_owner(&self, cx: &Ctx, uid: u32, nlink: u32) -> Result<()> {
        match self.by_owner {
            true if nlink == 0 => Err(Error::Stale),
            true if cx.identity.uid != 0 && cx.identity.uid != uid => Err(Error::WouldBlock),
            _ => Ok(()),
        }
    }
}

/// The result of a write.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Bytes taken from the start of the source.
    pub count: usize,
    /// Achieved stability: at least the requested one.
    pub stability: Stability,
    /// Attributes of the file before and after the write, if requested.
    pub file: Change,
}

/// The extent of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncScope {
    /// The data, and the metadata needed to find them.
    Data,
    /// The data and all attributes.
    All,
    /// The data and all attributes, whichever client has written them, such as a killed predecessor. A back
    /// end that tracks only its own writes must forward the request regardless.
    AllWriters,
}

bitflags! {
    /// Options of a rename (renameat2(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RenameFlags: u8 {
        /// Fail if the new name exists.
        const NO_REPLACE = 1;
        /// Exchange the two entries, which both exist.
        const EXCHANGE = 2;
        /// Leave a whiteout at the old name.
        const WHITEOUT = 4;
    }
}

/// The result of a rename.
#[derive(Clone, Copy, Debug, Default)]
pub struct Renamed {
    /// Attributes of the old name's directory before and after, if requested.
    pub from_dir: Change,
    /// Attributes of the new name's directory before and after, if requested.
    pub to_dir: Change,
}

bitflags! {
    /// Access to be checked. Empty checks for existence (access(2), `F_OK`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AccessMask: u8 {
        /// Execute a file, search a directory.
        const EXECUTE = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }
}
