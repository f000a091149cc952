//! Model of a caller's tree, derived from the results of its operations.

use std::collections::BTreeMap;

/// Identifier of a node of the model.
pub type Id = u32;

/// The caller's own directory.
pub const ROOT: Id = 0;

/// A tree.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: BTreeMap<Id, Node>,
    last_id: Id,
}

/// A node of the tree.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub links: u32,
    /// The server's number of the node.
    pub fileid: u64,
    pub mode: u32,
    /// Number of openings, which keep the node alive.
    pub opens: u32,
    /// Parent of a directory.
    pub parent: Id,
}

/// Kind and content of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory(BTreeMap<Vec<u8>, Id>),
    File(Vec<u8>),
    Symlink(Vec<u8>),
}

impl Model {
    /// Creates an empty directory.
    pub fn new(fileid: u64) -> Self {
        let root = Node {
            kind: Kind::Directory(BTreeMap::new()),
            links: 2,
            fileid,
            mode: 0o755,
            opens: 0,
            parent: ROOT,
        };
        Self { nodes: BTreeMap::from([(ROOT, root)]), last_id: ROOT }
    }

    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    pub fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("a node of the model")
    }

    /// Lists all directories.
    pub fn directories(&self) -> Vec<Id> {
        self.nodes
            .iter()
            .filter(|(_, node)| matches!(node.kind, Kind::Directory(_)))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Returns a directory's entries.
    pub fn entries(&self, dir: Id) -> &BTreeMap<Vec<u8>, Id> {
        match &self.node(dir).kind {
            Kind::Directory(entries) => entries,
            other => panic!("{other:?} is no directory"),
        }
    }

    pub fn entries_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.node_mut(dir).kind {
            Kind::Directory(entries) => entries,
            other => panic!("{other:?} is no directory"),
        }
    }

    /// Returns a file's content.
    pub fn content(&self, file: Id) -> &Vec<u8> {
        match &self.node(file).kind {
            Kind::File(content) => content,
            other => panic!("{other:?} is no file"),
        }
    }

    pub fn content_mut(&mut self, file: Id) -> &mut Vec<u8> {
        match &mut self.node_mut(file).kind {
            Kind::File(content) => content,
            other => panic!("{other:?} is no file"),
        }
    }

    /// Looks a name up.
    pub fn find(&self, dir: Id, name: &[u8]) -> Option<Id> {
        self.entries(dir).get(name).copied()
    }

    /// Returns the names from the caller's own directory to this one.
    pub fn path(&self, dir: Id) -> Vec<Vec<u8>> {
        let (mut path, mut at) = (Vec::new(), dir);
        while at != ROOT {
            let parent = self.node(at).parent;
            let name = self.entries(parent).iter().find(|(_, id)| **id == at).expect("it lies there").0;
            path.push(name.clone());
            at = parent;
        }
        path.reverse();
        path
    }

    pub fn is_below(&self, dir: Id, ancestor: Id) -> bool {
        let mut at = dir;
        loop {
            if at == ancestor {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.node(at).parent;
        }
    }

    /// Creates a node.
    pub fn make(&mut self, dir: Id, name: &[u8], kind: Kind, fileid: u64, mode: u32) -> Id {
        self.last_id += 1;
        let id = self.last_id;
        let links = if matches!(kind, Kind::Directory(_)) { 2 } else { 1 };
        self.nodes.insert(id, Node { kind, links, fileid, mode, opens: 0, parent: dir });
        self.entries_mut(dir).insert(name.to_vec(), id);
        id
    }

    /// Adds a name to a file.
    pub fn link(&mut self, file: Id, dir: Id, name: &[u8]) {
        self.entries_mut(dir).insert(name.to_vec(), file);
        self.node_mut(file).links += 1;
    }

    /// Removes a name.
    pub fn unlink(&mut self, dir: Id, name: &[u8]) {
        if let Some(id) = self.entries_mut(dir).remove(name) {
            self.node_mut(id).links -= 1;
            if matches!(self.node(id).kind, Kind::Directory(_)) {
                self.node_mut(id).links = 0;
            }
            self.forget_if_gone(id);
        }
    }

    /// Renames, possibly over another name.
    pub fn rename(&mut self, (from_dir, from): (Id, &[u8]), (to_dir, to): (Id, &[u8])) {
        let Some(id) = self.find(from_dir, from) else { return };
        // Two names of one file: rename(2) does nothing.
        if self.find(to_dir, to) == Some(id) {
            return;
        }
        self.unlink(to_dir, to);
        self.entries_mut(from_dir).remove(from);
        self.entries_mut(to_dir).insert(to.to_vec(), id);
        if matches!(self.node(id).kind, Kind::Directory(_)) {
            self.node_mut(id).parent = to_dir;
        }
    }

    pub fn opened(&mut self, id: Id) {
        self.node_mut(id).opens += 1;
    }

    pub fn closed(&mut self, id: Id) {
        self.node_mut(id).opens -= 1;
        self.forget_if_gone(id);
    }

    fn forget_if_gone(&mut self, id: Id) {
        let node = self.node(id);
        if node.links == 0 && node.opens == 0 {
            self.nodes.remove(&id);
        }
    }
}
