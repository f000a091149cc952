//! Walking paths.

use tombolo_core::fs::{FileType, Name, NameBuf};
use tombolo_core::{Error, Result};

use crate::node::Node;
use crate::tree::Tree;

/// So many symbolic links are followed in one path (POSIX `SYMLOOP_MAX`, path_resolution(7)).
pub const LINKS_MAX: u32 = 40;

/// No longer target of a link is followed, in bytes (`PATH_MAX`).
const TARGET_BYTES_MAX: usize = 4096;

/// What to do about a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Take what it leads to.
    Follow,
    /// Take the link.
    Keep,
}

impl Tree {
    /// What a path leads to: components with `/` between them, from the top of the tree, with or without a
    /// `/` in front.
    ///
    /// Links are followed as path_resolution(7) has it, within the tree: an absolute target begins at the
    /// top, and the parent of the top is the top. A `/` at the end asks for a directory.
    pub async fn find(&self, path: &[u8], last: Last) -> Result<Node> {
        let mut way = Way::new(self);
        way.go(path, last).await?;
        Ok(way.into_end())
    }

    /// The directory in which the last component of `path` lies, or would, and that component.
    ///
    /// [`Error::InvalidArgument`] when the path ends with `.` or `..`, or is the top itself: that is no
    /// directory's entry.
    pub async fn find_parent(&self, path: &[u8]) -> Result<(Node, NameBuf)> {
        let (dir, name) = split(path)?;
        let mut way = Way::new(self);
        way.go(dir, Last::Follow).await?;
        Ok((way.into_end(), name))
    }

    /// As [`Tree::find_parent`], of what the path leads to if its last component is a link: where a program
    /// writes that opens the path. [`Error::NotFound`] when a link leads to nothing.
    pub async fn find_target(&self, path: &[u8]) -> Result<(Node, NameBuf)> {
        let (dir, mut name) = split(path)?;
        let mut way = Way::new(self);
        way.go(dir, Last::Follow).await?;
        for links in 0..=LINKS_MAX {
            let node = match way.step(name.as_name()).await {
                Err(Error::NotFound) if links == 0 => return Ok((way.into_end(), name)),
                found => found?,
            };
            if node.attr_found().is_none_or(|attr| attr.file_type != FileType::Symlink) {
                return Ok((way.into_end(), name));
            }
            let target = node.read_link().resolve().await?;
            way.begin_target(&target)?;
            let (dir, last) = split(&target)?;
            way.go(dir, Last::Follow).await?;
            name = last;
        }
        Err(Error::SymlinkLoop)
    }
}

/// The directories from the top to where we are, so that `..` finds its way back.
struct Way {
    tree: Tree,
    /// Below the top.
    nodes: Vec<Node>,
}

impl Way {
    fn new(tree: &Tree) -> Self {
        Self { tree: tree.clone(), nodes: Vec::new() }
    }

    fn into_end(mut self) -> Node {
        self.nodes.pop().unwrap_or_else(|| self.tree.root())
    }

    async fn go(&mut self, path: &[u8], last: Last) -> Result<()> {
        // What is left to walk, the next component last.
        let mut ahead = components(path);
        let mut links = 0;
        while let Some(component) = ahead.pop() {
            match component.as_slice() {
                b"." => self.must_be_directory()?,
                b".." => {
                    self.must_be_directory()?;
                    self.nodes.pop();
                }
                name => {
                    self.must_be_directory()?;
                    let node = self.step(Name::new(name)?).await?;
                    let is_link = node.attr_found().is_some_and(|attr| attr.file_type == FileType::Symlink);
                    if !is_link || (ahead.is_empty() && last == Last::Keep) {
                        self.nodes.push(node);
                        continue;
                    }
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Error::SymlinkLoop);
                    }
                    let target = node.read_link().resolve().await?;
                    self.follow(&target, &mut ahead)?;
                }
            }
        }
        Ok(())
    }

    async fn step(&self, name: Name<'_>) -> Result<Node> {
        let answer = match self.nodes.last() {
            Some(dir) => dir.find(name),
            None => self.tree.root().find(name),
        };
        answer.resolve().await
    }

    fn follow(&mut self, target: &[u8], ahead: &mut Vec<Vec<u8>>) -> Result<()> {
        self.begin_target(target)?;
        ahead.extend(components(target));
        Ok(())
    }

    /// Goes where a link's target begins.
    fn begin_target(&mut self, target: &[u8]) -> Result<()> {
        if begins_at_top(target)? {
            self.nodes.clear();
        }
        Ok(())
    }

    fn must_be_directory(&self) -> Result<()> {
        let is_other =
            |node: &Node| node.attr_found().is_some_and(|attr| attr.file_type != FileType::Directory);
        if self.nodes.last().is_some_and(is_other) { Err(Error::NotDirectory) } else { Ok(()) }
    }
}

/// Whether the way that a link's target says begins at the top.
pub(crate) fn begins_at_top(target: &[u8]) -> Result<bool> {
    match target.len() {
        0 => Err(Error::NotFound),
        1..=TARGET_BYTES_MAX => Ok(target.starts_with(b"/")),
        _ => Err(Error::NameTooLong),
    }
}

/// What stands before the last component, and that component.
fn split(path: &[u8]) -> Result<(&[u8], NameBuf)> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let path = path.get(..end).unwrap_or_default();
    let start = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (dir, name) = path.split_at(start);
    if name.is_empty() {
        return Err(Error::InvalidArgument);
    }
    Ok((dir, Name::new(name)?.to_owned()))
}

/// The components, the first one last. A `/` at the end is a `.` more.
pub(crate) fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = path
        .split(|&byte| byte == b'/')
        .filter(|component| !component.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    if path.ends_with(b"/") && !found.is_empty() {
        found.push(b".".to_vec());
    }
    found.reverse();
    found
}
