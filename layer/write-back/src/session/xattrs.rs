//! One extended attribute, of the root: how far changes have come. Nothing has any other.

use tombolo_core::fs::{NodeId, Watermarks, XattrName, XattrSet, Xattrs};
use tombolo_core::{Answer, Ctx, Error};

use super::file_system::WriteBackFileSystem;

/// A kernel that is told that there is no such call never makes it again: only GETXATTR goes on coming, for each file that is written.
impl Xattrs for WriteBackFileSystem {
    fn get(&self, _: &Ctx, node: NodeId, name: XattrName<'_>, limit_bytes: usize) -> Answer<Vec<u8>> {
        match (name.as_bytes() == Watermarks::XATTR, node) {
            (false, _) => return Answer::err(Error::NotSupported),
            (true, NodeId::ROOT) => {}
            (true, _) => return Answer::err(Error::NoAttribute),
        }
        let text = self.session().shared.watermarks().to_string().into_bytes();
        if text.len() > limit_bytes { Answer::err(Error::OutOfRange) } else { Answer::ok(text) }
    }

    fn set(&self, _: &Ctx, _: NodeId, _: XattrName<'_>, _: &[u8], _: XattrSet, _: bool) -> Answer<()> {
        Answer::err(Error::NotImplemented)
    }

    fn list(&self, _: &Ctx, _: NodeId, _: usize) -> Answer<Vec<u8>> {
        Answer::err(Error::NotImplemented)
    }

    fn remove(&self, _: &Ctx, _: NodeId, _: XattrName<'_>) -> Answer<()> {
        Answer::err(Error::NotImplemented)
    }
}
