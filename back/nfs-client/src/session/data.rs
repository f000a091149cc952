//! Reads, writes and flushes: the interface to [`crate::data`].

use std::sync::Arc;

use tombolo_core::fs::{Change, File, FileType, OpenFlags, ReadDone, Write, Written};
use tombolo_core::{Answer, Error, Result, Stability};
use tombolo_mem::{Sink, Source};

use super::view::View;
use crate::data;
use crate::nodes::Node;
use crate::openings::Opening;

impl View {
    /// Reads, at most as far as the file goes.
    pub(super) fn read(self, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        match self.session.openings.made_for(file, OpenFlags::READ).and_then(has_data) {
            Ok(opening) => {
                data::read(&self.session, &opening.node, &self.caller, &opening.read_ahead, offset, into)
            }
            Err(error) => Answer::err(error),
        }
    }

    /// Writes; where an opening that appends writes is decided here: there is no appending in NFS.
    pub(super) fn write(self, file: File, how: &Write, from: Source) -> Answer<Written> {
        let opening = match self.session.openings.made_for(file, OpenFlags::WRITE).and_then(has_data) {
            Ok(opening) => opening,
            Err(error) => return Answer::err(error),
        };
        let mut how = *how;
        how.stability = how.stability.max(promised(opening.flags));
        let appends = opening.flags.contains(OpenFlags::APPEND) && !how.in_place;
        let written = if !appends {
            data::write(&self.session, &opening.node, &self.caller, &how, from)
        } else if opening.node.believed(self.now()).is_some() {
            self.append(&opening.node, &how, from)
        } else {
            let view = self.clone();
            let node = opening.node.clone();
            Answer::later(async move {
                // What the server says while it has not answered our own writes may be from before them.
                view.settle(&node).await?;
                view.fetch(&node).await?;
                view.append(&node, &how, from).resolve().await
            })
        };
        if !self.wants_changes {
            return written;
        }
        // Attributes from after the write there are once it is answered.
        Answer::later(async move {
            let mut written = written.resolve().await?;
            self.settle(&opening.node).await?;
            let attr = match opening.node.believed(self.now()) {
                Some(attr) => attr,
                None => self.fetch(&opening.node).await?,
            };
            written.file = Change { before: None, after: Some(attr) };
            Ok(written)
        })
    }

    /// Writes behind what is there, as far as is known: what others append at the same time is overwritten,
    /// or overwrites, as with every client of NFS.
    fn append(&self, node: &Arc<Node>, how: &Write, from: Source) -> Answer<Written> {
        data::append(&self.session, node, &self.caller, how, from)
    }

    /// Waits until the server has answered what is being written to a node.
    pub(super) async fn settle(&self, node: &Arc<Node>) -> Result<()> {
        data::settle(&self.session, node, &self.caller).resolve().await
    }

    /// Waits until what was written to a node is on stable storage.
    pub(super) async fn commit(&self, node: &Arc<Node>) -> Result<()> {
        data::commit(&self.session, node, &self.caller).resolve().await
    }

    /// The same for what other clients have written and not made stable: a COMMIT of the whole file (RFC 1813
    /// §3.3.21).
    pub(super) async fn commit_of_others(&self, node: &Arc<Node>) -> Result<()> {
        data::Server::commit(self.session.clone(), self.caller.clone(), node.clone()).await.map(drop)
    }

    /// Makes stable what was written to any node.
    pub(super) async fn commit_all(self) -> Result<()> {
        let mut first = Ok(());
        for node in self.session.nodes.all().into_iter().filter(|node| node.data.is_dirty()) {
            first = first.and(self.commit(&node).await);
        }
        first
    }

    /// Makes the data of a closed file stable in the background. A failure goes to the log: no caller is left
    /// to report it to.
    pub(super) async fn commit_in_background(self, node: &Arc<Node>) {
        if let Err(error) = self.commit(node).await {
            let server = self.session.nfs.label();
            tracing::error!(server, fileid = node.fileid, %error, "written data lost");
        }
        self.session.nodes.let_go(node);
    }
}

fn has_data(opening: Arc<Opening>) -> Result<Arc<Opening>> {
    match opening.node.file_type {
        FileType::Directory => Err(Error::IsDirectory),
        FileType::Regular => Ok(opening),
        _ => Err(Error::InvalidArgument),
    }
}

fn promised(flags: OpenFlags) -> Stability {
    if flags.contains(OpenFlags::SYNC) {
        Stability::FileSync
    } else if flags.contains(OpenFlags::DATA_SYNC) {
        Stability::DataSync
    } else {
        Stability::Unstable
    }
}
