//! Path resolution.

use tombolo_core::fs::{FileType, Name, NameBuf};
use tombolo_core::{Error, Result};

use crate::node::Node;
use crate::tree::Tree;

/// Maximum number of symbolic links followed in one path, as in Linux (path_resolution(7)).
pub const LINKS_MAX: u32 = 40;

/// Maximum length of a link's target that is followed, in bytes (`PATH_MAX`).
const TARGET_BYTES_MAX: usize = 4096;

/// Treatment of a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Follow the link.
    Follow,
    /// Return the link itself.
    Keep,
}

impl Tree {
    /// Finds what a path leads to: components separated by `/`, from the top of the tree, with or without a
    /// leading `/`.
    ///
    /// Links are followed as in path_resolution(7), within the tree: an absolute target begins at the top,
    /// and the parent of the top is the top. A trailing `/` requires a directory.
    pub async fn find(&self, path: &[u8], last: Last) -> Result<Node> {
        Ok(Way::along(self, path, last).await?.into_end())
    }

    /// Finds the directory of the last component of `path`, existing or not, and returns it with that
    /// component.
    ///
    /// [`Error::InvalidArgument`] when the path ends with `.` or `..`, or is the top itself: that is no
    /// directory's entry.
    pub async fn find_parent(&self, path: &[u8]) -> Result<(Node, NameBuf)> {
        let (dir, name) = split(path)?;
        Ok((Way::along(self, dir, Last::Follow).await?.into_end(), name))
    }

    /// Finds the same as [`Tree::find_parent`], but follows the last component if it is a link: returns
    /// directory and name of the file to which a program that opens `path` writes. [`Error::NotFound`] for a
    /// dangling link.
    pub async fn find_target(&self, path: &[u8]) -> Result<(Node, NameBuf)> {
        let (dir, mut name) = split(path)?;
        let mut way = Way::along(self, dir, Last::Follow).await?;
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

/// The directories from the top to the present position, for `..`.
struct Way {
    tree: Tree,
    /// Directories below the top, down to the present position; the last may be any node.
    nodes: Vec<Node>,
}

impl Way {
    async fn along(tree: &Tree, path: &[u8], last: Last) -> Result<Self> {
        let mut way = Self { tree: tree.clone(), nodes: Vec::new() };
        way.go(path, last).await?;
        Ok(way)
    }

    fn into_end(mut self) -> Node {
        self.nodes.pop().unwrap_or_else(|| self.tree.root())
    }

    async fn go(&mut self, path: &[u8], last: Last) -> Result<()> {
        // Components left to walk, the next one last.
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
                    self.begin_target(&target)?;
                    ahead.extend(components(&target));
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

    /// Enters the directory at which a link's target begins.
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

/// Returns `true` if a link's target begins at the top. Fails if the target is empty or too long.
pub(crate) fn begins_at_top(target: &[u8]) -> Result<bool> {
    match target.len() {
        0 => Err(Error::NotFound),
        1..=TARGET_BYTES_MAX => Ok(target.starts_with(b"/")),
        _ => Err(Error::NameTooLong),
    }
}

/// Splits a path into what precedes the last component, and that component.
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

/// Joins the parts of a path, of which the first may be a path itself; empty ones are left out.
pub(crate) fn joined<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut path = Vec::new();
    for part in parts.filter(|part| !part.is_empty()) {
        if !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    path
}

/// Returns the components in reverse order. A trailing `/` counts as a `.`.
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
