//! Arguments and results of operations that make, open, read and write.

use bitflags::bitflags;

use crate::{Ctx, Error, Result, Stability};

use super::{Attr, Change, Mode, NodeId, OpenId};

/// A node as it was found or made. It carries one look-up of `node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node.
    pub node: NodeId,
    /// Its attributes.
    pub attr: Attr,
}

/// What was made without being opened.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// The new node.
    pub entry: Entry,
    /// The directory that it was made in.
    pub dir: Change,
}

/// The mode of a node to be made.
///
/// The umask comes along because only the back end can settle it: where the parent has a default ACL, the ACL
/// takes the umask's place (acl(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewMode {
    /// The mode that the caller asked for.
    pub mode: Mode,
    /// The caller's umask.
    pub umask: Mode,
}

impl NewMode {
    /// A mode whose umask is already taken off.
    pub const fn settled(mode: Mode) -> Self {
        Self { mode, umask: Mode::new(0) }
    }

    /// The mode where no default ACL intervenes.
    pub const fn masked(self) -> Mode {
        self.mode.without(self.umask)
    }
}

bitflags! {
    /// How a node is opened.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u16 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 1 << 1;
        /// Every write goes to the end, wherever it was aimed, but for those [in place](Write::in_place).
        const APPEND = 1 << 2;
        /// Cut to zero length at open.
        const TRUNCATE = 1 << 3;
        /// Past the cache of the host, in aligned pieces.
        const DIRECT = 1 << 4;
        /// Each write is stable, data and attributes, before it is answered.
        const SYNC = 1 << 5;
        /// Each write's data is stable before it is answered.
        const DATA_SYNC = 1 << 6;
        /// The node must be a directory, to be listed.
        const DIRECTORY = 1 << 7;
        /// Reading leaves the access time alone.
        const NO_ACCESS_TIME = 1 << 8;
        /// The opener is to execute the file.
        const EXECUTE = 1 << 9;
        /// Do not wait (fifos, devices).
        const NONBLOCK = 1 << 10;
        /// Truncation drops set-user-id, set-group-id and file capabilities.
        const KILL_PRIVILEGES = 1 << 11;
    }
}

/// The result of an open.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The opening.
    pub open: OpenId,
    /// Attributes as of the open, when asked with [`Want::OPEN_ATTRS`](crate::Want::OPEN_ATTRS), and of a
    /// file that is [volatile](Attr::volatile).
    pub attr: Option<Attr>,
}

/// What to do when the name to create exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exclusive {
    /// Open what exists.
    #[default]
    No,
    /// Fail with [`Error::Exists`](crate::Error::Exists).
    Yes,
    /// Fail, unless it was made with this very verifier: then this is a retry, and succeeds (RFC 1813 §3.3.8,
    /// EXCLUSIVE).
    Verifier([u8; 8]),
}

/// How a file is created and opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// Its mode.
    pub mode: NewMode,
    /// How it is opened.
    pub flags: OpenFlags,
    /// What to do when the name exists.
    pub exclusive: Exclusive,
}

/// The result of a create.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// The node.
    pub entry: Entry,
    /// Its opening.
    pub open: OpenId,
    /// The directory.
    pub dir: Change,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDone {
    /// Bytes that were placed at the start of the sink.
    pub count: usize,
    /// True when the file ended there; a short read that does not say so is not the end. A read that was
    /// filled to the last byte may say false although nothing follows: a caller that must know (RFC 1813
    /// §3.3.6) compares with the size.
    pub eof: bool,
}

/// Where and how to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// Byte offset in the file.
    pub offset: u64,
    /// How stable.
    pub stability: Stability,
    /// Drop set-user-id, set-group-id and file capabilities.
    pub kill_privileges: bool,
    /// Write where it is aimed even through an opening that appends: a page that was changed in a mapping and
    /// is written back by the client's kernel, through whatever opening is at hand.
    pub in_place: bool,
    /// The source may be kept after the answer: its memory is not changed while it is held. So a back end
    /// that answers before the data have gone where they belong needs no copy of them.
    pub retainable: bool,
    /// Only if the caller is the file's owner or the superuser, and the file has a name, as its attributes
    /// say right before the write: otherwise nothing is written, and the answer is
    /// [`Error::WouldBlock`](crate::Error::WouldBlock), or for a file without a name
    /// [`Error::Stale`](crate::Error::Stale). For a front end whose openings are shared by users: it checks
    /// the right of other users with operations of their own, and its clients know no removed files. Only
    /// where the [`Profile`](super::Profile) has it.
    pub by_owner: bool,
}

impl Write {
    /// What [`Write::by_owner`] asks for, of a file with this owner and so many names.
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
    /// How stable they are: at least as asked.
    pub stability: Stability,
    /// The file.
    pub file: Change,
}

/// What to make stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncWhat {
    /// The data, and what is needed to find it.
    Data,
    /// Everything.
    All,
    /// Everything, whichever client of the file system has written it: one before this that was killed, say.
    /// A back end that knows of its own writes only asks all the same.
    AllWriters,
}

bitflags! {
    /// How to rename (renameat2(2)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RenameFlags: u8 {
        /// Fail when the new name exists.
        const NO_REPLACE = 1;
        /// Swap the two.
        const EXCHANGE = 2;
        /// Leave a whiteout at the old name.
        const WHITEOUT = 4;
    }
}

/// The result of a rename.
#[derive(Clone, Copy, Debug, Default)]
pub struct Renamed {
    /// The directory of the old name.
    pub from_dir: Change,
    /// The directory of the new name.
    pub to_dir: Change,
}

bitflags! {
    /// What access to ask about. Empty asks whether the node exists (access(2), `F_OK`).
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
