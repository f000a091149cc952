use tombolo_core::{ClientId, Ctx, KeyProperties, RequestKey, SessionId};

use tombolo_core::fs::Op;

/// What tells one operation of one request from all others.
///
/// The user is part of it: an answer is never given to another user, also where two users of one machine send
/// the same call with the same transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryKey {
    pub request: RequestKey,
    /// Where what the operation gives ends with the session, and so must be given anew in the next one.
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
    /// Whether the client cannot have more requests under way than [`Limits`](super::options::Limits) keep of
    /// one.
    pub fn has_few_under_way(&self) -> bool {
        self.properties.contains(KeyProperties::FEW_UNDER_WAY)
    }
}

impl EntryKey {
    /// `None` for a request that is never sent twice.
    #[inline]
    pub fn of(cx: &Ctx, op: Op) -> Option<Self> {
        let request = cx.key?;
        let session = matches!(op, Op::Lock | Op::Unlock | Op::CreateUnnamed).then_some(cx.session);
        Some(Self { request, session, op, uid: cx.identity.uid, gid: cx.identity.gid })
    }

    /// As [`of`](Self::of), for what leaves the same any number of times, and hurts only if it comes after
    /// what was asked later. Behind a fence it does not: see [`KeyProperties::FENCED`].
    #[inline]
    pub fn of_repeatable(cx: &Ctx, op: Op) -> Option<Self> {
        if cx.key?.properties.contains(KeyProperties::FENCED) {
            return None;
        }
        Self::of(cx, op)
    }

    /// Whether the key means the same to the next process. Sessions end with theirs.
    pub fn outlives_the_process(&self) -> bool {
        self.session.is_none()
    }

    /// The client.
    pub fn client(&self) -> ClientKey {
        let RequestKey { client, properties, .. } = self.request;
        ClientKey { client, properties }
    }
}
