//! Random actions. Nodes and openings are named by their index in order of discovery.

use proptest::prelude::*;
use tombolo_core::fs::{AccessMask, AllocateMode, Exclusive, FileType, OpenFlags, RenameFlags, XattrSet};

use crate::model::machine::OWNERS;

#[derive(Clone, Debug)]
pub struct Action {
    /// Index of the acting user among the machine's users.
    pub user: usize,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    Lookup(Place),
    Forget(usize),
    Getattr(usize),
    Chmod(usize, u32),
    Chown(usize, Option<u32>, Option<u32>),
    Resize(usize, u64),
    Access(usize, AccessMask),
    Readlink(usize),
    Create(Place, u32, OpenFlags, Exclusive),
    CreateUnnamed(usize),
    Mkdir(Place, u32),
    Symlink(Place),
    Mknod(Place, FileType),
    Link(usize, Place),
    Unlink(Place),
    Rmdir(Place),
    Rename(Place, Place, RenameFlags),
    Open(usize, OpenFlags),
    Release(usize),
    OpenGetattr(usize),
    Read(usize, u64, usize),
    Write(usize, u64, usize, bool),
    OpenResize(usize, u64),
    List(usize),
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
pub struct Place {
    pub dir: usize,
    pub name: &'static str,
}

/// Returns a strategy for up to 80 actions.
pub fn sequences() -> impl Strategy<Value = Vec<Action>> {
    prop::collection::vec(by_anyone(prop_oneof![names(), nodes(), files(), groups()]), 1..80)
}

/// Returns a strategy for an action of the required operations or on extended attributes.
pub fn required_and_xattrs() -> impl Strategy<Value = Action> {
    by_anyone(prop_oneof![3 => names(), 3 => nodes(), 3 => files(), 1 => xattrs()])
}

fn by_anyone(what: impl Strategy<Value = What>) -> impl Strategy<Value = Action> {
    // The superuser acts twice as often, or most actions would be refused.
    let user = prop_oneof![2 => Just(0_usize), 1 => Just(1), 1 => Just(2)];
    (user, what).prop_map(|(user, what)| Action { user, what })
}

fn node() -> impl Strategy<Value = usize> {
    0_usize..12
}

fn open() -> impl Strategy<Value = usize> {
    0_usize..6
}

fn place() -> impl Strategy<Value = Place> {
    (0_usize..6, prop::sample::select(vec!["a", "b", "c"])).prop_map(|(dir, name)| Place { dir, name })
}

fn mode() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0o644, 0o755, 0o777, 0o700, 0o070, 0o007, 0o1777, 0o2775, 0o4755, 0o6711, 0])
}

fn flags() -> impl Strategy<Value = OpenFlags> {
    let (read, write) = (OpenFlags::READ, OpenFlags::WRITE);
    prop::sample::select(vec![
        read,
        write,
        read | write,
        read | write | OpenFlags::APPEND,
        write | OpenFlags::TRUNCATE,
        read | OpenFlags::DIRECTORY,
    ])
}

/// Returns a strategy for offsets and sizes near page boundaries.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..20, 4090_u64..4100, 8190_u64..8200, 0_u64..20_000]
}

fn names() -> BoxedStrategy<What> {
    let exclusive = prop::sample::select(vec![Exclusive::No, Exclusive::No, Exclusive::Yes]);
    let rename = prop::sample::select(vec![
        RenameFlags::empty(),
        RenameFlags::empty(),
        RenameFlags::NO_REPLACE,
        RenameFlags::EXCHANGE,
    ]);
    let special =
        prop::sample::select(vec![FileType::Fifo, FileType::Regular, FileType::Socket, FileType::CharDevice]);
    prop_oneof![
        2 => place().prop_map(What::Lookup),
        4 => (place(), mode(), flags(), exclusive).prop_map(|(place, mode, flags, exclusive)| {
            // New files are never opened as directories.
            What::Create(place, mode, flags.difference(OpenFlags::DIRECTORY), exclusive)
        }),
        3 => (place(), mode()).prop_map(|(place, mode)| What::Mkdir(place, mode)),
        1 => place().prop_map(What::Symlink),
        1 => (place(), special).prop_map(|(place, file_type)| What::Mknod(place, file_type)),
        2 => (node(), place()).prop_map(|(node, place)| What::Link(node, place)),
        2 => place().prop_map(What::Unlink),
        1 => place().prop_map(What::Rmdir),
        4 => (place(), place(), rename).prop_map(|(from, to, flags)| What::Rename(from, to, flags)),
    ]
    .boxed()
}

fn nodes() -> BoxedStrategy<What> {
    let id = || prop::option::of(prop::sample::select(vec![0_u32, 1000, 1001, 2000]));
    let mask = (0_u8..8).prop_map(AccessMask::from_bits_truncate);
    prop_oneof![
        2 => node().prop_map(What::Getattr),
        1 => node().prop_map(What::Forget),
        2 => (node(), mode()).prop_map(|(node, mode)| What::Chmod(node, mode)),
        1 => (node(), id(), id()).prop_map(|(node, uid, gid)| What::Chown(node, uid, gid)),
        1 => (node(), offset()).prop_map(|(node, size)| What::Resize(node, size)),
        1 => (node(), mask).prop_map(|(node, mask)| What::Access(node, mask)),
        1 => node().prop_map(What::Readlink),
        1 => node().prop_map(What::CreateUnnamed),
        3 => (node(), flags()).prop_map(|(node, flags)| What::Open(node, flags)),
    ]
    .boxed()
}

fn files() -> BoxedStrategy<What> {
    prop_oneof![
        1 => open().prop_map(What::Release),
        1 => open().prop_map(What::OpenGetattr),
        3 => (open(), offset(), 0_usize..9000).prop_map(|(open, offset, len)| What::Read(open, offset, len)),
        4 => (open(), offset(), 0_usize..9000, any::<bool>())
            .prop_map(|(open, offset, len, kill)| What::Write(open, offset, len, kill)),
        1 => (open(), offset()).prop_map(|(open, size)| What::OpenResize(open, size)),
        1 => open().prop_map(What::List),
    ]
    .boxed()
}

fn xattrs() -> BoxedStrategy<What> {
    let name = || prop::sample::select(vec!["user.a", "user.b"]);
    let how = prop::sample::select(vec![XattrSet::Any, XattrSet::Create, XattrSet::Replace]);
    prop_oneof![
        2 => (node(), name(), 0_usize..50, how).prop_map(|(node, name, len, how)| What::SetXattr(node, name, len, how)),
        1 => (node(), name()).prop_map(|(node, name)| What::GetXattr(node, name)),
        1 => node().prop_map(What::ListXattrs),
        1 => (node(), name()).prop_map(|(node, name)| What::RemoveXattr(node, name)),
    ]
    .boxed()
}

fn groups() -> BoxedStrategy<What> {
    let allocate = prop::sample::select(vec![
        AllocateMode::empty(),
        AllocateMode::KEEP_SIZE,
        AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE,
        AllocateMode::ZERO_RANGE,
        AllocateMode::COLLAPSE_RANGE,
        AllocateMode::INSERT_RANGE,
    ]);
    // Half of the ranges are whole blocks, which some modes require.
    let range = || prop_oneof![(0_u64..4).prop_map(|block| block * 4096), offset()];
    let owner = || OWNERS;
    prop_oneof![
        5 => xattrs(),
        2 => (open(), range(), range(), allocate)
            .prop_map(|(open, offset, len, mode)| What::Allocate(open, offset, len, mode)),
        1 => (open(), offset(), open(), offset(), 0_u64..9000)
            .prop_map(|(from, a, to, b, len)| What::Copy(from, a, to, b, len)),
        2 => (open(), owner(), any::<bool>(), 0_u64..20, 0_u64..20)
            .prop_map(|(open, owner, write, start, len)| What::Lock(open, owner, write, start, start + len)),
        1 => (open(), owner(), 0_u64..20, 0_u64..20)
            .prop_map(|(open, owner, start, len)| What::Unlock(open, owner, start, start + len)),
        1 => (open(), owner()).prop_map(|(open, owner)| What::Flush(open, owner)),
    ]
    .boxed()
}
