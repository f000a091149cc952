//! Opening and closing, which NFS version 3 lacks.

use std::sync::Arc;

use tombolo_core::fs::{
    AccessMask, Attr, Change, Create, Created, Exclusive, File, FileType, NameBuf, NodeId, OpenFlags, OpenId,
    Opened, PermissionCheck, SetAttr, SetTime,
};
use tombolo_core::{Error, Result};
use tombolo_wire_nfs3::CreateVerifier;
use tombolo_wire_nfs3::args::CreateHow;

use super::attributes::access_bits;
use super::making::with_mode;
use super::view::View;
use crate::data::{self, Server};
use crate::nodes::Node;

/// Maximum number of attempts at a name that others create and remove continuously.
const TRIES_MAX: usize = 100;

impl View {
    /// Opens a node and revalidates its attributes: an open sees everything closed before, on any client
    /// (close-to-open). If the server checks permissions, ACCESS returns the attributes too.
    pub(super) async fn open(self, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        let node = self.session.nodes.node(node)?;
        check_type(node.file_type, flags)?;
        self.settle(&node).await?;
        let (open, attr) = self.open_node(&node, flags).await?;
        Ok(Opened { open, attr: Some(attr) })
    }

    /// Opens a node for reading without a call: the server checks each READ and listing.
    pub(super) fn open_unasked(&self, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        let node = self.session.nodes.node(node)?;
        check_type(node.file_type, flags)?;
        let open = self.session.openings.add(self.session.openings.permit()?, &node, flags);
        Ok(Opened { open, attr: None })
    }

    /// Counts the opening first, so that a later removal keeps a name for the file; then waits for pending
    /// removals and queries the server.
    async fn open_node(&self, node: &Arc<Node>, flags: OpenFlags) -> Result<(OpenId, Attr)> {
        let open = self.session.openings.add(self.session.openings.permit()?, node, flags);
        let opened = async {
            if let Some(departed) = node.removal_ended() {
                data::unless_interrupted(self.session.interruption(&self.caller), departed).await?;
            }
            self.may_open(node, flags).await
        };
        let attr = opened.await.inspect_err(|_| self.release(File { node: node.id, open }))?;
        Ok((open, attr))
    }

    async fn may_open(&self, node: &Arc<Node>, flags: OpenFlags) -> Result<Attr> {
        let before = node.known();
        let bits = access_bits(node.file_type, mask(flags));
        let asked = self.now();
        let mut attr = None;
        if self.session.checks == PermissionCheck::BackEnd && !bits.is_empty() {
            if !self.ask_access(node, bits).await?.contains(bits) {
                return Err(Error::AccessDenied);
            }
            attr = node.fetched_since(asked);
        }
        let mut attr = match attr {
            Some(attr) => attr,
            None => self.fetch(node).await?,
        };
        if flags.contains(OpenFlags::TRUNCATE) {
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            attr = self.set(node, &empty).await?.0;
        }
        if (attr.mtime, attr.ctime, attr.size) != (before.mtime, before.ctime, before.size) {
            node.data.drop_read_ahead();
        }
        Ok(attr)
    }

    /// Creates and opens a file; unless the create is exclusive, opens an existing one.
    pub(super) async fn create(self, parent: NodeId, name: NameBuf, how: Create) -> Result<Created> {
        let dir = self.session.nodes.node(parent)?;
        let guarded = CreateHow::Guarded(with_mode(how.mode.masked()));
        match how.exclusive {
            Exclusive::Yes => self.create_new(&dir, &name, how).await,
            Exclusive::Verifier(verifier) => {
                // Times remain unchanged, so that the caller that chose the verifier can repeat the CREATE
                // until it sets them.
                let set = SetAttr { mode: Some(how.mode.masked()), ..SetAttr::default() };
                let exclusive = CreateHow::Exclusive(CreateVerifier(verifier));
                let created = self.create_as(&dir, &name, exclusive, how.flags).await?;
                self.finished(created, &set).await
            }
            Exclusive::No => {
                for _ in 0..TRIES_MAX {
                    if self.caller.interrupt.is_raised() {
                        return Err(Error::Interrupted);
                    }
                    match self.create_as(&dir, &name, guarded, how.flags).await {
                        Err(Error::Exists) => {}
                        result => return result,
                    }
                    match self.open_existing(&dir, &name, how.flags).await {
                        // The file was removed meanwhile.
                        Err(Error::NotFound | Error::Stale) => {}
                        result => return result,
                    }
                }
                Err(Error::Stale)
            }
        }
    }

    async fn create_as(
        &self,
        dir: &Arc<Node>,
        name: &NameBuf,
        how: CreateHow,
        flags: OpenFlags,
    ) -> Result<Created> {
        let permit = self.session.openings.permit()?;
        let bytes = name.as_name().as_bytes();
        let make = |handle| self.session.nfs.create(&self.caller, (handle, bytes), how);
        let (entry, node, dir) = self.made(dir, name, make).await?;
        let open = self.session.openings.add(permit, &node, flags);
        Ok(Created { entry, open, dir })
    }

    /// Creates a new file by EXCLUSIVE, whose repetition after a lost reply succeeds; or, if the server lacks
    /// EXCLUSIVE, by GUARDED, whose repetition fails.
    async fn create_new(&self, dir: &Arc<Node>, name: &NameBuf, how: Create) -> Result<Created> {
        let (mode, flags) = (how.mode.masked(), how.flags);
        if let Some(verifier) = self.session.verifiers.next() {
            let how = CreateHow::Exclusive(CreateVerifier(verifier));
            match self.create_as(dir, name, how, flags).await {
                Ok(created) => {
                    // The server may have stored the verifier in the times (RFC 1813 §3.3.8).
                    let (atime, mtime) = (Some(SetTime::Now), Some(SetTime::Now));
                    let set = SetAttr { mode: Some(mode), atime, mtime, ..SetAttr::default() };
                    return self.finished(created, &set).await;
                }
                Err(Error::NotSupported) => self.session.verifiers.set_unsupported(),
                Err(error) => return Err(error),
            }
        }
        self.create_as(dir, name, CreateHow::Guarded(with_mode(mode)), flags).await
    }

    /// Sets the attributes that EXCLUSIVE cannot carry. If that fails, undoes the opening and the look-up.
    async fn finished(&self, mut created: Created, set: &SetAttr) -> Result<Created> {
        let node = self.session.nodes.node(created.entry.node)?;
        let set = self.set(&node, set).await.inspect_err(|_| {
            self.release(File { node: node.id, open: created.open });
            self.session.nodes.forget(&[(node.id, 1)]);
        });
        created.entry.attr = set?.0;
        Ok(created)
    }

    async fn open_existing(&self, dir: &Arc<Node>, name: &NameBuf, flags: OpenFlags) -> Result<Created> {
        let (mut entry, node) = self.find(dir, name).await?;
        let opened = async {
            if node.file_type == FileType::Directory {
                return Err(Error::IsDirectory);
            }
            check_type(node.file_type, flags)?;
            self.settle(&node).await?;
            self.open_node(&node, flags).await
        };
        let opened = opened.await.inspect_err(|_| self.session.nodes.forget(&[(node.id, 1)]));
        let (open, attr) = opened?;
        entry.attr = attr;
        Ok(Created { entry, open, dir: Change::default() })
    }

    /// Ends an opening: discards its read-ahead and, if it was the node's last, flushes data in the
    /// background. The last close of a file unlinked while open removes it at the server.
    pub(super) fn release(&self, file: File) {
        let Some((opening, was_last)) = self.session.openings.end(file) else { return };
        opening.read_ahead.stop();
        let node = opening.node.clone();
        if !was_last {
            return;
        }
        let view = self.detached();
        if node.is_silly() {
            view.remove_silly_in_background(node);
        } else if node.data.is_dirty() {
            view.background(|view| async move { view.commit_in_background(&node).await });
        } else {
            self.session.nodes.let_go(&node);
        }
    }
}

fn check_type(file_type: FileType, flags: OpenFlags) -> Result<()> {
    match file_type {
        FileType::Directory if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) => {
            Err(Error::IsDirectory)
        }
        FileType::Directory => Ok(()),
        _ if flags.contains(OpenFlags::DIRECTORY) => Err(Error::NotDirectory),
        FileType::Symlink => Err(Error::SymlinkLoop),
        _ => Ok(()),
    }
}

fn mask(flags: OpenFlags) -> AccessMask {
    let mut mask = AccessMask::empty();
    // Execution does not require read permission.
    mask.set(AccessMask::READ, flags.contains(OpenFlags::READ) && !flags.contains(OpenFlags::EXECUTE));
    mask.set(AccessMask::WRITE, flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE));
    mask.set(AccessMask::EXECUTE, flags.contains(OpenFlags::EXECUTE));
    mask
}
