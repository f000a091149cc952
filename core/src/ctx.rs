//! On whose behalf an operation runs.

use std::sync::Arc;
use std::time::Instant;

use bitflags::bitflags;

use crate::Interrupt;
use crate::fs::Attr;

/// A session: one client's use of an export. Unique within a server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Names one request in the logs, from the front end that took it in to the back end that answered it. Unique
/// within a server process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A client, as its front end knows it: the same after a reconnect, and to the next server process. Part of
/// it is something that the peer cannot choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub [u8; 24]);

impl From<u64> for ClientId {
    /// A number in the first eight bytes, little-endian.
    fn from(number: u64) -> Self {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Self(bytes)
    }
}

bitflags! {
    /// What a front end promises of a client's requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct KeyProperties: u8 {
        /// No request of an earlier connection of the client to an export runs beside one of a later: what is
        /// sent again can find the first time over, but never still under way.
        const FENCED = 1;
        /// The client cannot have more than 1,024 requests under way.
        const FEW_UNDER_WAY = 2;
    }
}

/// What tells a request that is sent again from a new one. The front end makes it of what its protocol has.
/// It means the same over whatever connection it comes, and to the next server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    /// The client that sends it.
    pub client: ClientId,
    /// Tells it from the client's other requests.
    pub key: u128,
    /// What holds for all of the client's requests.
    pub properties: KeyProperties,
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
    /// What tells a replay; `None` where the transport never replays (FUSE, virtio-fs).
    pub key: Option<RequestKey>,
    /// The user.
    pub identity: Identity,
    /// When the caller stops waiting.
    pub deadline: Option<Instant>,
    /// The caller's wish to end early.
    pub interrupt: Interrupt,
    /// What the front end wants beside the plain answer.
    pub want: Want,
    /// For `getattr`: what the back end has learned since then will do, though it would ask another by
    /// itself. So a layer has the attributes that came along with an answer. For `lookup`: what was learned
    /// before will not do, whatever it is believed to be.
    pub known_since: Option<Instant>,
    /// For a removal: what the caller has just found under the name, where it looked. By now the name may
    /// lead to something else; where that does not matter, it need not be looked up again.
    pub found: Option<Arc<Attr>>,
    /// For `open`: the caller asks for the right and the attributes by itself, at the same time as it uses
    /// the opening. A back end that would have to ask another for them opens at once; what is done by the
    /// opening is checked where it is performed.
    pub opens_unasked: bool,
    /// For `readdir`: the directories below will be listed next. A back end may bring them along, and answer
    /// later from what came so: then [`DirPage::asked`](crate::fs::DirPage::asked) tells how old it is.
    pub lists_below: bool,
}

impl Ctx {
    /// A context of the superuser with no deadline, for tools and tests.
    pub fn root(session: SessionId) -> Self {
        Self {
            session,
            request: RequestId::default(),
            key: None,
            identity: Identity::ROOT,
            deadline: None,
            interrupt: Interrupt::default(),
            want: Want::empty(),
            known_since: None,
            found: None,
            opens_unasked: false,
            lists_below: false,
        }
    }

    /// For what a server asks by itself beside a request, whatever becomes of that: as the superuser, without
    /// its key and wishes, and without end.
    pub fn beside(&self) -> Self {
        Self {
            identity: Identity::ROOT,
            key: None,
            want: Want::empty(),
            interrupt: Interrupt::default(),
            deadline: None,
            ..self.clone()
        }
    }
}
