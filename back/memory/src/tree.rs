//! The tree: all nodes, their names, and their lifetime.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use tombolo_core::fs::{Device, FileType, LockTable, Mode, Watchers};
use tombolo_core::{Error, Result};
use tombolo_shm::window::Window;

use crate::change_log::{ChangeLog, Changed};
use crate::content::{Content, PAGE_BYTES, Space};
use crate::directory::{Directory, Ino};
use crate::node::{Kind, Node, Times};
use crate::options::Options;
use crate::session::Session;

/// All nodes of an export, with the limits on their number and size.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: HashMap<Ino, Node>,
    next_ino: u64,
    node_limit: u64,
    /// File system number, derived from the time of creation to distinguish this tree from others of this
    /// process and of earlier processes.
    pub(crate) fsid: u64,
    pub(crate) space: Space,
    /// Changes of the current operation.
    pub(crate) change_log: ChangeLog,
}

/// State shared by the sessions of an export.
pub(crate) struct ExportState {
    pub(crate) options: Options,
    pub(crate) tree: Mutex<Tree>,
    /// Locks on files. Its mutex is taken after the tree's.
    pub(crate) locks: LockTable,
    /// Source of session and opening ids.
    pub(crate) next_id: AtomicU64,
    /// Sessions subscribed to changes.
    pub(crate) watchers: Watchers<Session>,
    /// Change counters, created when a session first reads them; `None` if there is no memory for them.
    pub(crate) window: OnceLock<Option<Window>>,
}

impl ExportState {
    pub(crate) fn unique_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// Initial state of a new node.
pub(crate) struct NewNode {
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: Device,
}

impl Tree {
    pub(crate) fn new(options: &Options) -> Self {
        let mut tree = Self {
            nodes: HashMap::new(),
            next_ino: Ino::ROOT.0,
            node_limit: options.node_limit.max(1),
            fsid: unique_fsid(),
            space: Space::new(options.size_limit_bytes / PAGE_BYTES),
            change_log: ChangeLog::default(),
        };
        let root = NewNode {
            kind: Kind::Directory(Directory::new(Ino::ROOT)),
            mode: Mode::new(0o755),
            uid: 0,
            gid: 0,
            rdev: Device::default(),
        };
        // Cannot fail: the limit is at least one.
        if let Ok(node) = tree.add(root) {
            node.nlink = 2;
            node.holders = 1;
        }
        tree
    }

    /// Creates a node without a name; [`Error::NoSpace`] at the limit of nodes.
    pub(crate) fn add(&mut self, new: NewNode) -> Result<&mut Node> {
        if self.nodes.len() as u64 >= self.node_limit {
            return Err(Error::NoSpace);
        }
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let NewNode { kind, mode, uid, gid, rdev } = new;
        Ok(self.nodes.entry(ino).or_insert(Node {
            ino,
            kind,
            mode,
            nlink: 0,
            uid,
            gid,
            rdev,
            times: Times::all_now(),
            xattrs: Default::default(),
            access_acl: None,
            default_acl: None,
            verifier: None,
            linkable: false,
            holders: 0,
        }))
    }

    pub(crate) fn node(&self, ino: Ino) -> Result<&Node> {
        self.nodes.get(&ino).ok_or(Error::Stale)
    }

    pub(crate) fn node_mut(&mut self, ino: Ino) -> Result<&mut Node> {
        let node = self.nodes.get_mut(&ino).ok_or(Error::Stale)?;
        self.change_log.note(node);
        Ok(node)
    }

    /// Makes a name in a directory refer to a node, whose link count is updated by the caller.
    pub(crate) fn set_name(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
        self.change_log.note_name(dir, name);
        self.node_mut(dir)?.directory_mut()?.set(name, ino);
        Ok(())
    }

    /// Removes a name from a directory. The link count of its node is updated by the caller.
    pub(crate) fn remove_name(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.change_log.note_name(dir, name);
        self.node_mut(dir)?.directory_mut()?.remove(name);
        Ok(())
    }

    /// Returns the changes of the operation that ends.
    pub(crate) fn changed(&mut self) -> Vec<Changed> {
        let Self { change_log, nodes, .. } = self;
        change_log.take(|ino| nodes.get(&ino))
    }

    /// Returns the contents of a file, and the space that its pages are taken from.
    pub(crate) fn content_mut(&mut self, ino: Ino) -> Result<(&mut Content, &mut Space)> {
        let node = self.nodes.get_mut(&ino).ok_or(Error::Stale)?;
        self.change_log.note(node);
        Ok((node.content_mut()?, &mut self.space))
    }

    /// Counts a session or opening that keeps the node alive.
    pub(crate) fn add_holder(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.holders += 1;
        }
    }

    /// Undoes [`Tree::add_holder`].
    pub(crate) fn remove_holder(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.holders = node.holders.saturating_sub(1);
        }
        self.remove_if_unused(ino);
    }

    /// Removes a node with neither a name nor a holder.
    pub(crate) fn remove_if_unused(&mut self, ino: Ino) {
        if !self.nodes.get(&ino).is_some_and(|node| node.nlink == 0 && node.holders == 0) {
            return;
        }
        if let Some(Kind::File(mut content)) = self.nodes.remove(&ino).map(|node| node.kind) {
            content.free(&mut self.space);
        }
    }

    /// Returns `true` if `ino` is `ancestor`, or below it.
    pub(crate) fn is_within(&self, ino: Ino, ancestor: Ino) -> bool {
        let mut at = ino;
        loop {
            if at == ancestor {
                return true;
            }
            let Ok(parent) = self.node(at).and_then(|node| node.directory().map(Directory::parent)) else {
                return false;
            };
            if parent == at {
                return false;
            }
            at = parent;
        }
    }

    pub(crate) fn file_type(&self, ino: Ino) -> Option<FileType> {
        self.nodes.get(&ino).map(Node::file_type)
    }

    pub(crate) fn nodes(&self) -> u64 {
        self.nodes.len() as u64
    }

    pub(crate) fn node_limit(&self) -> u64 {
        self.node_limit
    }
}

fn unique_fsid() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = crate::node::now();
    let started = (now.secs as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(now.nanos));
    started.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed))
}
