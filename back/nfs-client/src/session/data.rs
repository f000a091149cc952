//! Reads, writes and flushes: the interface to [`crate::data`].

use std::sync::Arc;

use tombolo_core::fs::{Change, File, FileType, OpenFlags, ReadDone, Write, Written};
use tombolo_core::{Answer, Error, Result, Stability, or_answer};
use tombolo_mem::{Sink, Source};

use super::view::View;
use crate::data;
use crate::nodes::Node;
use crate::openings::Opening;

impl View {
    /// Reads into the sink; returns less only at the end of the file.
    pub(super) fn read(self, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        match self.session.openings.made_for(file, OpenFlags::READ).and_then(has_data) {
            Ok(opening) => {
                data::read(&self.session, &opening.node, &self.caller, &opening.read_ahead, offset, into)
            }
            Err(error) => Answer::err(error),
        }
    }

    /// Writes. The offset of an append is chosen by the client, because NFS has no append: concurrent appends
    /// by several clients may overwrite each other.
    pub(super) fn write(self, file: File, how: &Write, from: Source) -> Answer<Written> {
        let opening = or_answer!(self.session.openings.made_for(file, OpenFlags::WRITE).and_then(has_data));
        let mut how = *how;
        how.stability = how.stability.max(promised(opening.flags));
        let appends = opening.flags.contains(OpenFlags::APPEND) && !how.in_place;
        let written = if !appends || opening.node.believed(self.now()).is_some() {
            data::write(&self.session, &opening.node, &self.caller, how, from, appends)
        } else {
            let view = self.clone();
            let node = opening.node.clone();
            Answer::later(async move {
                // While writes are pending, the server's attributes may predate them.
                view.settle(&node).await?;
                view.fetch(&node).await?;
                data::write(&view.session, &node, &view.caller, how, from, true).resolve().await
            })
        };
        if !self.wants_changes {
            return written;
        }
        // The server returns the attributes after the write with the reply, for which `settle` waits.
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

    /// Waits until pending writes of a node are answered.
    pub(super) async fn settle(&self, node: &Arc<Node>) -> Result<()> {
        data::settle(&self.session, node, &self.caller).resolve().await
    }

    /// Waits until all writes to a node are on stable storage.
    pub(super) async fn commit(&self, node: &Arc<Node>) -> Result<()> {
        data::commit(&self.session, node, &self.caller).resolve().await
    }

    /// Makes unstable writes of other clients stable too: a COMMIT of the whole file (RFC 1813 §3.3.21).
    pub(super) async fn commit_of_others(&self, node: &Arc<Node>) -> Result<()> {
        data::Server::commit(self.session.clone(), self.caller.clone(), node.clone()).await.map(drop)
    }

    /// Makes writes to all nodes stable.
    pub(super) async fn commit_all(self) -> Result<()> {
        let mut first = Ok(());
        for node in self.session.nodes.all().into_iter().filter(|node| node.data.is_dirty()) {
            first = first.and(self.commit(&node).await);
        }
        first
    }

    /// Flushes the data of a closed file in the background. A failure is logged: no caller remains.
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
