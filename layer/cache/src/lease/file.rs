//! The lease file at the origin, by the waist's operations.

use std::sync::Arc;

use tombolo_core::fs::{
    Attr, Client, Create, Exclusive, Export, File, FileSystem, Mode, Name, NewMode, NodeId, OpenFlags,
    PermissionCheck, PersistentHandle, RenameFlags, SetAttr, SetTime, SyncScope, Write,
};
use tombolo_core::{Ctx, Error, Identity, Result};
use tombolo_mem::{Region, Sink, Source};

use super::holder::{Holder, TEXT_BYTES_MAX};
use crate::origin::SESSION;

/// Root directory of the origin, through a session of its own.
pub(super) struct Root {
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
}

/// A file found or created, with one look-up, which is released on drop.
pub(super) struct Found<'a> {
    root: &'a Root,
    node: NodeId,
    pub handle: PersistentHandle,
    pub attr: Attr,
}

impl Drop for Found<'_> {
    fn drop(&mut self) {
        self.root.fs.forget(&self.root.cx, &[(self.node, 1)]);
    }
}

impl Root {
    pub(super) fn of(origin: &dyn Export, identity: Identity) -> Result<Self> {
        let client = Client { session: SESSION, label: "lease".into(), checks: PermissionCheck::BackEnd };
        let cx = Ctx { identity, ..Ctx::root(SESSION) };
        Ok(Self { fs: origin.attach(&client)?, cx })
    }

    pub(super) async fn find(&self, name: &[u8]) -> Result<Option<Found<'_>>> {
        match self.fs.lookup(&self.cx, NodeId::ROOT, valid(name)?).resolve().await {
            Ok(entry) => self.found(entry.node, entry.attr).await.map(Some),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a file with this text, synced. Fails with `Exists` if there is one of this name.
    pub(super) async fn make(&self, name: &[u8], text: &str) -> Result<Found<'_>> {
        let mode = NewMode::settled(Mode::new(0o644));
        let how = Create { mode, flags: OpenFlags::WRITE, exclusive: Exclusive::Yes };
        let created = self.fs.create(&self.cx, NodeId::ROOT, valid(name)?, &how).resolve().await?;
        let file = File { node: created.entry.node, open: created.open };
        let made = self.found(file.node, created.entry.attr).await;
        let written = self.write(file, text).await;
        self.fs.release(&self.cx, file);
        match written.and(made) {
            Err(error) => {
                self.remove(name).await;
                Err(error)
            }
            made => made,
        }
    }

    async fn write(&self, file: File, text: &str) -> Result<()> {
        let source = Source::from(text.as_bytes().to_vec());
        let written = self.fs.write(&self.cx, file, &Write::default(), source).resolve().await?;
        if written.count < text.len() {
            return Err(Error::NoSpace);
        }
        self.fs.fsync(&self.cx, file, SyncScope::All).resolve().await
    }

    /// Overwrites a file's text, padded to the former length, so that it mostly needs no more space.
    pub(super) async fn rewrite(&self, found: &Found<'_>, text: &str) -> Result<()> {
        let opened = self.fs.open(&self.cx, found.node, OpenFlags::WRITE).resolve().await?;
        let file = File { node: found.node, open: opened.open };
        let length = usize::try_from(found.attr.size).unwrap_or(0).min(TEXT_BYTES_MAX);
        let written = self.write(file, &format!("{text:<length$}")).await;
        self.fs.release(&self.cx, file);
        written
    }

    /// Sets a file's time of modification by the origin's clock, and returns the attributes.
    pub(super) async fn touch(&self, found: &Found<'_>) -> Result<Attr> {
        let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let (attr, _) = self.fs.setattr(&self.cx, found.node, None, &set).resolve().await?;
        Ok(attr)
    }

    pub(super) async fn holder(&self, found: &Found<'_>) -> Result<Holder> {
        let opened = self.fs.open(&self.cx, found.node, OpenFlags::READ).resolve().await?;
        let file = File { node: found.node, open: opened.open };
        let text = Region::heap(TEXT_BYTES_MAX);
        let read = self.fs.read(&self.cx, file, 0, Sink::from(&text)).resolve().await;
        self.fs.release(&self.cx, file);
        let mut bytes = vec![0; read?.count.min(TEXT_BYTES_MAX)];
        text.read_at(0, &mut bytes).map_err(Error::io)?;
        Ok(Holder::read(&bytes))
    }

    /// Renames file `from`, replacing file `to`.
    pub(super) async fn replace(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to, root) = (valid(from)?, valid(to)?, NodeId::ROOT);
        self.fs.rename(&self.cx, root, from, root, to, RenameFlags::empty()).resolve().await.map(drop)
    }

    /// Removes a file, ignoring a failure: the lease file becomes outdated, a temporary one is removed later.
    pub(super) async fn remove(&self, name: &[u8]) {
        if let Ok(name) = valid(name) {
            drop(self.fs.unlink(&self.cx, NodeId::ROOT, name).resolve().await);
        }
    }

    async fn found(&self, node: NodeId, attr: Attr) -> Result<Found<'_>> {
        let handle = match self.fs.persistent_handles() {
            Some(handles) => handles.handle_of(&self.cx, node).resolve().await,
            None => Err(Error::NotSupported),
        };
        let handle = handle.inspect_err(|_| self.fs.forget(&self.cx, &[(node, 1)]))?;
        Ok(Found { root: self, node, handle, attr })
    }
}

fn valid(name: &[u8]) -> Result<Name<'_>> {
    Name::new(name).map_err(|_| Error::InvalidArgument)
}
