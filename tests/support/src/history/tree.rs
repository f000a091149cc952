//! Visible state of a tree.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use tombolo_core::fs::{Device, FileType, NodeId, Timestamp};

use crate::session::Session;

/// Visible state of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named like the attributes")]
pub struct Shown {
    pub file_type: FileType,
    pub mode: u32,
    pub nlink: u32,
    pub owner: (u32, u32),
    pub rdev: Device,
    /// The first name of the same node.
    pub same_as: String,
    /// Size; 0 for a directory.
    pub size: u64,
    /// Hash of the data, or of a link's target.
    pub content: u64,
    pub xattrs: Vec<(String, Vec<u8>)>,
    pub mtime: Option<Timestamp>,
}

/// Returns the state of all names below the session's directory, by path; with modification times if `times`,
/// and without names that begin with `hidden`.
pub fn tree(session: &Session, times: bool, hidden: Option<&str>) -> BTreeMap<String, Shown> {
    let mut walk = Walk { session, times, hidden, first: HashMap::new(), shown: BTreeMap::new() };
    walk.gather(session.dir, String::new());
    walk.first.remove(&session.dir);
    let looked_up: Vec<_> = walk.first.into_iter().map(|(node, (_, count))| (node, count)).collect();
    session.fs.forget(&session.cx, &looked_up);
    walk.shown
}

struct Walk<'a> {
    session: &'a Session,
    times: bool,
    hidden: Option<&'a str>,
    /// The first name of each node, and its look-ups.
    first: HashMap<NodeId, (String, u64)>,
    shown: BTreeMap<String, Shown>,
}

impl Walk<'_> {
    fn gather(&mut self, node: NodeId, path: String) {
        let session = self.session;
        let attr = session.attr(node);
        let is_directory = attr.file_type == FileType::Directory;
        let first = self.first.entry(node).or_insert_with(|| (path.clone(), 0));
        first.1 += 1;
        let content = match attr.file_type {
            FileType::Regular => session.get(node).unwrap_or_else(|error| panic!("{path}: {error}")),
            FileType::Symlink => session.fs.readlink(&session.cx, node).wait().expect("a link"),
            _ => Vec::new(),
        };
        let one = Shown {
            file_type: attr.file_type,
            mode: attr.mode.bits(),
            nlink: attr.nlink,
            owner: (attr.uid, attr.gid),
            rdev: attr.rdev,
            same_as: first.0.clone(),
            size: if is_directory { 0 } else { attr.size },
            content: digest(&content),
            xattrs: if session.fs.xattrs().is_some() { xattrs(session, node) } else { Vec::new() },
            mtime: self.times.then_some(attr.mtime),
        };
        let names = if is_directory { session.names(node) } else { Vec::new() };
        let is_hidden = |name: &String| self.hidden.is_some_and(|hidden| name.starts_with(hidden));
        for name in names.into_iter().filter(|name| !is_hidden(name)).collect::<Vec<_>>() {
            let below = session.node((node, &name)).unwrap_or_else(|error| panic!("{path}/{name}: {error}"));
            self.gather(below, if path.is_empty() { name } else { format!("{path}/{name}") });
        }
        self.shown.insert(path, one);
    }
}

/// Returns names and values of extended attributes, except those that a host sets by itself.
fn xattrs(session: &Session, node: NodeId) -> Vec<(String, Vec<u8>)> {
    let names = session.xattr_list(node).expect("a list").into_iter();
    let ours = |name: &String| name.starts_with("user.") || name == "security.capability";
    let value = |name: String| (name.clone(), session.xattr(node, &name).expect("a listed attribute"));
    names.filter(ours).map(value).collect()
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
