//! Removal and renaming of names. A file that loses its only name while open in this session gets a temporary
//! name until its last opening ends (silly rename), as the server knows no openings and would delete the
//! data.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_core::fs::{Change, FileType, Name, NameBuf, NodeId, RenameFlags, Renamed};
use tombolo_core::{Error, Result};
use tombolo_wire_nfs3::{Reply, status};

use super::view::View;
use crate::calls::answered_or;
use crate::data::{self, Server};
use crate::nodes::{Location, Node, PendingRemoval};

/// Maximum number of silly names tried. Conflicts are rare: a silly name contains the file's number.
const TRIES_MAX: usize = 100;

impl View {
    /// Removes a name; an open file gets a silly name instead if this is its only one.
    pub(super) async fn unlink(self, parent: NodeId, name: NameBuf) -> Result<Change> {
        let dir = self.session.nodes.node(parent)?;
        let removal = self.removal(&dir, &name).await?;
        if let Some(node) = removal.as_ref().map(PendingRemoval::node) {
            if self.must_keep_a_name(node).await? {
                return self.rename_silly(&dir, &name, node).await;
            }
            // Pending WRITEs are awaited: one executed after the REMOVE would find no file and fail.
            self.settle(node).await?;
            if node.data.is_dirty() && node.believed(self.now()).is_none() {
                // The link count decides if the data are dropped below: another name may still lead to them.
                self.ask_for_links(node).await?;
            }
        }
        let change = self.remove(&dir, &name, false).await?;
        // A concurrent change of the directory forgets the name, but not the node found.
        let (seen, found) =
            (self.session.nodes.removed(dir.id, &name), removal.as_ref().map(PendingRemoval::node));
        if let Some(node) = seen.as_ref().or(found)
            && node.known().nlink <= 1
            && !node.is_open()
        {
            self.drop_data(node).await;
        }
        // The node may have other names: their number must be queried.
        self.session.nodes.lost_a_name(seen.iter().chain(found), self.now());
        Ok(change)
    }

    /// Discards the unstable written data of a file that has no name any more. If the caller is interrupted,
    /// the work continues in the background.
    async fn drop_data(&self, node: &Arc<Node>) {
        if !node.data.is_dirty() {
            return;
        }
        match data::pause(&self.session, node, &self.caller).resolve().await {
            Ok(paused) => paused.truncated(0),
            Err(_) => {
                let (view, node) = (self.detached(), node.clone());
                view.background(|view| async move {
                    if let Ok(paused) = data::pause(&view.session, &node, &view.caller).resolve().await {
                        paused.truncated(0);
                    }
                    view.session.nodes.let_go(&node);
                });
            }
        }
    }

    async fn remove(&self, dir: &Arc<Node>, name: &NameBuf, is_directory: bool) -> Result<Change> {
        let asked = self.now();
        dir.changing();
        let bytes = name.as_name().as_bytes();
        let call = |handle| self.session.nfs.remove(&self.caller, (handle, bytes), is_directory);
        let wcc = answered_or(self.on(dir, call).await?, |wcc| {
            self.absorb_change(dir, &wcc, asked);
            // The failure may be due to a cached target that is wrong.
            self.session.nodes.forget_name(dir.id, name);
        })?;
        Ok(self.absorb_change(dir, &wcc, asked))
    }

    /// Removes a directory, after pending silly removals in it.
    pub(super) async fn rmdir(self, parent: NodeId, name: NameBuf) -> Result<Change> {
        let dir = self.session.nodes.node(parent)?;
        let removed = self.session.nodes.at(dir.id, &name);
        if let Some(emptied) = removed.and_then(|removed| self.session.silly_removals.end(removed.id)) {
            data::unless_interrupted(self.session.interruption(&self.caller), emptied).await?;
        }
        let change = self.remove(&dir, &name, true).await?;
        if let Some(node) = self.session.nodes.removed(dir.id, &name) {
            node.lost_a_name(self.now());
        }
        Ok(change)
    }

    /// Renames a name. An open file whose only name would be replaced gets a silly name.
    pub(super) async fn rename(
        self,
        (from_parent, from): (NodeId, NameBuf),
        (to_parent, to): (NodeId, NameBuf),
        flags: RenameFlags,
    ) -> Result<Renamed> {
        if !flags.is_empty() {
            return Err(Error::NotSupported);
        }
        let nodes = &self.session.nodes;
        let (from_dir, to_dir) = (nodes.node(from_parent)?, nodes.node(to_parent)?);
        let is_itself = from_dir.id == to_dir.id && from == to;
        let removal = if is_itself { None } else { self.removal(&to_dir, &to).await? };
        let mut moved_away = false;
        let replaces_nothing = removal.is_none() && nodes.is_absent(&to_dir, &to);
        if let Some(node) = removal.as_ref().map(PendingRemoval::node)
            && self.must_keep_a_name(node).await?
            && nodes.at(from_dir.id, &from).is_none_or(|moved| moved.id != node.id)
        {
            match self.rename_silly(&to_dir, &to, node).await {
                Ok(_) => moved_away = true,
                // The name is gone and needs no silly name.
                Err(Error::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        let renamed = match self.move_name((&from_dir, &from), (&to_dir, &to)).await {
            Ok(renamed) => renamed,
            Err(error) => {
                match removal.filter(|_| moved_away) {
                    Some(removal) if matches!(error, Error::Interrupted) => {
                        self.detached().background(|view| async move {
                            view.give_back(&to_dir, &to, removal.node()).await;
                        });
                    }
                    Some(removal) => self.give_back(&to_dir, &to, removal.node()).await,
                    None => {}
                }
                return Err(error);
            }
        };
        let replaced = (nodes.at(to_dir.id, &to), removal.as_ref().map(PendingRemoval::node));
        if !replaces_nothing {
            nodes.lost_a_name(replaced.0.iter().chain(replaced.1), self.now());
        }
        match nodes.removed(from_dir.id, &from) {
            Some(moved) => {
                nodes.record(&moved, &to_dir, &to, to_dir.epoch());
                moved.expire(self.now());
            }
            // The moved node is unknown, but the cached target of the new name is invalid.
            None => nodes.forget_name(to_dir.id, &to),
        }
        Ok(renamed)
    }

    async fn move_name(
        &self,
        (from_dir, from): (&Arc<Node>, &NameBuf),
        (to_dir, to): (&Arc<Node>, &NameBuf),
    ) -> Result<Renamed> {
        let asked = self.now();
        from_dir.changing();
        to_dir.changing();
        let (old, new) = (from.as_name().as_bytes(), to.as_name().as_bytes());
        let call = |from_dir, to_dir| self.session.nfs.rename(&self.caller, (from_dir, old), (to_dir, new));
        let (wcc, failed) = match self.on_both((from_dir, to_dir), call).await? {
            Reply::Ok(wcc) => (wcc, None),
            Reply::Failed(failed, wcc) => (wcc, Some(failed)),
        };
        let renamed = Renamed {
            from_dir: self.absorb_change(from_dir, &wcc.from_dir, asked),
            to_dir: self.absorb_change(to_dir, &wcc.to_dir, asked),
        };
        let Some(failed) = failed else { return Ok(renamed) };
        self.session.nodes.forget_name(from_dir.id, from);
        self.session.nodes.forget_name(to_dir.id, to);
        Err(status::from_status(failed))
    }

    /// Registers the removal of the name's target. If the target is unknown, queries the server for it;
    /// returns `None` without a query if no file is open, because only open files need a silly name.
    async fn removal(&self, dir: &Arc<Node>, name: &NameBuf) -> Result<Option<PendingRemoval>> {
        if let Some(node) = self.session.nodes.at(dir.id, name) {
            return Ok(Some(PendingRemoval::begin(node)));
        }
        if !self.session.openings.any_file() {
            return Ok(None);
        }
        Ok(self.at(dir, name).await?.map(PendingRemoval::begin))
    }

    /// Queries the server for the target of a name, without a look-up that counts.
    async fn at(&self, dir: &Arc<Node>, name: &NameBuf) -> Result<Option<Arc<Node>>> {
        match self.find(dir, name).await {
            Ok((entry, node)) => {
                self.session.nodes.forget(&[(entry.node, 1)]);
                Ok(Some(node))
            }
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns `true` if the file is open in this session and has no other name. Since other clients remove
    /// names too, a cached link count above 1 is revalidated.
    async fn must_keep_a_name(&self, node: &Arc<Node>) -> Result<bool> {
        if !is_kept(node) {
            return Ok(false);
        }
        Ok(node.known().nlink <= 1 || self.ask_for_links(node).await? == Some(1))
    }

    /// Queries the number of names; `None` for a file that is gone.
    async fn ask_for_links(&self, node: &Arc<Node>) -> Result<Option<u32>> {
        match self.fetch(node).await {
            Ok(attr) => Ok(Some(attr.nlink)),
            Err(Error::Stale | Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn rename_silly(&self, dir: &Arc<Node>, name: &NameBuf, node: &Arc<Node>) -> Result<Change> {
        self.settle(node).await?;
        for _ in 0..TRIES_MAX {
            let number = self.session.silly.fetch_add(1, Ordering::Relaxed);
            let silly = format!(".nfs{:016x}{number:08x}", node.fileid);
            let silly = Name::new(silly.as_bytes())?.to_owned();
            if self.at(dir, &silly).await?.is_some() {
                continue;
            }
            let change = match self.move_name((dir, name), (dir, &silly)).await {
                Ok(renamed) => renamed.from_dir,
                // The server renamed the file before a restart and executed the repeated call again.
                Err(Error::NotFound) if self.leads_to(dir, &silly, node).await? => Change::default(),
                Err(Error::Interrupted) => {
                    self.undo_unattended(dir, name, silly, node);
                    return Err(Error::Interrupted);
                }
                Err(error) => return Err(error),
            };
            self.session.nodes.removed(dir.id, name);
            self.session.nodes.record(node, dir, &silly, dir.epoch());
            node.make_silly(Location { dir: dir.clone(), name: silly });
            if !node.is_open() {
                // The file's last close happened meanwhile and did not remove the silly name.
                self.detached().remove_silly_in_background(node.clone());
            }
            return Ok(change);
        }
        Err(Error::Busy)
    }

    /// Restores the name of a file after its silly rename was interrupted. If the server executes the rename
    /// after the query for the silly name, the file keeps that name.
    fn undo_unattended(&self, dir: &Arc<Node>, name: &NameBuf, silly: NameBuf, node: &Arc<Node>) {
        let (dir, name, removal) = (dir.clone(), name.clone(), PendingRemoval::begin(node.clone()));
        self.detached().background(|view| async move {
            let node = removal.node();
            if let Ok(true) = view.leads_to(&dir, &silly, node).await {
                node.make_silly(Location { dir: dir.clone(), name: silly });
                view.give_back(&dir, &name, node).await;
            }
        });
    }

    /// Restores the name of a file that was not removed after all, unless another file has it now.
    async fn give_back(&self, dir: &Arc<Node>, name: &NameBuf, node: &Arc<Node>) {
        let Some(location) = node.location().filter(|_| node.is_silly()) else { return };
        // A concurrent close must not remove the silly name.
        node.make_plain();
        let given = match self.at(dir, name).await {
            Ok(None) => self.move_name((dir, &location.name), (dir, name)).await.map(drop),
            Ok(Some(_)) => {
                node.make_silly(location);
                if !node.is_open() {
                    self.remove_silly(node).await;
                }
                return;
            }
            Err(error) => Err(error),
        };
        match given {
            Ok(()) => {
                self.session.nodes.removed(dir.id, &location.name);
                self.session.nodes.record(node, dir, name, dir.epoch());
            }
            Err(Error::NotFound) if matches!(self.leads_to(dir, name, node).await, Ok(true)) => {}
            Err(error) => {
                let (server, silly) = (self.session.nfs.label(), location.name.as_name());
                tracing::warn!(server, name = %name.as_name(), %silly, %error, "cannot restore the name of a file");
            }
        }
    }

    async fn leads_to(&self, dir: &Arc<Node>, name: &NameBuf, node: &Arc<Node>) -> Result<bool> {
        Ok(self.at(dir, name).await?.is_some_and(|found| found.id == node.id))
    }

    /// Removes a silly name in the background. A removal of its directory waits for it.
    pub(super) fn remove_silly_in_background(self, node: Arc<Node>) {
        let removal = node.location().map(|location| self.session.silly_removals.begin(location.dir.id));
        self.background(|view| async move {
            view.remove_silly(&node).await;
            drop(removal);
        });
    }

    async fn remove_silly(&self, node: &Arc<Node>) {
        let Some(location) = node.location() else { return };
        // The data are obsolete, but no WRITE may follow the REMOVE.
        let _ = self.settle(node).await;
        match self.remove(&location.dir, &location.name, false).await {
            // `NotFound`: the server removed the name before a restart, and executed the repeated call
            // afterwards.
            Ok(_) | Err(Error::NotFound) if node.told().nlink <= 1 => self.drop_data(node).await,
            Ok(_) | Err(Error::NotFound) => {}
            Err(error) => {
                let server = self.session.nfs.label();
                tracing::warn!(server, name = %location.name.as_name(), %error, "cannot remove the temporary name of a removed file");
            }
        }
        self.session.nodes.removed(location.dir.id, &location.name);
        node.lost_a_name(self.now());
        // Data that are not discarded must become stable.
        self.clone().commit_in_background(node).await;
    }
}

/// Returns `true` if the file must survive the removal of its name: it is regular and open, and has no silly
/// name yet.
fn is_kept(node: &Node) -> bool {
    node.is_open() && node.file_type == FileType::Regular && !node.is_silly()
}
