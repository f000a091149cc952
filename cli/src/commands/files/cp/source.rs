//! Sources of a copy.

use libtombolo::{Last, Node, block_on};
use tombolo_core::fs::{FileType, NameBuf};

use crate::failure::Failure;
use crate::location::{End, Location};

use super::super::open_path::{OpenPath, Opener, own_name};

#[derive(Debug)]
pub struct Source {
    pub place: OpenPath,
    pub node: Node,
    /// Name of the copy in a directory; `None`: the source's contents are copied into the directory.
    pub name: Option<NameBuf>,
    file_type: FileType,
}

impl Source {
    /// Opens a source. In a recursive copy a symbolic link is copied itself; otherwise it is followed.
    pub fn find(location: &Location, opener: &mut Opener, is_tree: bool) -> Result<Self, Failure> {
        let (end, last) = if is_tree { (End::Name, Last::Keep) } else { (End::Target, Last::Follow) };
        let place = opener.open(location, end)?;
        let node = place.find_or_fail(last)?;
        let attr = block_on(node.attr()).map_err(|error| place.cannot("get attributes of", &error))?;
        Ok(Self { place, node, name: own_name(location), file_type: attr.file_type })
    }

    pub fn is_link(&self) -> bool {
        self.file_type == FileType::Symlink
    }

    pub fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }
}
