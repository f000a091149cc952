//! One link's session: requests in, answers out.

use std::sync::Arc;

use tombolo_core::fs::FileSystem;
use tombolo_core::{Budget, Ctx, Identity, RequestId, RequestKey, SessionId};
use tombolo_host_links::Lie;
use tombolo_host_links::server::{LinkCutter, Request as Raw, Responder, Session, Voice};
use tombolo_wire_vrpc::{DecodeError, Header, Kind, Request};

use crate::callers::Callers;
use crate::exchange::Exchange;
use crate::fence::Stay;
use crate::operations;
use crate::options::Options;
use crate::parts::Stock;
use crate::pending::Pending;
use crate::seal::Seal;

/// One link's session. With it go the last reference to its file system, and so all that the peer holds there.
pub(crate) struct LinkSession(Arc<Shared>);

/// What requests that pend keep of a session.
pub(crate) struct Shared {
    pub(crate) id: SessionId,
    pub(crate) file_system: Arc<dyn FileSystem>,
    pub(crate) options: Options,
    pub(crate) callers: Callers,
    pub(crate) voice: Voice,
    pub(crate) seal: Seal,
    pub(crate) pending: Pending,
    pub(crate) stock: Stock,
    pub(crate) budget: Arc<Budget>,
    /// Last, so that it is dropped last: whoever waits for it may rely on nothing being held or done any more.
    stay: Stay,
}

impl LinkSession {
    pub(crate) fn new(
        id: SessionId,
        file_system: Arc<dyn FileSystem>,
        options: Options,
        voice: Voice,
        seal: Seal,
        stay: Stay,
    ) -> Self {
        Self(Arc::new(Shared {
            id,
            file_system,
            callers: Callers::new(options.callers_max),
            voice,
            seal,
            pending: Pending::default(),
            stock: Stock::default(),
            budget: Budget::new(options.limits),
            options,
            stay,
        }))
    }
}

impl Session for LinkSession {
    fn begun(&self, cutter: LinkCutter) {
        self.0.stay.begun(cutter);
    }

    fn serve(&self, raw: Raw<'_>, responder: Responder) {
        let shared = &self.0;
        match Request::decode(raw.kind, &raw.body, raw.frame) {
            Ok((header, request)) => shared.begin(&header, &request, responder),
            Err(error) => responder.cut(senseless(&error)),
        }
    }

    fn ended(&self) {
        self.0.pending.end();
    }
}

impl Shared {
    fn begin(self: &Arc<Self>, header: &Header, request: &Request<'_>, responder: Responder) {
        let kind = request.kind();
        tracing::trace!(session = self.id.0, sequence = header.sequence, ?kind, "request");
        let identity = match speaks_for_nobody(kind) {
            true => Identity::default(),
            false => match self.callers.identity(header.caller) {
                Some(identity) => identity,
                None => {
                    return responder
                        .cut(Lie::Senseless(format!("nobody is caller {}", header.caller.0).into()));
                }
            },
        };
        let parts = self.stock.take();
        let cx = Ctx {
            session: self.id,
            request: RequestId(header.sequence),
            key: RequestKey::Sequence { asker: self.stay.asker(), number: header.sequence },
            identity,
            deadline: None,
            interrupt: parts.interrupt.clone(),
            want: header.want,
        };
        operations::dispatch(
            Exchange {
                shared: self,
                cx: &cx,
                caller: header.caller,
                wants_handles: header.handles,
                kind,
                parts,
                responder,
            },
            request,
        );
    }
}

/// Requests to the session itself, and what nobody can be refused.
fn speaks_for_nobody(kind: Kind) -> bool {
    matches!(kind, Kind::Null | Kind::Profile | Kind::Caller | Kind::Interrupt | Kind::Forget)
}

/// A message that breaks the protocol.
pub(crate) fn senseless(error: &DecodeError) -> Lie {
    Lie::Senseless(error.to_string().into())
}
