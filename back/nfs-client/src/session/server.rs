//! The server as seen by file data: READ, WRITE and COMMIT of a node, even if its handle changes.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::fs::ReadDone;
use tombolo_core::{Error, Result, Stability};
use tombolo_host_rpc::client::Interrupts;
use tombolo_mem::{Sink, Source};
use tombolo_wire_nfs3::{Procedure, Reply, Status, WriteVerifier, attr};

use super::Session;
use super::view::View;
use crate::caller::Caller;
use crate::calls::{ReadPiece, WritePiece, answered_or};
use crate::data::{Budget, FileData, Server, Sizes, Wrote};
use crate::nodes::Node;

/// Time for which an interrupted caller still waits with [`Interrupts::WhenSilent`], in case the reply
/// arrives.
const SILENCE: Duration = Duration::from_secs(2);

impl AsRef<FileData> for Node {
    fn as_ref(&self) -> &FileData {
        &self.data
    }
}

impl Server for Session {
    type Node = Node;

    fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    fn sizes(&self) -> Sizes {
        let sizes = self.nfs.sizes();
        Sizes {
            read_max: sizes.read_max as usize,
            write_max: sizes.write_max as usize,
            read_ahead_max: self.read_ahead_bytes,
            read_ahead_time: self.read_ahead_time,
        }
    }

    fn has_permit(&self) -> bool {
        self.nfs.rpc().has_permit()
    }

    fn permit(&self) -> impl Future<Output = ()> + Send + 'static {
        self.nfs.rpc().permit()
    }

    fn now(&self) -> Instant {
        self.nfs.rpc().now()
    }

    fn known_size(&self, node: &Node) -> u64 {
        node.told().size
    }

    /// Waits until the caller is interrupted and may stop waiting. With [`Interrupts::WhenSilent`] that is
    /// [`SILENCE`] after the interrupt, even if the server replies to other calls meanwhile.
    fn interruption(&self, caller: &Caller) -> impl Future<Output = ()> + Send + 'static {
        let raised = caller.interrupt.raised();
        let rpc = self.nfs.rpc().clone();
        let interrupts = self.interrupts;
        async move {
            match interrupts {
                Interrupts::Never => std::future::pending().await,
                Interrupts::Always => raised.await,
                Interrupts::WhenSilent => {
                    raised.await;
                    rpc.sleep(SILENCE).await;
                }
            }
        }
    }

    async fn read(
        self: Arc<Self>,
        caller: Caller,
        node: Arc<Node>,
        offset: u64,
        into: Sink,
    ) -> Result<ReadDone> {
        let view = View::for_data(self, caller);
        let asked = view.now();
        let call = |file| view.session.nfs.read_piece(&view.caller, ReadPiece { file, offset }, into.clone());
        let done = answered_or(view.on(&node, call).await?, |attributes| {
            view.absorb_hint(&node, &attributes, asked);
        })?;
        view.absorb_hint(&node, &done.attributes, asked);
        Ok(ReadDone { count: done.count, eof: done.eof })
    }

    async fn write(
        self: Arc<Self>,
        caller: Caller,
        node: Arc<Node>,
        offset: u64,
        from: Source,
        stability: Stability,
    ) -> Result<Wrote> {
        let view = View::for_data(self, caller);
        let asked = view.now();
        let stable = attr::stable_how(stability);
        let frame = view.session.packed_writes.frame(&view.session, &from);
        let call = |file, frame| {
            let piece = WritePiece { file, offset, stable };
            view.session.nfs.write_piece(&view.caller, piece, &from, frame)
        };
        let mut reply = view.on(&node, |file| call(file, frame.as_ref())).await?;
        if frame.is_some() && matches!(reply, Reply::Failed(Status::NotSupp, _)) {
            view.session.packed_writes.give_up();
            reply = view.on(&node, |file| call(file, None)).await?;
        }
        let ok = view.changed(&node, reply, asked)?;
        view.absorb_change(&node, &ok.file_wcc, asked);
        let stability = attr::stability(ok.committed);
        Ok(Wrote { count: ok.count as usize, stability, verifier: ok.verifier })
    }

    async fn commit(self: Arc<Self>, caller: Caller, node: Arc<Node>) -> Result<WriteVerifier> {
        let view = View::for_data(self, caller);
        let asked = view.now();
        let reply = view.on(&node, |file| view.session.nfs.commit(&view.caller, file, 0, 0)).await?;
        let ok = view.changed(&node, reply, asked)?;
        view.absorb_change(&node, &ok.file_wcc, asked);
        Ok(ok.verifier)
    }

    fn invalid_reply(&self, procedure: Procedure, what: &'static str) -> Error {
        self.nfs.invalid_reply(procedure, what)
    }
}

impl View {
    pub(super) fn for_data(session: Arc<Session>, caller: Caller) -> Self {
        Self { session, caller, wants_changes: false, lists_subdirectories: false }
    }
}
