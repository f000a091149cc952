//! Keys of the entries of a table.

use tombolo_core::{ClientId, Ctx, KeyProperties, RequestKey, SessionId};

use tombolo_core::fs::Op;

/// Identification of an operation of a request.
///
/// The user is part of the key: a reply is never returned to another user, even if two users of one machine
/// send the same call with the same transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryKey {
    pub request: RequestKey,
    /// Session of the request, if the operation's effect ends with the session (a lock, an unnamed file): the
    /// same request in another session must be performed there.
    pub session: Option<SessionId>,
    pub op: Op,
    pub uid: u32,
    pub gid: u32,
}

/// A client whose entries are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClientKey {
    client: ClientId,
    properties: KeyProperties,
}

impl ClientKey {
    /// Returns `true` if the client cannot have more than 1,024 requests in progress, the default of
    /// [`Limits::entries_per_client`](super::options::Limits::entries_per_client).
    pub fn has_few_under_way(&self) -> bool {
        self.properties.contains(KeyProperties::FEW_UNDER_WAY)
    }
}

impl EntryKey {
    /// Returns the key of an operation; `None` for a request that is never repeated.
    #[inline]
    pub fn of(cx: &Ctx, op: Op) -> Option<Self> {
        let request = cx.key?;
        let session = matches!(op, Op::Lock | Op::Unlock | Op::CreateUnnamed).then_some(cx.session);
        Some(Self { request, session, op, uid: cx.identity.uid, gid: cx.identity.gid })
    }

    /// Returns the key like [`of`](Self::of), for idempotent operations, which are harmful only when repeated
    /// after later requests. Fenced requests cannot be repeated then: see [`KeyProperties::FENCED`].
    #[inline]
    pub fn of_repeatable(cx: &Ctx, op: Op) -> Option<Self> {
        if cx.key?.properties.contains(KeyProperties::FENCED) {
            return None;
        }
        Self::of(cx, op)
    }

    /// Returns `true` if the key is valid in the next process. Sessions end with their process.
    pub fn outlives_the_process(&self) -> bool {
        self.session.is_none()
    }

    /// Returns the client among whose entries the operation counts.
    pub fn client(&self) -> ClientKey {
        let RequestKey { client, properties, .. } = self.request;
        ClientKey { client, properties }
    }
}
