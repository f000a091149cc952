//! One call of every procedure, for what is wrong in the same way with each.

use tombolo_wire_nfs3::args::{
    AccessArgs, AccessBits, CommitArgs, CreateArgs, CreateHow, DirOpArgs, LinkArgs, MkdirArgs, MknodArgs,
    MknodKind, ReadArgs, ReaddirArgs, ReaddirplusArgs, RenameArgs, SetattrArgs, StableHow, SymlinkArgs,
    WriteArgs,
};
use tombolo_wire_nfs3::{Call, Cookie3, CookieVerifier, Data, FileHandle, Sattr3, SpecData3};

use super::nfs::mode;

/// Data written by the WRITE among the calls.
pub const DATA: &[u8] = b"data!";

/// Returns a call of each procedure that takes a handle: on `object`, or on `name` in it.
pub fn calls_on<'a>(object: FileHandle<'a>, name: &'a [u8]) -> Vec<Call<'a>> {
    let mut calls = calls_with_names(object, name);
    let (cookie, verifier) = (Cookie3(0), CookieVerifier::default());
    let data = Data::to_send(DATA.len() as u32);
    calls.extend([
        Call::Getattr(object),
        Call::Setattr(SetattrArgs { object, attributes: mode(0o600), guard: None }),
        Call::Access(AccessArgs { object, access: AccessBits::READ }),
        Call::Readlink(object),
        Call::Read(ReadArgs { file: object, offset: 0, count: 10 }),
        Call::Write(WriteArgs {
            file: object,
            offset: 0,
            count: DATA.len() as u32,
            stable: StableHow::Unstable,
            data,
        }),
        Call::Readdir(ReaddirArgs { dir: object, cookie, verifier, count: 4096 }),
        Call::Readdirplus(ReaddirplusArgs { dir: object, cookie, verifier, dircount: 1024, maxcount: 4096 }),
        Call::Fsstat(object),
        Call::Fsinfo(object),
        Call::Pathconf(object),
        Call::Commit(CommitArgs { file: object, offset: 0, count: 0 }),
    ]);
    calls
}

/// Returns a call of each procedure that takes a name.
pub fn calls_with_names<'a>(dir: FileHandle<'a>, name: &'a [u8]) -> Vec<Call<'a>> {
    let mut calls = vec![Call::Lookup(DirOpArgs { dir, name })];
    calls.extend(changes_of_names(dir, name));
    calls
}

/// Returns a call of each procedure that changes a name, creating ones first.
pub fn changes_of_names<'a>(dir: FileHandle<'a>, name: &'a [u8]) -> Vec<Call<'a>> {
    let location = DirOpArgs { dir, name };
    let device = SpecData3 { major: 1, minor: 3 };
    let attributes = Sattr3::default();
    let mut calls: Vec<_> = [
        MknodKind::Fifo(attributes),
        MknodKind::Socket(attributes),
        MknodKind::CharDevice(attributes, device),
        MknodKind::BlockDevice(attributes, device),
    ]
    .map(|what| Call::Mknod(MknodArgs { location, what }))
    .to_vec();
    calls.extend([
        Call::Create(CreateArgs { location, how: CreateHow::Unchecked(mode(0o644)) }),
        Call::Create(CreateArgs { location, how: CreateHow::Guarded(mode(0o644)) }),
        Call::Create(CreateArgs { location, how: CreateHow::Exclusive(Default::default()) }),
        Call::Mkdir(MkdirArgs { location, attributes }),
        Call::Symlink(SymlinkArgs { location, attributes, target: b"target" }),
        Call::Remove(location),
        Call::Rmdir(location),
        Call::Rename(RenameArgs { from: location, to: DirOpArgs { dir, name: b"new" } }),
        Call::Rename(RenameArgs { from: DirOpArgs { dir, name: b"old" }, to: location }),
        Call::Link(LinkArgs { file: dir, link: location }),
    ]);
    calls
}
