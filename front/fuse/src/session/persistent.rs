//! Sessions that survive a server restart.

use super::{Exchange, Options, Session, Slot};
use crate::persistent::{Missing, Negotiated, PersistentFs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tombolo_core::{Interrupt, SessionId};
use tombolo_host_runtime::task;
use tombolo_wire_fuse::layout::header::InHeader;
use tombolo_wire_fuse::{Opcode, Request, Unique};
use zerocopy::FromBytes;

impl Session {
    /// Creates a session that survives the process, or resumes the one that an earlier process began.
    pub fn persistent(id: SessionId, persistent: &PersistentFs, options: Options) -> Arc<Session> {
        let session =
            Session::with_state(id, Arc::new(persistent.clone()), Some(persistent.clone()), options);
        if let Some(Negotiated { capabilities, minor }) = persistent.negotiated() {
            tracing::debug!(session = id.0, minor, "session resumed");
            session.minor.store(minor, Ordering::Relaxed);
            session.negotiated.store(capabilities, Ordering::Release);
            session.ready.store(true, Ordering::Release);
            session.init_sent.store(true, Ordering::Release);
        }
        Arc::new(session)
    }

    /// Interrupts all pending requests. Ends a persistent session for later processes too: its late requests
    /// for nodes other than the root and for openings fail with ESTALE.
    pub fn end(&self) {
        self.interrupt_all();
        if let Some(persistent) = &self.persistent {
            persistent.end();
        }
    }

    /// Returns `true` if an earlier process served this session: its in-memory state may be incomplete.
    pub(super) fn is_resumed(&self) -> bool {
        self.persistent.as_ref().is_some_and(PersistentFs::is_resumed)
    }

    pub(super) fn handle_persistent<E: Exchange>(
        self: &Arc<Self>,
        persistent: &PersistentFs,
        slot: Box<Slot>,
        mut exchange: E,
    ) -> Option<(Box<Slot>, E)> {
        let opcode = InHeader::read_from_prefix(&slot.head).ok();
        let opcode = opcode.and_then(|(raw, _)| Opcode::from_wire(raw.opcode));
        if matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget)) {
            // The FORGET is completed before it is counted: the next process does not repeat a completed
            // request, so that it is never counted twice. If this process is killed in between, the FORGET is
            // lost and the node is retained.
            exchange.send_nothing();
        }
        match self.missing(persistent, &slot) {
            None => self.perform(slot, exchange),
            Some(missing) => {
                self.find_and_perform(persistent.clone(), missing, slot, exchange);
                None
            }
        }
    }

    fn missing(&self, persistent: &PersistentFs, slot: &Slot) -> Option<Missing> {
        if !persistent.is_resumed() {
            return None;
        }
        let decoded = Request::decode(&slot.head, self.negotiated()).ok()?;
        persistent.missing(&decoded)
    }

    /// Performs a request after recovering `missing`, the nodes and openings of an earlier process in it.
    fn find_and_perform<E: Exchange>(
        self: &Arc<Self>,
        persistent: PersistentFs,
        missing: Missing,
        slot: Box<Slot>,
        exchange: E,
    ) {
        let (session, interrupt_epoch) = (self.clone(), self.interrupt_epoch.load(Ordering::SeqCst));
        let unique = InHeader::read_from_prefix(&slot.head).map(|(raw, _)| Unique(raw.unique)).ok();
        task::spawn(async move {
            persistent.find(session.ctx_root(Interrupt::default()), &missing).await;
            if let Some((slot, exchange)) = session.perform(slot, exchange) {
                exchange.retire(slot);
            } else if session.interrupt_epoch.load(Ordering::SeqCst) != interrupt_epoch {
                // `interrupt_all` ran before this request was pending.
                unique.into_iter().for_each(|unique| session.pending.interrupt_one(unique));
            }
        });
    }
}
