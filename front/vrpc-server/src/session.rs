//! Session of one link.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tombolo_core::fs::{FileSystem, WindowMirror};
use tombolo_core::{Budget, Ctx, Identity, KeyProperties, RequestId, RequestKey, SessionId};
use tombolo_host_links::ProtocolError;
use tombolo_host_links::server::{IdentityPolicy, LinkCutter, Request as Raw, Responder, Session};
use tombolo_mem::Region;
use tombolo_shm::link::Features;
use tombolo_wire_vrpc::{DecodeError, Header, Kind, Request};

use crate::callers::Callers;
use crate::exchange::Exchange;
use crate::handle_signature::HandleSigner;
use crate::operations;
use crate::options::Options;
use crate::parts::PartsPool;
use crate::pending::Pending;
use crate::reconnect_fence::SessionGuard;
use crate::turn::Turn;

/// A link's session. Once it and its pending requests are dropped, its file system is dropped, which releases
/// all resources of the peer.
pub(crate) struct LinkSession(Arc<SessionShared>);

/// The part of a session that pending requests share.
pub(crate) struct SessionShared {
    pub(crate) id: SessionId,
    pub(crate) file_system: Arc<dyn FileSystem>,
    pub(crate) options: Options,
    pub(crate) callers: Callers,
    pub(crate) identity_policy: IdentityPolicy,
    pub(crate) signer: HandleSigner,
    pub(crate) pending: Pending,
    pub(crate) turn: Arc<Turn>,
    pub(crate) parts_pool: PartsPool,
    pub(crate) budget: Arc<Budget>,
    /// The last field, so that it is dropped last: the next session relies on this one holding no resource
    /// and running no request.
    guard: SessionGuard,
}

impl LinkSession {
    pub(crate) fn new(
        id: SessionId,
        file_system: Arc<dyn FileSystem>,
        options: Options,
        identity_policy: IdentityPolicy,
        signer: HandleSigner,
        guard: SessionGuard,
    ) -> Self {
        Self(Arc::new(SessionShared {
            id,
            file_system,
            callers: Callers::new(options.callers_max),
            identity_policy,
            signer,
            pending: Pending::default(),
            turn: Arc::default(),
            parts_pool: PartsPool::default(),
            budget: Budget::new(options.limits),
            options,
            guard,
        }))
    }
}

impl Session for LinkSession {
    fn begun(&self, cutter: LinkCutter) {
        self.0.guard.begun(cutter);
    }

    fn serve(&self, raw: Raw<'_>, responder: Responder) {
        let shared = &self.0;
        match Request::decode(raw.kind, &raw.body, raw.frame) {
            Ok((header, _)) if header.quiet && !responder.features().contains(Features::QUIET) => {
                responder.cut(ProtocolError::Malformed("a quiet request without the extension".into()));
            }
            Ok((header, request)) => {
                let responder = if header.quiet { responder.quietly() } else { responder };
                shared.begin(&header, &request, responder);
            }
            Err(error) => responder.cut(malformed(&error)),
        }
    }

    fn window(&self) -> Option<Arc<OwnedFd>> {
        self.0.file_system.versions()?.window()
    }

    fn mirror_window(&self, memory: &Region, offset: usize) -> Option<Box<dyn WindowMirror>> {
        self.0.file_system.versions()?.mirror(memory, offset)
    }

    fn ended(&self) {
        self.0.turn.end();
        self.0.pending.end();
    }
}

/// Properties of all request keys: `reconnect_fence` separates a client's links, and a link has at most 1,024
/// slots (docs/formats/link.md).
const KEY_PROPERTIES: KeyProperties = KeyProperties::FENCED.union(KeyProperties::FEW_UNDER_WAY);

impl SessionShared {
    fn begin(self: &Arc<Self>, header: &Header, request: &Request<'_>, responder: Responder) {
        let kind = request.kind();
        tracing::trace!(session = self.id.0, sequence = header.sequence, ?kind, "request");
        let identity = match needs_no_identity(kind) {
            true => Identity::default(),
            false => match self.callers.identity(header.caller) {
                Some(identity) => identity,
                None => {
                    return responder
                        .cut(ProtocolError::Malformed(format!("unknown caller {}", header.caller.0).into()));
                }
            },
        };
        let key = RequestKey {
            client: self.guard.client_id(),
            key: header.sequence.into(),
            properties: KEY_PROPERTIES,
        };
        let mut parts = self.parts_pool.take();
        let cx = Ctx {
            request: RequestId(header.sequence),
            key: Some(key),
            identity,
            interrupt: parts.take_interrupt(),
            want: header.want,
            ..Ctx::root(self.id)
        };
        operations::dispatch(
            Exchange {
                shared: self,
                cx: &cx,
                caller: header.caller,
                wants_handles: header.handles,
                is_in_order: header.quiet && kind == Kind::Write,
                kind,
                parts,
                responder,
            },
            request,
        );
        PartsPool::return_interrupt(cx.interrupt);
    }
}

/// Returns `true` for requests about the session itself, and for FORGET, which no caller can be refused.
fn needs_no_identity(kind: Kind) -> bool {
    matches!(kind, Kind::Null | Kind::Profile | Kind::Caller | Kind::Interrupt | Kind::Forget)
}

/// Converts a decoding error to a protocol violation.
pub(crate) fn malformed(error: &DecodeError) -> ProtocolError {
    ProtocolError::Malformed(error.to_string().into())
}
