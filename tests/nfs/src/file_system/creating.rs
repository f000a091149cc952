//! Opening and making, in the words of a protocol that does not open.

use tombolo_core::fs::{
    AccessMask, Attr, Change, Create, Created, Device, Exclusive, FileType, Made, Mode, NodeId, OpenFlags,
    Opened, SetAttr,
};
use tombolo_core::{Error, Result};
use tombolo_wire_nfs3::args::{CreateHow, MknodWhat};
use tombolo_wire_nfs3::{CreateVerifier, FileHandleBuf, Reply, WccData, attr};

use super::view::View;
use crate::client::{New, Nfs, mode};

impl View<'_> {
    /// Opens a node: whether the caller may is asked with ACCESS, as RFC 1813 §3.3.4 has it.
    pub fn open(&self, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        let handle = self.handle(node)?;
        let attr = self.attr(&handle)?;
        let attr = self.may_open(&handle, attr, flags)?;
        Ok(Opened { open: self.fs.openings.add(node, handle, flags), attr: Some(attr) })
    }

    fn may_open(&self, handle: &FileHandleBuf, attr: Attr, flags: OpenFlags) -> Result<Attr> {
        let changes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        match attr.file_type {
            FileType::Directory if changes => return Err(Error::IsDirectory),
            FileType::Directory => {}
            _ if flags.contains(OpenFlags::DIRECTORY) => return Err(Error::NotDirectory),
            FileType::Symlink => return Err(Error::SymlinkLoop),
            _ => {}
        }
        let mut mask = AccessMask::empty();
        mask.set(AccessMask::READ, flags.contains(OpenFlags::READ));
        mask.set(AccessMask::WRITE, changes);
        mask.set(AccessMask::EXECUTE, flags.contains(OpenFlags::EXECUTE));
        self.access(handle, attr.file_type, mask)?;
        if !flags.contains(OpenFlags::TRUNCATE) {
            return Ok(attr);
        }
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        self.setattr(handle, &empty).map(|(attr, _)| attr)
    }

    /// Creates a file and opens it.
    pub fn create(&self, parent: NodeId, name: &[u8], how: &Create) -> Result<Created> {
        let dir = self.handle(parent)?;
        let mode = how.mode.masked();
        match how.exclusive {
            Exclusive::Yes => self.guarded(&dir, name, mode, how.flags),
            Exclusive::Verifier(verifier) => self.exclusive(&dir, name, mode, how.flags, verifier),
            Exclusive::No => loop {
                match self.guarded(&dir, name, mode, how.flags) {
                    Err(Error::Exists) => {}
                    result => return result,
                }
                match self.existing(&dir, name, how.flags) {
                    // Removed meanwhile.
                    Err(Error::NotFound | Error::Stale) => {}
                    result => return result,
                }
            },
        }
    }

    fn guarded(&self, dir: &FileHandleBuf, name: &[u8], bits: Mode, flags: OpenFlags) -> Result<Created> {
        let how = CreateHow::Guarded(mode(bits.bits()));
        let new = self.ask(|nfs| nfs.create(dir, name, how))?;
        self.created(dir, name, &new, flags)
    }

    /// A file whose attributes are where the server may keep the verifier: they are set afterwards (RFC 1813 §3.3.8).
    fn exclusive(
        &self,
        dir: &FileHandleBuf,
        name: &[u8],
        mode: Mode,
        flags: OpenFlags,
        verifier: [u8; 8],
    ) -> Result<Created> {
        let how = CreateHow::Exclusive(CreateVerifier(verifier));
        let new = self.ask(|nfs| nfs.create(dir, name, how))?;
        let mut created = self.created(dir, name, &new, flags)?;
        let handle = self.handle(created.entry.node)?;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        created.entry.attr = self.setattr(&handle, &set)?.0;
        Ok(created)
    }

    fn created(&self, dir: &FileHandleBuf, name: &[u8], new: &New, flags: OpenFlags) -> Result<Created> {
        let Made { entry, dir } = self.made(dir, name, new)?;
        let open = self.fs.openings.add(entry.node, self.handle(entry.node)?, flags);
        Ok(Created { entry, open, dir })
    }

    fn existing(&self, dir: &FileHandleBuf, name: &[u8], flags: OpenFlags) -> Result<Created> {
        let found = self.ask(|nfs| nfs.lookup(dir, name))?;
        let attr = self.attr_or_ask(found.attributes, &found.handle)?;
        if attr.file_type == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        let attr = self.may_open(&found.handle, attr, flags)?;
        let mut entry = self.entry(found.handle, found.attributes)?;
        entry.attr = attr;
        let open = self.fs.openings.add(entry.node, found.handle, flags);
        Ok(Created { entry, open, dir: Change::default() })
    }

    /// Makes something that is not opened.
    pub fn make(
        &self,
        parent: NodeId,
        name: &[u8],
        call: impl Fn(&Nfs, &FileHandleBuf) -> Reply<New, WccData>,
    ) -> Result<Made> {
        let dir = self.handle(parent)?;
        let new = self.ask(|nfs| call(nfs, &dir))?;
        self.made(&dir, name, &new)
    }

    fn made(&self, dir: &FileHandleBuf, name: &[u8], new: &New) -> Result<Made> {
        let handle = match new.handle {
            Some(handle) => handle,
            None => self.ask(|nfs| nfs.lookup(dir, name))?.handle,
        };
        Ok(Made { entry: self.entry(handle, new.attributes)?, dir: self.change(&new.dir_wcc) })
    }

    /// MKNOD, or what goes for it.
    pub fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        file_type: FileType,
        bits: Mode,
        rdev: Device,
    ) -> Result<Made> {
        let (attributes, device) = (mode(bits.bits()), attr::specdata3(rdev));
        let what = match file_type {
            FileType::Regular => {
                let how = CreateHow::Guarded(attributes);
                return self.make(parent, name, |nfs, dir| nfs.create(dir, name, how));
            }
            FileType::CharDevice => MknodWhat::CharDevice(attributes, device),
            FileType::BlockDevice => MknodWhat::BlockDevice(attributes, device),
            FileType::Fifo => MknodWhat::Fifo(attributes),
            FileType::Socket => MknodWhat::Socket(attributes),
            FileType::Directory | FileType::Symlink => MknodWhat::Other(attr::file_type3(file_type)),
        };
        self.make(parent, name, |nfs, dir| nfs.mknod(dir, name, what))
    }
}
