use tombolo_core::fs::{Ctx, RequestKey, SessionId};

use crate::Op;

/// What tells one operation of one request from all others.
///
/// The user is part of it: an answer is never given to somebody else, also where two users of one machine send the same
/// call with the same transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryKey {
    pub request: RequestKey,
    /// Whose sequence numbers these are; nobody's where the request key says it all.
    pub session: Option<SessionId>,
    pub op: Op,
    pub uid: u32,
    pub gid: u32,
}

/// Whose entries are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClientKey {
    /// One session's sequence numbers.
    Session(u64),
    /// The digest of an address.
    Address(u64),
}

impl EntryKey {
    /// `None` for a request that is never sent twice.
    #[inline]
    pub fn of(cx: &Ctx, op: Op) -> Option<Self> {
        let session = match cx.key {
            RequestKey::None => return None,
            RequestKey::Sequence(_) => Some(cx.session),
            RequestKey::Rpc { .. } => None,
        };
        Some(Self { request: cx.key, session, op, uid: cx.identity.uid, gid: cx.identity.gid })
    }

    /// Whether the key means the same to the next process. Sessions end with theirs.
    pub fn outlives_the_process(&self) -> bool {
        self.session.is_none()
    }

    /// Whose it is.
    pub fn client(&self) -> ClientKey {
        match (self.request, self.session) {
            (RequestKey::Rpc { client, .. }, _) => ClientKey::Address(client),
            (_, session) => ClientKey::Session(session.map_or(0, |session| session.0)),
        }
    }
}
