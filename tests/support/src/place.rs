//! Names and paths below a directory.

use tombolo_core::fs::{Name, NodeId};

/// A path below a directory, or, if the path is empty, the directory or node itself.
///
/// Made of a path below the session's own directory, a node, or a node and a path below it. Each name but the
/// last is looked up; an operation on a node that exists looks up the last one as well.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory or node; `None` for the session's own directory.
    pub dir: Option<NodeId>,
    /// Names separated by slashes.
    pub path: &'a str,
}

impl<'a, T: AsRef<str> + ?Sized> From<&'a T> for Place<'a> {
    fn from(path: &'a T) -> Self {
        Self { dir: None, path: path.as_ref() }
    }
}

impl<'a, T: AsRef<str> + ?Sized> From<(NodeId, &'a T)> for Place<'a> {
    fn from((dir, path): (NodeId, &'a T)) -> Self {
        Self { dir: Some(dir), path: path.as_ref() }
    }
}

impl From<NodeId> for Place<'_> {
    fn from(node: NodeId) -> Self {
        Self { dir: Some(node), path: "" }
    }
}

/// Converts a valid name.
pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a good name")
}
