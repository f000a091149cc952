//! What a session does that outlives its process, and which other processes have begun.

use super::{Exchange, Options, Session, Slot};
use crate::kept::{Agreement, Kept, Missing};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tombolo_core::{Interrupt, SessionId};
use tombolo_host_runtime::task;
use tombolo_wire_fuse::layout::header::InHeader;
use tombolo_wire_fuse::{Opcode, Request, Unique};
use zerocopy::FromBytes;

impl Session {
    /// A session that outlives the process. One that an earlier process has begun goes on.
    pub fn kept(id: SessionId, kept: &Kept, options: Options) -> Arc<Session> {
        let session = Session::over(id, Arc::new(kept.clone()), Some(kept.clone()), options);
        if let Some(Agreement { capabilities, minor }) = kept.agreement() {
            tracing::debug!(session = id.0, minor, "session goes on");
            session.minor.store(minor, Ordering::Relaxed);
            session.agreed.store(capabilities, Ordering::Release);
            session.ready.store(true, Ordering::Release);
            session.told.store(true, Ordering::Release);
        }
        Arc::new(session)
    }

    /// The session is over, for later processes too: what comes late finds nothing.
    pub fn end(&self) {
        self.interrupt_all();
        if let Some(kept) = &self.kept {
            kept.end();
        }
    }

    /// Whether an earlier process may know what this one does not.
    pub(super) fn is_resumed(&self) -> bool {
        self.kept.as_ref().is_some_and(Kept::is_resumed)
    }

    pub(super) fn handle_kept<E: Exchange>(
        self: &Arc<Self>,
        kept: &Kept,
        slot: Box<Slot>,
        mut exchange: E,
    ) -> Option<(Box<Slot>, E)> {
        let opcode = InHeader::read_from_prefix(&slot.head).ok();
        let opcode = opcode.and_then(|(raw, _)| Opcode::from_wire(raw.opcode));
        if matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget)) {
            // The next process does not find it from here on, so it is never counted twice. Killed before it
            // is counted, this one loses it, and the node is kept.
            exchange.send_nothing();
        }
        match self.missing(kept, &slot) {
            None => self.perform(slot, exchange),
            Some(missing) => {
                self.find_and_perform(kept.clone(), missing, slot, exchange);
                None
            }
        }
    }

    fn missing(&self, kept: &Kept, slot: &Slot) -> Option<Missing> {
        if !kept.is_resumed() {
            return None;
        }
        let decoded = Request::decode(&slot.head, self.agreed()).ok()?;
        kept.missing(&decoded)
    }

    /// Performs a request when what it names has been found that an earlier process has left.
    fn find_and_perform<E: Exchange>(
        self: &Arc<Self>,
        kept: Kept,
        missing: Missing,
        slot: Box<Slot>,
        exchange: E,
    ) {
        let (session, ends) = (self.clone(), self.ends.load(Ordering::SeqCst));
        let unique = InHeader::read_from_prefix(&slot.head).map(|(raw, _)| Unique(raw.unique)).ok();
        task::spawn(async move {
            kept.find(session.ctx_root(Interrupt::default()), &missing).await;
            if let Some((slot, exchange)) = session.perform(slot, exchange) {
                exchange.retire(slot);
            } else if session.ends.load(Ordering::SeqCst) != ends {
                // All were asked to end while this was not among them yet.
                unique.into_iter().for_each(|unique| session.pending.interrupt(unique));
            }
        });
    }
}
