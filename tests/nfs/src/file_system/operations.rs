//! The waist's operations. All are done when they return: the caller's thread waits for the server.

use tombolo_core::fs::{
    AccessMask, Attr, Change, Cookie, Create, Created, Device, DirPage, Entry, File, FileSystem, FileType,
    LockOwner, Made, Name, NewMode, NodeId, OpenFlags, Opened, PersistentHandles, Profile, ReadDone,
    RenameFlags, Renamed, SetAttr, StatFs, SyncWhat, Write, Written,
};
use tombolo_core::{Answer, Ctx, Error, Result};
use tombolo_mem::{Sink, Source};
use tombolo_wire_nfs3::FileHandleBuf;

use super::NfsFileSystem;
use super::view::View;
use crate::client::mode;

/// The unit of the counts that FSSTAT tells in bytes.
const BLOCK_BYTES: u32 = 4096;

impl NfsFileSystem {
    /// Runs an operation as the caller of this request.
    fn act<T>(&self, cx: &Ctx, operation: impl FnOnce(&View<'_>) -> Result<T>) -> Answer<T> {
        operation(&View::new(self, cx)).into()
    }
}

impl FileSystem for NfsFileSystem {
    fn profile(&self) -> Profile {
        self.profile
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        self.act(cx, |view| {
            let dir = view.handle(parent)?;
            let found = view.ask(|nfs| nfs.lookup(&dir, name.as_bytes()))?;
            view.entry(found.handle, found.attributes)
        })
    }

    fn forget(&self, _: &Ctx, look_ups: &[(NodeId, u64)]) {
        look_ups.iter().for_each(|&(node, count)| self.nodes.forget(node, count));
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        self.act(cx, |view| view.attr(&self.handle_through(node, file)?))
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        self.act(cx, |view| view.setattr(&self.handle_through(node, file)?, set))
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        self.act(cx, |view| {
            let handle = view.handle(node)?;
            let attr = view.attr(&handle)?;
            view.access(&handle, attr.file_type, mask)
        })
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        self.act(cx, |view| {
            let link = view.handle(node)?;
            view.ask(|nfs| nfs.readlink(&link)).map(|link| link.target)
        })
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        self.act(cx, |view| view.create(parent, name.as_bytes(), how))
    }

    fn create_unnamed(&self, _: &Ctx, _: NodeId, _: &Create) -> Answer<Created> {
        Answer::err(Error::NotSupported)
    }

    fn mkdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, new: NewMode) -> Answer<Made> {
        let (name, attributes) = (name.as_bytes(), mode(new.masked().bits()));
        self.act(cx, |view| view.make(parent, name, |nfs, dir| nfs.mkdir(dir, name, attributes)))
    }

    fn symlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, target: &[u8]) -> Answer<Made> {
        let (name, attributes) = (name.as_bytes(), mode(0o777));
        self.act(cx, |view| view.make(parent, name, |nfs, dir| nfs.symlink(dir, name, target, attributes)))
    }

    fn mknod(
        &self,
        cx: &Ctx,
        parent: NodeId,
        name: Name<'_>,
        file_type: FileType,
        new: NewMode,
        rdev: Device,
    ) -> Answer<Made> {
        self.act(cx, |view| view.mknod(parent, name.as_bytes(), file_type, new.masked(), rdev))
    }

    fn link(&self, cx: &Ctx, node: NodeId, parent: NodeId, name: Name<'_>) -> Answer<Made> {
        self.act(cx, |view| {
            let (file, dir) = (view.handle(node)?, view.handle(parent)?);
            let ok = view.ask(|nfs| nfs.link(&file, &dir, name.as_bytes()))?;
            Ok(Made { entry: view.entry(file, ok.attributes)?, dir: view.change(&ok.dir_wcc) })
        })
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.act(cx, |view| {
            let dir = view.handle(parent)?;
            view.ask(|nfs| nfs.remove(&dir, name.as_bytes())).map(|wcc| view.change(&wcc))
        })
    }

    fn rmdir(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        self.act(cx, |view| {
            let dir = view.handle(parent)?;
            view.ask(|nfs| nfs.rmdir(&dir, name.as_bytes())).map(|wcc| view.change(&wcc))
        })
    }

    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed> {
        if !flags.is_empty() {
            return Answer::err(Error::NotSupported);
        }
        self.act(cx, |view| {
            let (from_dir, to_dir) = (view.handle(from_parent)?, view.handle(to_parent)?);
            let ok = view.ask(|nfs| nfs.rename(&from_dir, from.as_bytes(), &to_dir, to.as_bytes()))?;
            Ok(Renamed { from_dir: view.change(&ok.from_dir), to_dir: view.change(&ok.to_dir) })
        })
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.act(cx, |view| view.open(node, flags))
    }

    fn release(&self, _: &Ctx, file: File) {
        self.openings.remove(file);
    }

    fn flush(&self, _: &Ctx, file: File, _: LockOwner) -> Answer<()> {
        self.openings.of(file).map(|_| ()).into()
    }

    fn fsync(&self, cx: &Ctx, file: File, _: SyncWhat) -> Answer<()> {
        self.act(cx, |view| view.sync(file))
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.act(cx, |view| view.read(file, offset, &into))
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        self.act(cx, |view| view.write(file, how, &from))
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        self.act(cx, |view| view.readdir(file, cookie, page))
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        self.act(cx, |view| {
            let handle = view.handle(node)?;
            let stat = view.ask(|nfs| nfs.fsstat(&handle))?;
            let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
            Ok(StatFs {
                block_size: BLOCK_BYTES,
                blocks: blocks(stat.total_bytes),
                blocks_free: blocks(stat.free_bytes),
                blocks_available: blocks(stat.available_bytes),
                files: stat.total_files,
                files_free: stat.free_files,
                name_max: self.profile.name_max,
            })
        })
    }

    /// Every file is committed by itself.
    fn syncfs(&self, _: &Ctx) -> Answer<()> {
        Answer::ok(())
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        Some(self)
    }
}

impl NfsFileSystem {
    /// The handle of a node, through its opening if there is one.
    fn handle_through(&self, node: NodeId, file: Option<File>) -> Result<FileHandleBuf> {
        match file {
            Some(file) if file.node == node => self.openings.of(file).map(|opening| opening.handle),
            Some(_) => Err(Error::BadOpen),
            None => self.nodes.handle(node),
        }
    }
}
