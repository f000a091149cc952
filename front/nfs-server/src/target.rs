//! What a call is about: the node of its handle, seen by its caller.

use std::sync::Arc;

use tombolo_core::fs::{Attr, Change, Entry, FileType, Name};
use tombolo_core::{Ctx, Error};
use tombolo_wire_nfs3::attr::{fattr3, wcc_data};
use tombolo_wire_nfs3::{PostOpAttr, Status, WccData};

use crate::export::Served;
use crate::failure::{Failure, Result};
use crate::nodes::Node;

/// A node and the caller that names it.
pub(crate) struct Target {
    pub export: Arc<Served>,
    pub node: Arc<Node>,
    pub cx: Ctx,
}

impl Target {
    /// The node's attributes.
    pub async fn attr(&self) -> Result<Attr> {
        Ok(self.export.attr(&self.node).await?)
    }

    /// The attributes of a directory; NOTDIR if it is something else.
    pub async fn directory_attr(&self) -> Result<Attr> {
        let attr = self.attr().await?;
        if attr.file_type == FileType::Directory { Ok(attr) } else { Err(Failure(Status::NotDir)) }
    }

    /// The attributes of a regular file; ISDIR or INVAL if it is something else (RFC 1813 §3.3.6, §3.3.7).
    pub async fn file_attr(&self) -> Result<Attr> {
        let attr = self.export.attr_of_file(&self.node).await?;
        match attr.file_type {
            FileType::Regular => Ok(attr),
            FileType::Directory => Err(Failure(Status::IsDir)),
            _ => Err(Failure(Status::Inval)),
        }
    }

    /// The attributes as they are now, for an answer that carries them if they can be had.
    pub async fn post_op(&self) -> PostOpAttr {
        self.export.attr(&self.node).await.ok().map(|attr| fattr3(&attr))
    }

    /// The node after a failure: what it was like before is not known.
    pub async fn wcc_now(&self) -> WccData {
        WccData { before: None, after: self.post_op().await }
    }

    /// The node around a change. A back end that could not look afterwards is asked again.
    pub async fn wcc(&self, change: &Change) -> WccData {
        let mut data = wcc_data(change);
        if data.after.is_none() {
            data.after = self.post_op().await;
        }
        data
    }

    /// The node that has this name in the directory, without an error if there is none.
    pub async fn child(&self, name: Name<'_>) -> Result<Option<Entry>> {
        match self.export.file_system.lookup(&self.cx, self.node.id, name).resolve().await {
            Ok(entry) => Ok(Some(entry)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the other target lies in the same export.
    pub fn shares_export_with(&self, other: &Target) -> bool {
        Arc::ptr_eq(&self.export, &other.export)
    }
}
