//! The directory of disks as a file system of the waist.

use std::sync::Arc;

use tombolo_core::block::Range;
use tombolo_core::fs::{
    AccessMask, AllocateMode, Attr, Change, Cookie, Create, Created, DirEntry, DirPage, Entry, Exclusive,
    File, FileSystem, FileType, LockOwner, NAME_MAX, Name, NodeId, OpenFlags, OpenId, Opened,
    PermissionCheck, Profile, Ranges, ReadDone, SetAttr, StatFs, SyncScope, Whence, Write, Written,
};
use tombolo_core::{Answer, Ctx, Error, Result, Want, or_answer};
use tombolo_mem::{Sink, Source};

use crate::file::DiskFile;
use crate::files::Files;

/// A session, without state of its own: the number of an opening is that of its node.
pub(crate) struct Session(pub(crate) Arc<Files>);

impl Session {
    fn attr(&self, node: NodeId) -> Result<Attr> {
        self.0.attr(node).ok_or(Error::Stale)
    }

    fn entry(&self, index: usize) -> Result<Entry> {
        let node = Files::node_of(index);
        Ok(Entry { node, attr: self.attr(node)? })
    }

    fn find(&self, parent: NodeId, name: Name<'_>) -> Result<Entry> {
        if parent != NodeId::ROOT {
            return Err(Error::NotDirectory);
        }
        let place = self.0.files.iter().position(|(name_of_file, _)| name_of_file.as_name() == name);
        self.entry(place.ok_or(Error::NotFound)?)
    }

    /// Returns the file of an opening; fails for the directory and for unknown openings.
    fn opened(&self, file: File) -> Result<&Arc<DiskFile>> {
        match self.0.file(file.node) {
            Some(disk) if file.open.0 == file.node.0 => Ok(disk),
            _ if file.node == NodeId::ROOT => Err(Error::IsDirectory),
            _ => Err(Error::BadOpen),
        }
    }

    /// Refuses a change of names: `NotPermitted`.
    fn refused<T>(&self, _: &Ctx, _call: impl FnOnce(&Self, &Ctx) -> Answer<T>) -> Answer<T> {
        Answer::err(Error::NotPermitted)
    }

    fn change(&self, cx: &Ctx, node: NodeId) -> Change {
        let wanted = cx.want.contains(Want::CHANGE_ATTRS);
        let attr = wanted.then(|| self.0.attr(node)).flatten();
        Change { before: attr.as_ref().map(Into::into), after: attr }
    }

    fn open_node(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        let attr = self.attr(node)?;
        match self.0.file(node) {
            Some(_) if flags.contains(OpenFlags::DIRECTORY) => return Err(Error::NotDirectory),
            Some(file) if flags.contains(OpenFlags::WRITE) && file.disk().profile().read_only => {
                return Err(Error::ReadOnly);
            }
            Some(_) if flags.contains(OpenFlags::TRUNCATE) => return Err(Error::NotPermitted),
            None if flags.contains(OpenFlags::WRITE) => return Err(Error::IsDirectory),
            _ => {}
        }
        let wanted = cx.want.contains(Want::OPEN_ATTRS);
        Ok(Opened { open: OpenId(node.0), attr: wanted.then_some(attr) })
    }

    /// Lists `.` and `..`, with cookies 1 and 2, and then the files.
    fn list(&self, cookie: Cookie, page: &mut DirPage) -> Result<()> {
        let mut place = usize::try_from(cookie.0).map_err(|_| Error::BadCookie)?;
        for name in [&b"."[..], b".."].into_iter().skip(place) {
            place += 1;
            let entry = DirEntry {
                name,
                fileid: NodeId::ROOT.0,
                file_type: Some(FileType::Directory),
                cookie: Cookie(place as u64),
                entry: None,
            };
            if !page.push(entry) {
                return Ok(());
            }
        }
        for (index, (name, _)) in self.0.files.iter().enumerate().skip(place - 2) {
            let entry = self.entry(index)?;
            let pushed = page.push(DirEntry {
                name: name.as_name().as_bytes(),
                fileid: entry.attr.fileid,
                file_type: Some(FileType::Regular),
                cookie: Cookie(index as u64 + 3),
                entry: page.wants_entries().then_some(&entry),
            });
            if !pushed {
                return Ok(());
            }
        }
        page.set_end();
        Ok(())
    }
}

impl FileSystem for Session {
    tombolo_core::forward!(with self.refused; create_unnamed mkdir symlink mknod link unlink rmdir rename);

    fn profile(&self) -> Profile {
        Profile {
            permission_check: PermissionCheck::Caller,
            read_only: self.0.files.iter().all(|(_, file)| file.disk().profile().read_only),
            name_max: NAME_MAX as u32,
            file_size_max: i64::MAX.cast_unsigned(),
            time_granularity_ns: 1,
            writes_by_owner: false,
        }
    }

    fn lookup(&self, _: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        Answer::Done(self.find(parent, name))
    }

    fn forget(&self, _: &Ctx, _: &[(NodeId, u64)]) {}

    fn getattr(&self, _: &Ctx, node: NodeId, _: Option<File>) -> Answer<Attr> {
        Answer::Done(self.attr(node))
    }

    /// Accepts a request that sets nothing, or only the size, to its present value; refuses all others.
    fn setattr(&self, cx: &Ctx, node: NodeId, _: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let attr = or_answer!(self.attr(node));
        let same = SetAttr { size: Some(attr.size), ..SetAttr::default() };
        if *set == same || *set == SetAttr::default() {
            return Answer::ok((attr, self.change(cx, node)));
        }
        Answer::err(Error::NotPermitted)
    }

    fn access(&self, _: &Ctx, node: NodeId, _: AccessMask) -> Answer<()> {
        Answer::Done(self.attr(node).map(drop))
    }

    fn readlink(&self, _: &Ctx, _: NodeId) -> Answer<Vec<u8>> {
        Answer::err(Error::InvalidArgument)
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        let entry = match self.find(parent, name) {
            Ok(_) if how.exclusive != Exclusive::No => return Answer::err(Error::Exists),
            Ok(entry) => entry,
            Err(_) => return Answer::err(Error::NotPermitted),
        };
        let opened = self.open_node(cx, entry.node, how.flags);
        Answer::Done(opened.map(|opened| Created { entry, open: opened.open, dir: self.change(cx, parent) }))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        Answer::Done(self.open_node(cx, node, flags))
    }

    fn release(&self, _: &Ctx, _: File) {}

    fn flush(&self, _: &Ctx, _: File, _: LockOwner) -> Answer<()> {
        Answer::ok(())
    }

    fn fsync(&self, cx: &Ctx, file: File, _: SyncScope) -> Answer<()> {
        match self.opened(file) {
            Ok(disk) => disk.flush(cx),
            Err(Error::IsDirectory) => Answer::ok(()),
            Err(error) => Answer::err(error),
        }
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        let disk = or_answer!(self.opened(file));
        disk.read(cx, offset, into)
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        let (change, stability) = (self.change(cx, file.node), how.stability);
        match self.opened(file) {
            Ok(disk) => disk.write(cx, how.offset, stability, from).map(move |count| Written {
                count,
                stability,
                file: change,
            }),
            Err(error) => Answer::err(error),
        }
    }

    fn readdir(&self, _: &Ctx, file: File, cookie: Cookie, mut page: DirPage) -> Answer<DirPage> {
        if file.node != NodeId::ROOT {
            return Answer::err(Error::NotDirectory);
        }
        Answer::Done(self.list(cookie, &mut page).map(|()| page))
    }

    fn statfs(&self, _: &Ctx, _: NodeId) -> Answer<StatFs> {
        let bytes: u64 = self.0.files.iter().map(|(_, file)| file.size_bytes()).sum();
        let files = self.0.files.len() as u64;
        Answer::ok(StatFs {
            block_size: 4096,
            blocks: bytes.div_ceil(4096),
            files,
            name_max: NAME_MAX as u32,
            ..StatFs::default()
        })
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        let (files, cx) = (self.0.clone(), cx.clone());
        Answer::later(async move {
            for (_, file) in &files.files {
                file.flush(&cx).resolve().await?;
            }
            Ok(())
        })
    }

    fn ranges(&self) -> Option<&dyn Ranges> {
        Some(self)
    }
}

impl Ranges for Session {
    fn allocate(&self, cx: &Ctx, file: File, offset: u64, len: u64, mode: AllocateMode) -> Answer<()> {
        let disk = or_answer!(self.opened(file));
        if disk.disk().profile().read_only {
            return Answer::err(Error::ReadOnly);
        }
        let size_bytes = disk.size_bytes();
        let range = Range { offset, len_bytes: len };
        let keeps_size = mode.contains(AllocateMode::KEEP_SIZE);
        if !keeps_size && range.checked_end().is_none_or(|end| end > size_bytes) {
            return Answer::err(Error::FileTooLarge);
        }
        match mode.difference(AllocateMode::KEEP_SIZE) {
            _ if offset >= size_bytes => Answer::ok(()),
            AllocateMode::PUNCH_HOLE => disk.zero(cx, range, true),
            AllocateMode::ZERO_RANGE => disk.zero(cx, range, false),
            // A disk cannot reserve space: a plain allocation succeeds without effect.
            other if other.is_empty() => Answer::ok(()),
            _ => Answer::err(Error::NotSupported),
        }
    }

    fn seek(&self, cx: &Ctx, file: File, offset: u64, whence: Whence) -> Answer<u64> {
        let disk = or_answer!(self.opened(file));
        disk.seek(cx, offset, whence)
    }

    fn copy(&self, _: &Ctx, _: File, _: u64, _: File, _: u64, _: u64) -> Answer<u64> {
        Answer::err(Error::NotSupported)
    }
}
