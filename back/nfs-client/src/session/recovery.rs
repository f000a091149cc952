//! Recovery by path of nodes whose handles the server has lost.
//!
//! Neither a path that leads elsewhere by now nor a replaced server may turn one file into another
//! (`docs/semantics/nfs-mount.md`). Number and type must match. A regular file's number may have been reused
//! under the same name, so its size and time of modification must match too; its time of change need not, as
//! a rename or a new link changes that. Of other types, number and type suffice: their attributes are read
//! anew. The number of the file system is not compared, since it may change when the server restarts.

use std::sync::Arc;

use tombolo_core::Result;
use tombolo_core::fs::{FileType, NameBuf};
use tombolo_wire_nfs3::{Fattr3, FileHandleBuf, Reply, attr};

use super::view::View;
use crate::nodes::{DEPTH_MAX, Node};

impl View {
    /// Recovers a node whose handle `lost` is stale. Returns `true` if it has a new handle, also if another
    /// operation found it.
    pub(super) async fn recover(&self, node: &Arc<Node>, lost: FileHandleBuf) -> Result<bool> {
        let nodes = &self.session.nodes;
        if node.handle() != lost {
            return Ok(true);
        }
        let Some(path) = self.path(node) else { return Ok(false) };
        let Some(mut dir) = self.session.root.handle_again(&self.caller).await? else { return Ok(false) };
        if path.is_empty() {
            // The node is the root. If its handle is still valid, the call failed for another object, such as
            // the file of a repeated CREATE that was removed in between.
            return if dir == lost { Ok(false) } else { self.renew_root(node, dir).await };
        }
        let last = path.len() - 1;
        for (depth, (step, name)) in path.iter().enumerate() {
            let asked = self.now();
            let found = match self.session.nfs.lookup(&self.caller, (dir, name.as_name().as_bytes())).await? {
                Reply::Ok(found) => found,
                Reply::Failed(..) => {
                    self.forget_target(step, name);
                    return Ok(false);
                }
            };
            let fattr = match found.attributes {
                Some(fattr) => fattr,
                None => match self.session.nfs.getattr(&self.caller, found.handle).await? {
                    Reply::Ok(fattr) => fattr,
                    Reply::Failed(..) => return Ok(false),
                },
            };
            // The node may have been removed or moved meanwhile.
            let is_at_location = step.location().is_some_and(|location| location.name == *name);
            if is_at_location && is_same(step, &fattr) {
                nodes.rename_handle(step, found.handle);
                // A re-created directory may have the number of the old one, but has other attributes.
                self.absorb(step, &Some(fattr), asked);
            } else {
                // A replaced directory on the way does not matter: the node below it is compared itself.
                self.forget_target(step, name);
                if depth == last {
                    return Ok(false);
                }
            }
            dir = found.handle;
        }
        let recovered = node.handle() != lost;
        if recovered {
            tracing::info!(
                server = self.session.nfs.label(),
                fileid = node.fileid,
                "stale handle replaced: found by path"
            );
        }
        Ok(recovered)
    }

    /// Forgets the target of a name that the server does not confirm. The kernel, on a stale node, looks up
    /// the path again, and each name must then be queried.
    fn forget_target(&self, step: &Arc<Node>, name: &NameBuf) {
        if let Some(location) = step.location().filter(|location| location.name == *name) {
            self.session.nodes.forget_name(location.dir.id, name);
        }
        step.expire(self.now());
    }

    /// Gives the root its new handle, if that leads to the same directory; `false` if it does not.
    async fn renew_root(&self, node: &Arc<Node>, handle: FileHandleBuf) -> Result<bool> {
        let reply = self.session.nfs.getattr(&self.caller, handle).await?;
        let is_same = matches!(&reply, Reply::Ok(fattr) if is_same(node, fattr));
        if is_same {
            self.session.nodes.rename_handle(node, handle);
        }
        Ok(is_same)
    }

    /// Returns the steps from the root to a node with their names; `None` if a location is unknown, or after
    /// [`DEPTH_MAX`] steps.
    fn path(&self, node: &Arc<Node>) -> Option<Vec<(Arc<Node>, NameBuf)>> {
        let root = self.session.nodes.root();
        let mut path = Vec::new();
        let mut node = node.clone();
        while !Arc::ptr_eq(&node, root) {
            let location = node.location().filter(|_| path.len() < DEPTH_MAX)?;
            path.push((node, location.name));
            node = location.dir;
        }
        path.reverse();
        Some(path)
    }
}

fn is_same(node: &Node, fattr: &Fattr3) -> bool {
    let now = attr::attr(fattr);
    let same_number = node.fileid == now.fileid && node.file_type == now.file_type;
    let told = node.told();
    same_number && (now.file_type != FileType::Regular || (now.size, now.mtime) == (told.size, told.mtime))
}
