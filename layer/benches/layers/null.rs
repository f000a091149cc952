use tombolo_core::fs::{
    AccessMask, Answer, Attr, Change, Cookie, Create, Created, Ctx, Device, DirPage, Entry, Error, File,
    FileSystem, FileType, LockOwner, Made, Name, NewMode, NodeId, OpenFlags, Opened, PermissionCheck,
    Profile, ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncWhat, Write, Written,
};
use tombolo_mem::{Sink, Source};

/// A back end that answers `getattr` from a constant, and refuses all else.
pub struct NullFs(pub Attr);

/// Methods whose arguments do not matter.
macro_rules! refused {
    ($($name:ident($($argument:ty),*) -> $answer:ty;)+) => {
        $(fn $name(&self, _: &Ctx, $(_: $argument),*) -> Answer<$answer> {
            Answer::err(Error::NotImplemented)
        })+
    };
}

impl FileSystem for NullFs {
    fn profile(&self) -> Profile {
        Profile {
            permission_check: PermissionCheck::Caller,
            read_only: true,
            name_max: 255,
            file_size_max: 0,
            time_granularity_ns: 1,
        }
    }

    fn getattr(&self, _: &Ctx, _: NodeId, _: Option<File>) -> Answer<Attr> {
        Answer::ok(self.0)
    }

    fn forget(&self, _: &Ctx, _: &[(NodeId, u64)]) {}

    fn release(&self, _: &Ctx, _: File) {}

    refused! {
        lookup(NodeId, Name<'_>) -> Entry;
        setattr(NodeId, Option<File>, &SetAttr) -> (Attr, Change);
        access(NodeId, AccessMask) -> ();
        readlink(NodeId) -> Vec<u8>;
        create(NodeId, Name<'_>, &Create) -> Created;
        create_unnamed(NodeId, &Create) -> Created;
        mkdir(NodeId, Name<'_>, NewMode) -> Made;
        symlink(NodeId, Name<'_>, &[u8]) -> Made;
        mknod(NodeId, Name<'_>, FileType, NewMode, Device) -> Made;
        link(NodeId, NodeId, Name<'_>) -> Made;
        unlink(NodeId, Name<'_>) -> Change;
        rmdir(NodeId, Name<'_>) -> Change;
        rename(NodeId, Name<'_>, NodeId, Name<'_>, RenameFlags) -> Renamed;
        open(NodeId, OpenFlags) -> Opened;
        flush(File, LockOwner) -> ();
        fsync(File, SyncWhat) -> ();
        read(File, u64, Sink) -> ReadDone;
        write(File, &Write, Source) -> Written;
        readdir(File, Cookie, DirPage) -> DirPage;
        statfs(NodeId) -> StatFs;
        syncfs() -> ();
    }
}
