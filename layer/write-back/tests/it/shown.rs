//! Visible state of a tree.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use tombolo_core::fs::{FileType, NodeId, SetAttr, SetTime, Timestamp};
use tombolo_test_support::Session;

use crate::xattrs;

/// Prefix of hidden names at the origin.
pub const HIDDEN: &str = ".tombolo-wb-";

/// Visible state of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub file_type: FileType,
    pub mode: u32,
    pub nlink: u32,
    pub owner: (u32, u32),
    /// The first name of the same node.
    pub same_as: String,
    pub size: u64,
    /// Hash of the data, or of a link's target.
    pub content: u64,
    pub xattrs: Vec<(String, Vec<u8>)>,
    pub mtime: Option<Timestamp>,
}

/// Returns the state of all names but hidden ones, by path; with modification times if `times`.
pub fn tree(session: &Session, times: bool) -> BTreeMap<String, Shown> {
    let (mut shown, mut first) = (BTreeMap::new(), HashMap::new());
    gather(session, "", times, &mut first, &mut shown);
    shown
}

fn gather(
    session: &Session,
    path: &str,
    times: bool,
    first: &mut HashMap<NodeId, String>,
    shown: &mut BTreeMap<String, Shown>,
) {
    let found = session.lookup(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let attr = found.attr;
    let is_directory = attr.file_type == FileType::Directory;
    let same_as = first.entry(found.node).or_insert_with(|| path.to_owned()).clone();
    let content = match attr.file_type {
        FileType::Regular => session.get(path).unwrap_or_else(|error| panic!("{path}: {error}")),
        FileType::Symlink => session.fs.readlink(&session.cx, found.node).wait().expect("a link"),
        _ => Vec::new(),
    };
    let one = Shown {
        file_type: attr.file_type,
        mode: attr.mode.bits(),
        nlink: attr.nlink,
        owner: (attr.uid, attr.gid),
        same_as,
        size: if is_directory { 0 } else { attr.size },
        content: sum(&content),
        xattrs: xattrs::all(session, found.node),
        mtime: times.then_some(attr.mtime),
    };
    shown.insert(path.to_owned(), one);
    if is_directory {
        for name in session.names(found.node).into_iter().filter(|name| !name.starts_with(HIDDEN)) {
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            gather(session, &path, times, first, shown);
        }
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Sets a node's modification time.
pub fn set_mtime(session: &Session, path: &str, secs: i64) -> tombolo_core::Result<()> {
    let mtime = Some(SetTime::At(Timestamp { secs, nanos: 5 }));
    session.setattr(path, SetAttr { mtime, ..SetAttr::default() }).map(drop)
}
