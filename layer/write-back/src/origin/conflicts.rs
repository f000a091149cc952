//! Conflicts: nodes that both this layer and another writer have changed. Of a file, the other writer's
//! version keeps the name, and the local one gets a conflict name.

use std::sync::Arc;

use tombolo_core::fs::{Attr, DirPage, File, Name, NameBuf, NodeId, OpenFlags, WeakAttr};
use tombolo_core::{Ctx, Error, Identity, Result};
use tombolo_mem::{Buffer, Sink};

use super::attributes::is_refusal;
use super::data::CHUNK_BYTES;
use super::looking::conflict_name;
use super::plan::{Chosen, Key};
use super::round::Round;
use crate::below::list;
use crate::data_file::DataFile;
use crate::extents::Extents;
use crate::sums::Blocks;
use crate::tree::{LOCAL_NODE_BIT, Layer, Node, Piece, Set, Target, Tree, is_hidden};

impl Round {
    /// Copies the local version of a file to a new local file with a conflict name, with the origin's data in
    /// ranges not written locally. `theirs` are the attributes at the origin; `None` if the file is gone.
    /// `met_in` is the directory in which the file was found; used only if no name of the file is known.
    pub(super) async fn keep_ours(
        &self,
        chosen: &Chosen,
        theirs: Option<Attr>,
        met_in: Option<NodeId>,
    ) -> Result<()> {
        let (dir, name) = self.name_of(chosen.id, met_in).await?;
        let generation = self.shared.tree().ids.next().ok_or(Error::NoSpace)?;
        let file = self.shared.files.file(generation);
        let needs_theirs =
            theirs.is_some() && chosen.pieces().iter().any(|piece| matches!(piece, Piece::Below(_)));
        let theirs_opened = if needs_theirs { self.open_to_read(chosen).await } else { Ok(None) };
        let opened = theirs_opened.inspect_err(|_| file.mark_for_removal())?;
        let copied = self.copy_ours(chosen, opened.as_ref(), &file).await;
        if let Some((open, cx)) = opened {
            self.release(&cx, open);
        }
        if let Err(error) = copied {
            file.mark_for_removal();
            return Err(error);
        }
        let set_aside =
            |tree: &mut Tree| set_aside(tree, chosen, theirs, &file, (dir, &name)).ok_or(Error::NoSpace);
        let ((), ticket) = self.shared.change(set_aside).inspect_err(|_| file.mark_for_removal())?;
        self.shared.control.tell(|state| state.conflicts += 1);
        self.put_off([chosen.id]);
        self.shared.journal.stable(ticket).await
    }

    /// Returns the directory in which a file was last found. For a file found by its handle alone, only the
    /// cache knows the directory.
    pub(super) async fn directory_of(&self, id: NodeId) -> Option<NodeId> {
        if let Some((dir, _)) = self.shared.tree().last_name_of(id) {
            return Some(dir);
        }
        let (below, cx) = (self.below(id).ok()?, self.cx(Identity::ROOT));
        let handles = self.shared.below.persistent_handles()?;
        let dir = handles.parent(&cx, below).resolve().await.ok()?.node;
        self.shared.below.forget(&cx, &[(dir, 1)]);
        Some(self.shared.tree().local_id(dir))
    }

    /// Returns a directory and a name for a file: a changed local name that it has, else the name by which it
    /// was last found. Otherwise the directory is `met_in`, with the file's name there, or the root; a name
    /// that is not found is made from the file's number.
    async fn name_of(&self, id: NodeId, met_in: Option<NodeId>) -> Result<Key> {
        let known = {
            let tree = self.shared.tree();
            tree.place_of(id).or_else(|| tree.last_name_of(id))
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let number = format!("file-{:x}", id.0);
        let number = Name::new(number.as_bytes()).map_err(Error::io)?.to_owned();
        let found = match met_in {
            Some(dir) => self.name_in(dir, id).await.map(|name| Some((dir, name))),
            None => Ok(None),
        };
        match found {
            Ok(Some((dir, name))) => Ok((dir, name.unwrap_or(number))),
            Ok(None) | Err(Error::Stale | Error::NotFound) => {
                tracing::warn!(
                    node = id.0,
                    "directory of the file unknown: its conflict copy is in the root"
                );
                Ok((NodeId::ROOT, number))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the name of a file in a directory at the origin.
    async fn name_in(&self, dir: NodeId, id: NodeId) -> Result<Option<NameBuf>> {
        let (fs, cx, wanted) = (&self.shared.below, self.cx(Identity::ROOT), self.below(id)?.0);
        let below = self.below(dir)?;
        let mut found = None;
        let is_unfound = |page: &DirPage| {
            let name = page.iter().find(|entry| entry.fileid == wanted).map(|entry| Name::new(entry.name));
            found = name.map(|name| name.map(Name::to_owned).map_err(Error::io));
            found.is_none()
        };
        list(&**fs, &cx, below, is_unfound).await?;
        found.transpose()
    }

    /// Adopts another writer's change of a node by `work`, counts a conflict, and leaves the node to the next
    /// round.
    pub(super) fn yield_to_another(&self, id: NodeId, work: impl FnOnce(&mut Tree)) -> Result<()> {
        self.shared.change(|tree| {
            work(tree);
            tree.epoch += 1;
            Ok(())
        })?;
        self.shared.control.tell(|state| state.conflicts += 1);
        self.put_off([id]);
        Ok(())
    }

    /// Opens the origin's file for reading, as the first user who may. Returns `None` if the file is gone, or
    /// its data are readable for none of them.
    async fn open_to_read(&self, chosen: &Chosen) -> Result<Option<(File, Ctx)>> {
        let owner = Identity { uid: chosen.attr.uid, gid: chosen.attr.gid, groups: None };
        let users = [Identity::ROOT, chosen.user.clone(), owner];
        let node = match self.below(chosen.id) {
            Err(Error::Stale) => return Ok(None),
            node => node?,
        };
        let fs = &self.shared.below;
        match self.by_first(&users, |cx| fs.open(cx, node, OpenFlags::READ)).await {
            Ok((opened, cx)) => Ok(Some((File { node, open: opened.open }, cx))),
            Err(Error::Stale | Error::NotFound) => Ok(None),
            Err(error) if is_refusal(&error) => {
                tracing::warn!(
                    node = chosen.id.0,
                    %error,
                    "the origin's data cannot be read: the conflict copy has zeroes where the file was not written locally"
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies the local version to `into`. Ranges not written locally are from `theirs`, or zero without it.
    async fn copy_ours(
        &self,
        chosen: &Chosen,
        theirs: Option<&(File, Ctx)>,
        into: &Arc<DataFile>,
    ) -> Result<()> {
        for piece in chosen.pieces() {
            let (range, from) = match &piece {
                Piece::Zeros(_) => continue,
                Piece::Here(file, range) => (range.clone(), Some(file.clone())),
                Piece::Below(range) => (range.clone(), None),
            };
            let mut start = range.start;
            while start < range.end {
                let len = CHUNK_BYTES.min(range.end - start) as usize;
                let (buffer, at) = (Buffer::new(len), start);
                let sink = buffer.sink(0..len);
                match (&from, theirs) {
                    (Some(file), _) => {
                        let file = file.clone();
                        self.shared.in_pool(move || file.read(at, sink)).await?;
                    }
                    (None, Some((open, cx))) => self.read_theirs(cx, *open, at, sink).await?,
                    // The file is gone at the origin, or cannot be read there.
                    (None, None) => {}
                }
                let (into, source) = (into.clone(), buffer.source(0..len));
                self.shared.in_pool(move || into.write(at, source)).await?;
                start += len as u64;
            }
        }
        Ok(())
    }

    async fn read_theirs(&self, cx: &Ctx, open: File, mut offset: u64, mut into: Sink) -> Result<()> {
        while !into.is_empty() {
            let done = self.shared.below.read(cx, open, offset, into.clone()).resolve().await?;
            into.advance(done.count);
            offset += done.count as u64;
            if done.count == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Restores a locally removed directory in which another writer has created entries.
pub(super) fn bring_back(tree: &mut Tree, target: Target, from: &Key, attr: &Attr) {
    tracing::warn!(directory = from.0.0, name = %from.1.as_name(), "another client has created entries in this removed directory: it is kept");
    if let Some(node) = tree.node_mut(target.node) {
        node.set_nothing();
        node.parent = None;
        (node.attr, node.version) = (Attr { fileid: target.node.0, ..*attr }, Some(WeakAttr::from(attr)));
    }
    let name = match is_hidden(&from.1) {
        true => Name::new(b"directory").ok().and_then(|name| conflict_name(tree, &name.to_owned())),
        false => Some(from.1.clone()),
    };
    let before = Some(target).filter(|_| !is_hidden(&from.1));
    if let Some(name) = name {
        tree.set_name(from.0, &name, before, Some(target), &Identity::ROOT);
    }
}

/// Drops the new local name of a node that another writer has moved or removed at the origin.
pub(super) fn give_up(tree: &mut Tree, id: NodeId, to: &Key) {
    tracing::warn!(directory = to.0.0, name = %to.1.as_name(), "another client has moved or removed the file to be renamed");
    tree.set_name(to.0, &to.1, None, None, &Identity::ROOT);
    if let Some(node) = tree.node_mut(id) {
        let gone = if node.is_directory() { node.attr.nlink } else { 1 };
        node.attr.nlink = node.attr.nlink.saturating_sub(gone);
    }
}

/// Adopts the other writer's version of a file, and adds the local one as a new file in `dir`, with the data
/// of `base`. Returns `None`, and changes nothing, if no numbers are left.
fn set_aside(
    tree: &mut Tree,
    chosen: &Chosen,
    theirs: Option<Attr>,
    base: &Arc<DataFile>,
    (dir, name): (NodeId, &NameBuf),
) -> Option<()> {
    let (mut old, number) = (tree.nodes.get(&chosen.id).cloned()?, tree.ids.next()?);
    let name = conflict_name(tree, name)?;
    tracing::warn!(directory = dir.0, name = %name.as_name(), "another client has changed this file at the origin: both versions are kept");
    let id = NodeId(LOCAL_NODE_BIT | number);
    let mut extents = Extents::default();
    let delta = extents.insert(0..chosen.attr.size);
    tree.record_write(base, (Blocks::of(base, &extents, &(0..chosen.attr.size)), delta), None);
    let mut layers = vec![Layer { file: base.clone(), extents, below_len: 0, is_frozen: true }];
    // Data written since the plan was made go to the new file.
    let sent = old.take_sent(chosen.layers.len());
    layers.extend(old.layers);
    let attr = Attr { nlink: 1, fileid: id.0, ..old.attr };
    let (set, xattrs) = (Set::MODE | Set::OWNER | Set::ATIME | Set::MTIME | Set::XATTRS, old.xattrs);
    let implied = set - Set::XATTRS;
    tree.add(id, Node { set, implied, xattrs, layers, ..Node::made(attr, old.user.clone()) });
    let target = Target { node: id, file_type: attr.file_type };
    tree.set_name(dir, &name, None, Some(target), &old.user);
    let node = tree.node_mut(chosen.id)?;
    node.set_nothing();
    node.version = theirs.as_ref().map(WeakAttr::from);
    node.attr = theirs.map_or(old.attr, |theirs| Attr { fileid: chosen.id.0, ..theirs });
    node.layers.clear();
    sent.into_iter().for_each(|layer| tree.drop_layer(layer));
    tree.epoch += 1;
    Some(())
}
