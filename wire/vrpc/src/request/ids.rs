//! The nodes and openings that a request names.

use tombolo_core::fs::{File, NodeId, OpenId};

use super::Request;

/// Gives the numbers of one side for those of the other.
pub trait Translate {
    /// Why a number has no other.
    type Error;

    /// The other side's number of a node.
    fn node(&mut self, node: NodeId) -> Result<NodeId, Self::Error>;

    /// The other side's number of an opening.
    fn open(&mut self, open: OpenId) -> Result<OpenId, Self::Error>;

    /// Both numbers of a file.
    #[inline]
    fn file(&mut self, file: File) -> Result<File, Self::Error> {
        Ok(File { node: self.node(file.node)?, open: self.open(file.open)? })
    }
}

impl<'a> Request<'a> {
    /// The same request in other numbers. Those of [`Request::Forget`] stay as they are: they are many, and few of them may have
    /// others.
    #[inline]
    pub fn translated<T: Translate>(&self, to: &mut T) -> Result<Request<'a>, T::Error> {
        let mut request = *self;
        match &mut request {
            Self::Null
            | Self::Profile
            | Self::Caller { .. }
            | Self::Interrupt { .. }
            | Self::Forget(_)
            | Self::Syncfs
            | Self::Resolve { .. } => {}
            Self::Getattr { node, open } | Self::Setattr { node, open, .. } => {
                *node = to.node(*node)?;
                if let Some(open) = open {
                    *open = to.open(*open)?;
                }
            }
            Self::Lookup { parent: node, .. }
            | Self::Access { node, .. }
            | Self::Readlink { node, .. }
            | Self::Create { parent: node, .. }
            | Self::CreateUnnamed { parent: node, .. }
            | Self::Mkdir { parent: node, .. }
            | Self::Symlink { parent: node, .. }
            | Self::Mknod { parent: node, .. }
            | Self::Unlink { parent: node, .. }
            | Self::Rmdir { parent: node, .. }
            | Self::Open { node, .. }
            | Self::Statfs { node }
            | Self::XattrGet { node, .. }
            | Self::XattrSet { node, .. }
            | Self::XattrList { node, .. }
            | Self::XattrRemove { node, .. }
            | Self::HandleOf { node }
            | Self::Parent { node } => *node = to.node(*node)?,
            Self::Link { node, parent, .. } | Self::Rename { from_parent: node, to_parent: parent, .. } => {
                *node = to.node(*node)?;
                *parent = to.node(*parent)?;
            }
            Self::Release { file }
            | Self::Flush { file, .. }
            | Self::Fsync { file, .. }
            | Self::Read { file, .. }
            | Self::Write { file, .. }
            | Self::Readdir { file, .. }
            | Self::LockTest { file, .. }
            | Self::Lock { file, .. }
            | Self::Unlock { file, .. }
            | Self::Allocate { file, .. }
            | Self::Seek { file, .. } => *file = to.file(*file)?,
            Self::Copy { from, to: target, .. } => {
                *from = to.file(*from)?;
                *target = to.file(*target)?;
            }
        }
        Ok(request)
    }
}
