//! An export whose file systems have no persistent handles.

use std::sync::Arc;

use tombolo_core::fs::{
    AccessMask, Attr, Change, Client, Cookie, Create, Created, Device, DirPage, Entry, Export, File,
    FileSystem, FileType, LockOwner, Made, Name, NewMode, NodeId, OpenFlags, Opened, Profile, ReadDone,
    RenameFlags, Renamed, SetAttr, StatFs, SyncWhat, Write, Written,
};
use tombolo_core::{Answer, Ctx, Result};
use tombolo_mem::{Sink, Source};

pub struct WithoutHandles(pub Arc<dyn Export>);

struct Session(Arc<dyn FileSystem>);

impl Export for WithoutHandles {
    fn attach(&self, client: &Client) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(Session(self.0.attach(client)?)))
    }
}

macro_rules! passes {
    ($($name:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)?;)+) => {
        $(fn $name(&self, cx: &Ctx, $($argument: $kind),*) $(-> Answer<$answer>)? {
            self.0.$name(cx, $($argument),*)
        })+
    };
}

impl FileSystem for Session {
    fn profile(&self) -> Profile {
        self.0.profile()
    }

    passes! {
        lookup(parent: NodeId, name: Name<'_>) -> Entry;
        forget(look_ups: &[(NodeId, u64)]);
        getattr(node: NodeId, file: Option<File>) -> Attr;
        setattr(node: NodeId, file: Option<File>, set: &SetAttr) -> (Attr, Change);
        access(node: NodeId, mask: AccessMask) -> ();
        readlink(node: NodeId) -> Vec<u8>;
        create(parent: NodeId, name: Name<'_>, how: &Create) -> Created;
        create_unnamed(parent: NodeId, how: &Create) -> Created;
        mkdir(parent: NodeId, name: Name<'_>, mode: NewMode) -> Made;
        symlink(parent: NodeId, name: Name<'_>, target: &[u8]) -> Made;
        mknod(parent: NodeId, name: Name<'_>, file_type: FileType, mode: NewMode, rdev: Device) -> Made;
        link(node: NodeId, parent: NodeId, name: Name<'_>) -> Made;
        unlink(parent: NodeId, name: Name<'_>) -> Change;
        rmdir(parent: NodeId, name: Name<'_>) -> Change;
        rename(from_parent: NodeId, from: Name<'_>, to_parent: NodeId, to: Name<'_>, flags: RenameFlags) -> Renamed;
        open(node: NodeId, flags: OpenFlags) -> Opened;
        release(file: File);
        flush(file: File, owner: LockOwner) -> ();
        fsync(file: File, what: SyncWhat) -> ();
        read(file: File, offset: u64, into: Sink) -> ReadDone;
        write(file: File, how: &Write, from: Source) -> Written;
        readdir(file: File, cookie: Cookie, page: DirPage) -> DirPage;
        statfs(node: NodeId) -> StatFs;
        syncfs() -> ();
    }
}
