//! Look-up of nodes by name.

use std::sync::Arc;

use tombolo_core::fs::{Entry, NameBuf, NodeId, PermissionCheck};
use tombolo_core::{Error, Permit, Result};
use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::{FileHandleBuf, PostOpAttr, Reply, Status, status};

use super::view::View;
use crate::calls::answered;
use crate::nodes::{CachedName, FoundBy, Node};

/// Maximum number of attempts of a look-up that finds files already gone: a faulty server may reply so for
/// ever.
const LOOKS_MAX: u32 = 16;

impl View {
    /// Returns the target of a name from the cache, if the attributes of the directory and of the target are
    /// valid. `None` if the server must be queried.
    pub(super) fn known_entry(&self, parent: NodeId, name: &NameBuf) -> Option<Result<Entry>> {
        let now = self.now();
        let dir = self.session.nodes.node(parent).ok()?;
        dir.believed(now)?;
        // If the server checks permissions, the caller must have passed the check for this directory.
        if self.session.checks == PermissionCheck::BackEnd
            && dir.allowed(&self.caller.identity, AccessBits::LOOKUP, now) != Some(AccessBits::LOOKUP)
        {
            return None;
        }
        match self.session.nodes.cached(&dir, name)? {
            CachedName::Nothing => Some(Err(Error::NotFound)),
            CachedName::Node(node) => match node.believed(now).filter(|_| !node.data.has_unanswered_writes())
            {
                Some(attr) => Some(Ok(Entry { node: node.id, attr })),
                None => {
                    self.session.nodes.forget(&[(node.id, 1)]);
                    None
                }
            },
        }
    }

    pub(super) async fn lookup(self, parent: NodeId, name: NameBuf) -> Result<Entry> {
        let dir = self.session.nodes.node(parent)?;
        self.find(&dir, &name).await.map(|(entry, _)| entry)
    }

    /// Finds a name and counts a look-up. If the file is gone before its attributes are known, its name was
    /// replaced and is looked up again.
    pub(super) async fn find(&self, dir: &Arc<Node>, name: &NameBuf) -> Result<(Entry, Arc<Node>)> {
        let mut looks = 1;
        loop {
            let (asked, changes) = (self.now(), dir.changes());
            let bytes = name.as_name().as_bytes();
            let reply = self.on(dir, |handle| self.session.nfs.lookup(&self.caller, (handle, bytes))).await?;
            let found = match reply {
                Reply::Ok(found) => found,
                Reply::Failed(failed, dir_attributes) => {
                    self.absorb(dir, &dir_attributes, asked);
                    // Only the directory's attributes can later show that the absence has ended, so it is
                    // recorded only if the reply has them and the directory has not changed since the call.
                    if failed == Status::NoEnt && dir_attributes.is_some() && dir.changes() == changes {
                        self.session.nodes.record_absent(dir, name, dir.epoch());
                    }
                    return Err(status::from_status(failed));
                }
            };
            self.absorb(dir, &found.dir_attributes, asked);
            dir.grant(&self.caller.identity, AccessBits::LOOKUP, AccessBits::LOOKUP, asked);
            let entered = self.enter(None, dir, name, found.handle, &found.attributes, asked).await;
            if dir.changes() != changes {
                // The directory was changed concurrently: the next look-up queries the server.
                self.session.nodes.forget_name(dir.id, name);
            }
            match entered {
                Err(Error::Stale) if looks < LOOKS_MAX => looks += 1,
                entered => return entered,
            }
        }
    }

    /// Enters the node of a reply and counts a look-up. `attributes` are those of the reply, requested at
    /// `asked`; without any they are fetched. A new node takes `permit`, a place among the session's limited
    /// number of nodes, or reserves one.
    pub(super) async fn enter(
        &self,
        permit: Option<Permit>,
        dir: &Arc<Node>,
        name: &NameBuf,
        handle: FileHandleBuf,
        attributes: &PostOpAttr,
        mut asked: std::time::Instant,
    ) -> Result<(Entry, Arc<Node>)> {
        let fattr = match attributes {
            Some(fattr) => *fattr,
            None => {
                asked = self.now();
                answered(self.session.nfs.getattr(&self.caller, handle).await?)?
            }
        };
        let node = self.session.nodes.enter(FoundBy::LookUp(permit), handle, &fattr, asked, self.now())?;
        self.session.nodes.record(&node, dir, name, dir.epoch());
        let entry = self.fresh_entry(&node).await?;
        Ok((entry, node))
    }

    /// Returns the entry of a node just looked up, with valid attributes. On failure the look-up is undone.
    pub(super) async fn fresh_entry(&self, node: &Arc<Node>) -> Result<Entry> {
        let attr = match node.is_expired() {
            false => node.known(),
            true => match self.fetch(node).await {
                Ok(attr) => attr,
                Err(error) => {
                    self.session.nodes.forget(&[(node.id, 1)]);
                    return Err(error);
                }
            },
        };
        Ok(Entry { node: node.id, attr })
    }
}
