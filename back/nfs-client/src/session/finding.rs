//! Look-up of nodes by name.

use std::sync::Arc;

use tombolo_core::fs::{Entry, NameBuf, NodeId, PermissionCheck};
use tombolo_core::{Error, Permit, Result};
use tombolo_wire_nfs3::args::AccessBits;
use tombolo_wire_nfs3::{FileHandleBuf, PostOpAttr, Reply, Status, status};

use super::view::View;
use crate::calls::answered;
use crate::nodes::{CachedName, Node};

/// How often one look-up finds files that are gone at once before it is told so: a server may never say
/// anything else.
const LOOKS_MAX: u32 = 16;

impl View {
    /// What a name leads to, if that is known and to be believed: the name was seen, its directory has not
    /// changed since, and its attributes are fresh. None if the server is to be asked.
    pub(super) fn known_entry(&self, parent: NodeId, name: &NameBuf) -> Option<Result<Entry>> {
        let now = self.now();
        let dir = self.session.nodes.node(parent).ok()?;
        dir.believed(now)?;
        // Where the server checks permissions it does so for every name: the caller has been let in before.
        if self.session.checks == PermissionCheck::BackEnd
            && dir.allowed(&self.caller.identity, AccessBits::LOOKUP, now) != Some(AccessBits::LOOKUP)
        {
            return None;
        }
        match self.session.nodes.cached(&dir, name)? {
            CachedName::Nothing => Some(Err(Error::NotFound)),
            CachedName::Node(node) => match node.believed(now).filter(|_| !node.data.is_under_way()) {
                Some(attr) => Some(Ok(Entry { node: node.id, attr })),
                None => {
                    self.session.nodes.forget(&[(node.id, 1)]);
                    None
                }
            },
        }
    }

    /// LOOKUP.
    pub(super) async fn lookup(self, parent: NodeId, name: NameBuf) -> Result<Entry> {
        let dir = self.session.nodes.node(parent)?;
        self.find(&dir, &name).await.map(|(entry, _)| entry)
    }

    /// Finds a name; it counts a look-up. A file that is gone before its attributes are known gave its name
    /// to another one, so the name is looked up again.
    pub(super) async fn find(&self, dir: &Arc<Node>, name: &NameBuf) -> Result<(Entry, Arc<Node>)> {
        let mut looks = 1;
        loop {
            let (asked, changes) = (self.now(), dir.changes());
            let bytes = name.as_name().as_bytes();
            let reply = self.on(dir, |handle| self.session.nfs.lookup(&self.caller, handle, bytes)).await?;
            let found = match reply {
                Reply::Ok(found) => found,
                Reply::Failed(failed, dir_attributes) => {
                    self.absorb(dir, &dir_attributes, asked);
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
                // Concurrent with a change of the directory: the next look-up of the name asks the server.
                self.session.nodes.forget_name(dir.id, name);
            }
            match entered {
                Err(Error::Stale) if looks < LOOKS_MAX => looks += 1,
                entered => return entered,
            }
        }
    }

    /// A node that a reply named; it counts a look-up. If it is new it takes `permit`, or one of its own.
    pub(super) async fn enter(
        &self,
        permit: Option<Permit>,
        dir: &Arc<Node>,
        name: &NameBuf,
        handle: FileHandleBuf,
        told: &PostOpAttr,
        mut asked: std::time::Instant,
    ) -> Result<(Entry, Arc<Node>)> {
        let fattr = match told {
            Some(fattr) => *fattr,
            None => {
                asked = self.now();
                answered(self.session.nfs.getattr(&self.caller, handle).await?)?
            }
        };
        let node = self.session.nodes.enter(permit, handle, &fattr, asked, self.now())?;
        self.session.nodes.record(&node, dir, name, dir.epoch());
        let entry = self.entry(&node).await?;
        Ok((entry, node))
    }

    /// A node that was just looked up, with attributes that are not doubtful. On failure the look-up is taken
    /// back.
    pub(super) async fn entry(&self, node: &Arc<Node>) -> Result<Entry> {
        let attr = match node.is_doubtful() {
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
