//! One client's view of the tree: the nodes it refers to, and its openings.

mod attributes;
mod changes;
mod file_system;
mod handles;
mod locks;
mod make;
mod names;
mod open;
mod ranges;
mod versions;
mod xattrs;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, Weak};

use tombolo_core::fs::{
    AccessMask, Change, Entry, File, NodeId, NoticeQueue, OpenFlags, PermissionCheck, SessionLocks, WeakAttr,
    Woken,
};
use tombolo_core::{Budget, Ctx, Error, Identity, Resource, Result, Want, lock};

use self::changes::PendingNotices;
use crate::directory::Directory;
use crate::directory::Ino;
use crate::node::Node;
use crate::tree::ExportState;
use crate::tree::Tree;

/// A session. Its node ids are inode numbers, valid while the session counts look-ups of the node.
pub(crate) struct Session {
    shared: Arc<ExportState>,
    /// Number that distinguishes the session from others of the export.
    id: u64,
    locks: SessionLocks,
    checks: PermissionCheck,
    budget: Arc<Budget>,
    tables: Mutex<SessionTables>,
    notices: Arc<NoticeQueue>,
    /// Completed once the session has subscribed to changes or read a version.
    watch: Once,
    /// Reference to this session, for other sessions that notify it of their changes.
    me: Weak<Self>,
}

/// Nodes and openings of a session.
#[derive(Debug, Default)]
struct SessionTables {
    /// Look-up count of each node.
    nodes: HashMap<Ino, u64>,
    opens: HashMap<u64, Opening>,
}

#[derive(Clone, Copy, Debug)]
struct Opening {
    ino: Ino,
    flags: OpenFlags,
}

/// A session's tables and the tree, locked in this order for one operation. All operations are methods of the
/// view.
struct View<'a> {
    session: &'a Session,
    tables: MutexGuard<'a, SessionTables>,
    tree: MutexGuard<'a, Tree>,
    /// Waiters to wake after the locks above are released.
    woken: Woken,
    /// Notices to send after the locks above are released.
    pending_notices: PendingNotices<'a>,
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        self.pending_notices.changes = self.tree.changed();
        // Counted while the tree is locked, so that a session that has seen the change also sees the count.
        self.session.count(&self.pending_notices.changes);
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<ExportState>, checks: PermissionCheck) -> Arc<Self> {
        let (id, budget) = (shared.unique_id(), Budget::new(shared.options.session_limits));
        let locks = shared.locks.session();
        let (tables, notices) = (Mutex::default(), Arc::default());
        Arc::new_cyclic(|me| Self {
            shared,
            checks,
            id,
            locks,
            budget,
            tables,
            notices,
            watch: Once::new(),
            me: me.clone(),
        })
    }

    fn view(&self) -> View<'_> {
        let tables = lock(&self.tables);
        let mut tree = lock(&self.shared.tree);
        // A session that subscribes after this check reads the tree after this operation, so it misses
        // nothing.
        tree.change_log.enable(self.shared.watchers.any());
        View {
            session: self,
            tables,
            tree,
            woken: Woken::default(),
            pending_notices: PendingNotices::by(self),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.notices.end();
        self.shared.watchers.ended(|| ());
        let mut view = self.view();
        let SessionTables { nodes, opens } = std::mem::take(&mut *view.tables);
        let inos = opens.values().map(|opening| opening.ino).chain(nodes.into_keys());
        for ino in inos {
            view.tree.remove_holder(ino);
        }
    }
}

impl View<'_> {
    /// Returns the inode number of a node of this session.
    fn ino(&self, node: NodeId) -> Result<Ino> {
        let ino = Ino(node.0);
        if node == NodeId::ROOT || self.tables.nodes.contains_key(&ino) { Ok(ino) } else { Err(Error::Stale) }
    }

    fn node(&self, node: NodeId) -> Result<&Node> {
        self.tree.node(self.ino(node)?)
    }

    /// Returns a directory of this session, after an access check.
    fn directory(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Result<&Directory> {
        let node = self.node(node)?;
        let directory = node.directory()?;
        self.check_access(cx, node, mask)?;
        Ok(directory)
    }

    /// Returns the node of this name in a directory that the user may search.
    fn find(&self, cx: &Ctx, parent: NodeId, name: &[u8]) -> Result<Option<Ino>> {
        Ok(self.directory(cx, parent, AccessMask::EXECUTE)?.find(name))
    }

    /// Checks that the user may add an entry to `dir`. A removed directory accepts no entries.
    fn check_add(&self, cx: &Ctx, dir: Ino) -> Result<()> {
        let dir = self.tree.node(dir)?;
        if dir.nlink == 0 {
            return Err(Error::NotFound);
        }
        self.check_access(cx, dir, AccessMask::WRITE | AccessMask::EXECUTE)
    }

    /// Checks that the user may remove `victim` from `dir`, and that it is a directory if and only if
    /// `as_directory`.
    fn check_remove(&self, cx: &Ctx, dir: Ino, victim: Ino, as_directory: bool) -> Result<()> {
        let (dir, victim) = (self.tree.node(dir)?, self.tree.node(victim)?);
        self.check_access(cx, dir, AccessMask::WRITE | AccessMask::EXECUTE)?;
        if self.checks() {
            dir.ownership().check_sticky(&cx.identity, victim.uid)?;
        }
        match (victim.is_directory(), as_directory) {
            (false, true) => Err(Error::NotDirectory),
            (true, false) => Err(Error::IsDirectory),
            _ => Ok(()),
        }
    }

    fn opening(&self, file: File) -> Result<Opening> {
        let opening = self.tables.opens.get(&file.open.0).ok_or(Error::BadOpen)?;
        if opening.ino == Ino(file.node.0) { Ok(*opening) } else { Err(Error::BadOpen) }
    }

    /// Returns the inode number for an operation on `node`, which may go through the opening `file`.
    fn target(&self, node: NodeId, file: Option<File>) -> Result<Ino> {
        match file {
            Some(file) if file.node != node => Err(Error::BadOpen),
            Some(file) => self.opening(file).map(|opening| opening.ino),
            None => self.ino(node),
        }
    }

    /// Counts a look-up and returns the entry.
    fn look_up(&mut self, ino: Ino) -> Result<Entry> {
        let attr = self.tree.node(ino)?.attr(self.tree.fsid);
        if ino != Ino::ROOT {
            if !self.tables.nodes.contains_key(&ino) {
                self.check_node_budget()?;
                self.session.budget.try_add(Resource::Nodes, 1);
                self.tree.add_holder(ino);
            }
            *self.tables.nodes.entry(ino).or_default() += 1;
        }
        Ok(Entry { node: NodeId(ino.0), attr })
    }

    fn forget(&mut self, node: NodeId, count: u64) {
        let ino = Ino(node.0);
        let Some(look_ups) = self.tables.nodes.get_mut(&ino) else { return };
        *look_ups = look_ups.saturating_sub(count);
        if *look_ups == 0 {
            self.tables.nodes.remove(&ino);
            self.session.budget.give_back(Resource::Nodes, 1);
            self.tree.remove_holder(ino);
        }
    }

    /// Checks the budget before anything is changed, so that no node is created that cannot be returned.
    fn check_node_budget(&self) -> Result<()> {
        let budget = &self.session.budget;
        let has_budget = budget.used(Resource::Nodes) < budget.limit(Resource::Nodes);
        if has_budget { Ok(()) } else { Err(Error::NoMemory) }
    }

    fn checks(&self) -> bool {
        self.session.checks == PermissionCheck::BackEnd
    }

    fn check_access(&self, cx: &Ctx, node: &Node, mask: AccessMask) -> Result<()> {
        if self.checks() { node.check(&cx.identity, mask) } else { Ok(()) }
    }

    fn check_owner(&self, cx: &Ctx, node: &Node) -> Result<()> {
        if self.checks() { node.ownership().check_owner(&cx.identity) } else { Ok(()) }
    }

    /// Returns `Some` if a change of the data clears set-user-id and set-group-id; with the writer if this
    /// back end checks permissions and the writer is not the superuser.
    fn kills_privileges<'c>(&self, cx: &'c Ctx, requested: bool) -> Option<Option<&'c Identity>> {
        let writer = Some(&cx.identity).filter(|user| self.checks() && !user.is_root());
        (requested || writer.is_some()).then_some(writer)
    }

    /// Records a change of a file's data, with the result of [`kills_privileges`](Self::kills_privileges).
    fn data_changed(&mut self, ino: Ino, kills: Option<Option<&Identity>>) -> Result<()> {
        let node = self.tree.node_mut(ino)?;
        node.update_mtime();
        if let Some(writer) = kills {
            node.drop_privileges(writer);
        }
        Ok(())
    }

    /// Returns the attributes before a change, if requested.
    fn before(&self, cx: &Ctx, ino: Ino) -> Option<WeakAttr> {
        let wanted = cx.want.contains(Want::CHANGE_ATTRS);
        self.tree.node(ino).ok().filter(|_| wanted).map(|node| WeakAttr::from(&node.attr(self.tree.fsid)))
    }

    /// Returns the change, with the attributes after it if [`View::before`] has returned those before it.
    fn change(&self, ino: Ino, before: Option<WeakAttr>) -> Change {
        let after = before.and_then(|_| self.tree.node(ino).ok()).map(|node| node.attr(self.tree.fsid));
        Change { before, after }
    }
}
