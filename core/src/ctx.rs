//! On whose behalf an operation runs.

use std::sync::Arc;
use std::time::Instant;

use bitflags::bitflags;

use crate::Interrupt;

/// A session: one client's use of an export. Unique within a server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Names one request in the logs, from the front end that took it in to the back end that answered it. Unique within a
/// server process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What tells a replayed request from a new one, as far as the protocol lets us know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestKey {
    /// The transport never replays (FUSE, virtio-fs).
    #[default]
    None,
    /// A request that its asker has numbered. It means the same over whatever link it comes, and to the next server process. The front
    /// end promises that no request of an earlier link of an asker to an export runs beside one of a later link: what is sent again can
    /// find the first time over, but never still under way.
    Sequence {
        /// Whose number it is.
        asker: Asker,
        /// The number, never used for another request of the same asker.
        number: u64,
    },
    /// An ONC RPC call. The client's port is not part of it: it changes when a client reconnects.
    Rpc {
        /// A digest of the client's address.
        client: u64,
        /// The transaction id (RFC 5531 §9).
        xid: u32,
        /// The procedure number.
        procedure: u32,
        /// A checksum over the call's arguments.
        checksum: u32,
    },
}

/// Whoever numbers requests: one life of a client, as it says itself, and what the server knows of the peer that says so. A peer that
/// names another's instance is another asker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Asker {
    /// Random bytes that the client has drawn.
    pub instance: [u8; 16],
    /// Who speaks, by means that the peer cannot choose; the same after a reconnect.
    pub peer: u64,
}

/// The user on whose behalf an operation runs, after id mapping and squashing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups; `None` when there are none.
    pub groups: Option<Arc<[u32]>>,
}

impl Identity {
    /// The superuser.
    pub const ROOT: Self = Self { uid: 0, gid: 0, groups: None };

    /// The supplementary groups.
    #[inline]
    pub fn groups(&self) -> &[u32] {
        self.groups.as_deref().unwrap_or_default()
    }

    /// True when `gid` is the group or one of the supplementary groups.
    #[inline]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups().contains(&gid)
    }
}

bitflags! {
    /// What a front end wants beside the plain answer, because its protocol carries it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Want: u8 {
        /// Attributes from before and after each mutation (RFC 1813 §2.6, `wcc_data`).
        const CHANGE_ATTRS = 1;
        /// Attributes at open (close-to-open consistency).
        const OPEN_ATTRS = 2;
    }
}

/// The context of one request. Cheap to clone; an operation that goes on later takes a clone with it.
#[derive(Clone, Debug)]
pub struct Ctx {
    /// The session that the request came in through.
    pub session: SessionId,
    /// The request's id in the logs.
    pub request: RequestId,
    /// What tells a replay.
    pub key: RequestKey,
    /// The user.
    pub identity: Identity,
    /// When the caller stops waiting.
    pub deadline: Option<Instant>,
    /// The caller's wish to end early.
    pub interrupt: Interrupt,
    /// What the front end wants beside the plain answer.
    pub want: Want,
}

impl Ctx {
    /// A context of the superuser with no deadline, for tools and tests.
    pub fn root(session: SessionId) -> Self {
        Self {
            session,
            request: RequestId::default(),
            key: RequestKey::None,
            identity: Identity::ROOT,
            deadline: None,
            interrupt: Interrupt::default(),
            want: Want::empty(),
        }
    }
}
