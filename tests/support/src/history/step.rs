//! Random steps.

use fastrand::Rng;
use tombolo_core::fs::{AccessMask, AllocateMode, Exclusive, FileType, OpenFlags, RenameFlags, XattrSet};

use crate::session::READ_WRITE;

/// An operation of a user.
#[derive(Clone, Debug)]
pub struct Step {
    /// Index among [`USERS`].
    pub user: usize,
    /// The operation.
    pub action: Action,
}

/// Uid, gid, and one more group of each user.
pub const USERS: [(u32, u32, u32); 3] = [(0, 0, 0), (1000, 1000, 2000), (1001, 1001, 1001)];

/// The lock owners.
pub const OWNERS: std::ops::Range<u64> = 1..3;

/// An operation. Numbers alone are indices of nodes or openings, or after those offsets and lengths.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named like the operations of the waist")]
pub enum Action {
    Lookup(At),
    Forget(usize),
    Getattr(usize),
    Chmod(usize, u32),
    Chown(usize, Option<u32>, Option<u32>),
    SetMtime(usize, i64),
    Resize(usize, u64),
    Access(usize, AccessMask),
    Readlink(usize),
    Create(At, u32, OpenFlags, Exclusive),
    CreateUnnamed(usize),
    Mkdir(At, u32),
    Symlink(At),
    Mknod(At, FileType),
    Link(usize, At),
    Unlink(At),
    Rmdir(At),
    Rename(At, At, RenameFlags),
    Open(usize, OpenFlags),
    /// Ends an opening, after a flush by each lock owner if `true`.
    Release(usize, bool),
    OpenGetattr(usize),
    Read(usize, u64, usize),
    /// Writes data of the last number. Drops privileges if the first is `true`; the memory may be retained if
    /// the second is.
    Write(usize, u64, usize, (bool, bool), u64),
    /// Writes so many pieces of this length at once, each behind the one before.
    WriteSeveral(usize, u64, usize, usize),
    OpenResize(usize, u64),
    Fsync(usize),
    /// Lists with pages of this size in bytes, with attributes if `true`.
    List(usize, usize, bool),
    SetXattr(usize, &'static str, usize, XattrSet),
    GetXattr(usize, &'static str),
    ListXattrs(usize),
    RemoveXattr(usize, &'static str),
    Allocate(usize, u64, u64, AllocateMode),
    Copy(usize, u64, usize, u64, u64),
    Lock(usize, u64, bool, u64, u64),
    Unlock(usize, u64, u64, u64),
    Flush(usize, u64),
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Index of the directory.
    pub dir: usize,
    /// The name.
    pub name: &'static str,
}

/// Shares of groups of operations.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Number of acting users.
    pub users: usize,
    /// Operations on names.
    pub names: usize,
    /// Operations on nodes.
    pub nodes: usize,
    /// Operations on openings.
    pub openings: usize,
    /// Operations on extended attributes.
    pub xattrs: usize,
    /// Operations on ranges and locks.
    pub ranges: usize,
}

impl Mix {
    /// All operations, by all users.
    pub const ALL: Self =
        Self { users: USERS.len(), names: 12, nodes: 12, openings: 12, xattrs: 5, ranges: 7 };
}

/// Samples an index, each with its share.
fn share(rng: &mut Rng, shares: &[usize]) -> usize {
    let mut at = rng.usize(..shares.iter().sum::<usize>());
    shares.iter().take_while(|share| at.checked_sub(**share).map(|rest| at = rest).is_some()).count()
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

fn node(rng: &mut Rng) -> usize {
    rng.usize(..12)
}

fn opening(rng: &mut Rng) -> usize {
    rng.usize(..12)
}

/// Samples a place, half of them in the first directory: names are made, moved and removed repeatedly.
fn place(rng: &mut Rng) -> At {
    let names = ["a", "b", "a name that is long enough to be stored elsewhere"];
    At { dir: if rng.bool() { 0 } else { rng.usize(..6) }, name: pick(rng, &names) }
}

fn mode(rng: &mut Rng) -> u32 {
    pick(rng, &[0o644, 0o755, 0o777, 0o700, 0o070, 0o007, 0o1777, 0o2775, 0o4755, 0o6711, 0])
}

/// Samples an offset or a size, mostly near a page boundary.
fn offset(rng: &mut Rng) -> u64 {
    match rng.u8(..4) {
        0 => rng.u64(..20),
        1 => rng.u64(4090..4100),
        2 => rng.u64(8190..8200),
        _ => rng.u64(..20_000),
    }
}

/// Samples the length of a write.
fn len(rng: &mut Rng) -> usize {
    let most = if rng.u8(..8) == 0 { 40_000 } else { 9000 };
    rng.usize(..most)
}

/// Samples an end of a range: half of them are whole blocks, which some modes require.
fn bound(rng: &mut Rng) -> u64 {
    if rng.bool() { rng.u64(..4) * 4096 } else { offset(rng) }
}

fn flags(rng: &mut Rng) -> OpenFlags {
    let (read, write) = (OpenFlags::READ, OpenFlags::WRITE);
    let append = READ_WRITE | OpenFlags::APPEND;
    pick(rng, &[read, write, READ_WRITE, append, write | OpenFlags::TRUNCATE, read | OpenFlags::DIRECTORY])
}

impl Step {
    /// Samples a step. The superuser acts twice as often as another user, or most steps would be refused.
    pub fn sample(rng: &mut Rng, mix: &Mix) -> Self {
        let user = rng.usize(..=mix.users).saturating_sub(1);
        let action = match share(rng, &[mix.names, mix.nodes, mix.openings, mix.xattrs, mix.ranges]) {
            0 => Action::on_name(rng),
            1 => Action::on_node(rng),
            2 => Action::on_opening(rng),
            3 => Action::on_xattr(rng),
            _ => Action::on_range(rng),
        };
        Self { user, action }
    }
}

impl Action {
    /// Samples an operation on names.
    pub fn on_name(rng: &mut Rng) -> Self {
        let at = place(rng);
        match share(rng, &[2, 4, 3, 1, 1, 2, 2, 1, 4]) {
            0 => Self::Lookup(at),
            // New files are never opened as directories.
            1 => {
                let flags = flags(rng).difference(OpenFlags::DIRECTORY);
                Self::Create(at, mode(rng), flags, pick(rng, &[Exclusive::No, Exclusive::No, Exclusive::Yes]))
            }
            2 => Self::Mkdir(at, mode(rng)),
            3 => Self::Symlink(at),
            4 => {
                let special = [FileType::Fifo, FileType::Regular, FileType::Socket, FileType::CharDevice];
                Self::Mknod(at, pick(rng, &special))
            }
            5 => Self::Link(node(rng), at),
            6 => Self::Unlink(at),
            7 => Self::Rmdir(at),
            _ => {
                let none = RenameFlags::empty();
                let flags = [none, none, RenameFlags::NO_REPLACE, RenameFlags::EXCHANGE];
                Self::Rename(at, place(rng), pick(rng, &flags))
            }
        }
    }

    fn on_node(rng: &mut Rng) -> Self {
        let at = node(rng);
        match share(rng, &[2, 1, 2, 1, 1, 1, 1, 1, 1, 3]) {
            0 => Self::Getattr(at),
            1 => Self::Forget(at),
            2 => Self::Chmod(at, mode(rng)),
            3 => {
                let mut id = || rng.bool().then(|| pick(rng, &[0, 1000, 1001, 2000]));
                Self::Chown(at, id(), id())
            }
            4 => Self::SetMtime(at, rng.i64(0..2_000_000_000)),
            5 => Self::Resize(at, offset(rng)),
            6 => Self::Access(at, AccessMask::from_bits_truncate(rng.u8(..8))),
            7 => Self::Readlink(at),
            8 => Self::CreateUnnamed(at),
            _ if rng.u8(..4) == 0 => Self::Open(place(rng).dir, OpenFlags::READ | OpenFlags::DIRECTORY),
            _ => Self::Open(at, flags(rng)),
        }
    }

    /// Samples an operation on an opening.
    fn on_opening(rng: &mut Rng) -> Self {
        let (at, offset) = (opening(rng), offset(rng));
        match share(rng, &[3, 1, 3, 4, 1, 1, 1, 3]) {
            0 => Self::Release(at, rng.u8(..5) > 0),
            1 => Self::OpenGetattr(at),
            2 => Self::Read(at, offset, rng.usize(..9000)),
            3 => Self::Write(at, offset, len(rng), (rng.bool(), rng.bool()), rng.u64(..)),
            4 => Self::WriteSeveral(at, offset, 1 + rng.usize(..3000), 1 + rng.usize(..4)),
            5 => Self::OpenResize(at, offset),
            6 => Self::Fsync(at),
            _ => Self::List(at, pick(rng, &[200, 1000, 1 << 16]), rng.bool()),
        }
    }

    fn on_xattr(rng: &mut Rng) -> Self {
        let (at, name) = (node(rng), pick(rng, &["user.a", "user.b"]));
        match share(rng, &[2, 1, 1, 1]) {
            0 => {
                let how = pick(rng, &[XattrSet::Any, XattrSet::Create, XattrSet::Replace]);
                Self::SetXattr(at, name, rng.usize(..50), how)
            }
            1 => Self::GetXattr(at, name),
            2 => Self::ListXattrs(at),
            _ => Self::RemoveXattr(at, name),
        }
    }

    fn on_range(rng: &mut Rng) -> Self {
        let modes = [
            AllocateMode::empty(),
            AllocateMode::KEEP_SIZE,
            AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE,
            AllocateMode::ZERO_RANGE,
            AllocateMode::COLLAPSE_RANGE,
            AllocateMode::INSERT_RANGE,
        ];
        let (at, owner, start) = (opening(rng), rng.u64(OWNERS), rng.u64(..20));
        match share(rng, &[2, 1, 2, 1, 1]) {
            0 => Self::Allocate(at, bound(rng), bound(rng), pick(rng, &modes)),
            1 => Self::Copy(at, offset(rng), opening(rng), offset(rng), rng.u64(..9000)),
            2 => Self::Lock(at, owner, rng.bool(), start, start + rng.u64(..20)),
            3 => Self::Unlock(at, owner, start, start + rng.u64(..20)),
            _ => Self::Flush(at, owner),
        }
    }
}
