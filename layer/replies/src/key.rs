use tombolo_core::{Asker, Ctx, RequestKey, SessionId};

use tombolo_core::fs::Op;

/// What tells one operation of one request from all others.
///
/// The user is part of it: an answer is never given to somebody else, also where two users of one machine send the same
/// call with the same transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryKey {
    pub request: RequestKey,
    /// Where what the operation gives ends with the session, and so must be given anew in the next one.
    pub session: Option<SessionId>,
    pub op: Op,
    pub uid: u32,
    pub gid: u32,
}

/// Whose entries are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClientKey {
    /// Who numbers its requests.
    Asker(Asker),
    /// The digest of an address.
    Address(u64),
}

impl ClientKey {
    /// Whether the client cannot have more requests under way than [`Limits`](super::options::Limits) keep of one: a link has 1024
    /// slots at most (docs/formats/link.md). A machine's processes can.
    pub fn has_few_under_way(&self) -> bool {
        matches!(self, Self::Asker(_))
    }
}

impl EntryKey {
    /// `None` for a request that is never sent twice.
    #[inline]
    pub fn of(cx: &Ctx, op: Op) -> Option<Self> {
        if cx.key == RequestKey::None {
            return None;
        }
        let session = matches!(op, Op::Lock | Op::Unlock | Op::CreateUnnamed).then_some(cx.session);
        Some(Self { request: cx.key, session, op, uid: cx.identity.uid, gid: cx.identity.gid })
    }

    /// As [`of`](Self::of), for what leaves the same any number of times, and hurts only if it comes after what was asked later. What its
    /// asker has numbered does not: see [`RequestKey::Sequence`].
    #[inline]
    pub fn of_repeatable(cx: &Ctx, op: Op) -> Option<Self> {
        if matches!(cx.key, RequestKey::Sequence { .. }) {
            return None;
        }
        Self::of(cx, op)
    }

    /// Whether the key means the same to the next process. Sessions end with theirs.
    pub fn outlives_the_process(&self) -> bool {
        self.session.is_none()
    }

    /// Whose it is.
    pub fn client(&self) -> ClientKey {
        match self.request {
            RequestKey::Rpc { client, .. } => ClientKey::Address(client),
            RequestKey::Sequence { asker, .. } => ClientKey::Asker(asker),
            RequestKey::None => ClientKey::Address(0),
        }
    }
}
