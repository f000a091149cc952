//! A session as one caller sees it.

use std::thread::sleep;
use std::time::Duration;

use tombolo_core::fs::{AccessMask, Attr, Change, Entry, FileType, NodeId, SetAttr};
use tombolo_core::{Ctx, Error, Result, Want};
use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf, Reply, Status, WccData, attr, status};

use super::NfsFileSystem;
use crate::client::{Caller, Nfs};

/// How long to wait after JUKEBOX.
const LATER: Duration = Duration::from_millis(5);

/// The session, and the caller's client.
pub struct View<'a> {
    pub fs: &'a NfsFileSystem,
    pub nfs: Nfs,
    wants_changes: bool,
}

/// A reply as the waist's result.
pub fn answered<T, F>(reply: Reply<T, F>) -> Result<T> {
    match reply {
        Reply::Ok(results) => Ok(results),
        Reply::Failed(status, _) => Err(status::from_status(status)),
    }
}

impl<'a> View<'a> {
    /// What the caller of this request sees.
    pub fn new(fs: &'a NfsFileSystem, cx: &Ctx) -> Self {
        let nfs = fs.nfs.as_caller(Caller::from(&cx.identity));
        Self { fs, nfs, wants_changes: cx.want.contains(Want::CHANGE_ATTRS) }
    }

    /// Asks until the server has time for it.
    pub fn ask<T, F>(&self, call: impl Fn(&Nfs) -> Reply<T, F>) -> Result<T> {
        loop {
            match call(&self.nfs) {
                Reply::Failed(Status::Jukebox, _) => sleep(LATER),
                reply => return answered(reply),
            }
        }
    }

    /// The handle of a node.
    pub fn handle(&self, node: NodeId) -> Result<FileHandleBuf> {
        self.fs.nodes.handle(node)
    }

    /// Attributes.
    pub fn attr(&self, handle: &FileHandleBuf) -> Result<Attr> {
        self.ask(|nfs| nfs.getattr(handle)).map(|fattr| attr::attr(&fattr))
    }

    /// Attributes that came along, or else are asked for.
    pub fn attr_or_ask(&self, told: Option<Fattr3>, handle: &FileHandleBuf) -> Result<Attr> {
        told.map_or_else(|| self.attr(handle), |fattr| Ok(attr::attr(&fattr)))
    }

    /// An entry, counted as a look-up.
    pub fn entry(&self, handle: FileHandleBuf, told: Option<Fattr3>) -> Result<Entry> {
        let attr = self.attr_or_ask(told, &handle)?;
        Ok(Entry { node: self.fs.nodes.enter(handle), attr })
    }

    /// The change's attributes, if wanted.
    pub fn change(&self, wcc: &WccData) -> Change {
        if self.wants_changes { attr::change(wcc) } else { Change::default() }
    }

    /// SETATTR.
    pub fn setattr(&self, handle: &FileHandleBuf, set: &SetAttr) -> Result<(Attr, Change)> {
        let (attributes, guard) = attr::sattr3(set);
        let wcc = self.ask(|nfs| nfs.setattr(handle, attributes, guard))?;
        Ok((self.attr_or_ask(wcc.after, handle)?, self.change(&wcc)))
    }

    /// ACCESS, all or nothing.
    pub fn access(&self, handle: &FileHandleBuf, file_type: FileType, mask: AccessMask) -> Result<()> {
        let bits = access_bits(file_type, mask);
        if bits.is_empty() {
            return Ok(());
        }
        let ok = self.ask(|nfs| nfs.access(handle, bits))?;
        if ok.access.contains(bits) { Ok(()) } else { Err(Error::AccessDenied) }
    }
}

fn access_bits(file_type: FileType, mask: AccessMask) -> AccessBits {
    let directory = file_type == FileType::Directory;
    let mut bits = AccessBits::empty();
    bits.set(AccessBits::READ, mask.contains(AccessMask::READ));
    bits.set(AccessBits::MODIFY | AccessBits::EXTEND, mask.contains(AccessMask::WRITE));
    bits.set(AccessBits::DELETE, directory && mask.contains(AccessMask::WRITE));
    bits.set(
        if directory { AccessBits::LOOKUP } else { AccessBits::EXECUTE },
        mask.contains(AccessMask::EXECUTE),
    );
    bits
}
