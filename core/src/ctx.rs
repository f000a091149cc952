//! Per-request context: session, identity, deadline, hints.

use std::sync::Arc;
use std::time::Instant;

use bitflags::bitflags;

use crate::Interrupt;
use crate::fs::Attr;

/// The id of a session (one client's use of an export), chosen by the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// The id of one request in the logs, from the front end that received it to the back end that answered it.
/// Other sessions may use the same ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A client's identity, as established by its front end: stable over reconnects and server restarts. Part of
/// it cannot be chosen by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub [u8; 24]);

impl From<u64> for ClientId {
    /// Stores a number in the first eight bytes, little-endian.
    fn from(number: u64) -> Self {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Self(bytes)
    }
}

bitflags! {
    /// Guarantees of a front end about a client's requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct KeyProperties: u8 {
        /// No request of the client's former connection to an export runs concurrently with one of a later
        /// connection: a retransmission may find its original completed, but never in progress.
        const FENCED = 1;
        /// The client cannot have more than 1,024 requests outstanding.
        const FEW_UNDER_WAY = 2;
    }
}

/// The key by which a retransmitted request is recognised, derived by the front end from its protocol. It is
/// independent of the connection and stays valid for the next server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    /// The client that sent the request, over whichever connection.
    pub client: ClientId,
    /// Number that is the same in retransmissions of a request, and differs from those of the client's other
    /// requests as far as the protocol ensures that.
    pub key: u128,
    /// Guarantees that apply to all of the client's requests.
    pub properties: KeyProperties,
}

/// The user on whose behalf an operation runs, after id mapping and squashing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// User id for permission checks and as the owner of new nodes.
    pub uid: u32,
    /// Group id for permission checks, and of new nodes unless their directory determines another.
    pub gid: u32,
    /// Supplementary groups; `None` when there are none.
    pub groups: Option<Arc<[u32]>>,
}

impl Identity {
    /// The superuser.
    pub const ROOT: Self = Self { uid: 0, gid: 0, groups: None };

    /// Returns the supplementary groups.
    #[inline]
    pub fn groups(&self) -> &[u32] {
        self.groups.as_deref().unwrap_or_default()
    }

    /// Returns `true` if `gid` is the user's group or one of the supplementary groups.
    #[inline]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups().contains(&gid)
    }
}

bitflags! {
    /// Optional results requested by a front end because its protocol carries them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Want: u8 {
        /// Attributes before and after each mutation (RFC 1813 §2.6, `wcc_data`).
        const CHANGE_ATTRS = 1;
        /// Attributes at open (close-to-open consistency).
        const OPEN_ATTRS = 2;
    }
}

/// The context of one request. Cheap to clone; an operation that answers later keeps a clone.
#[derive(Clone, Debug)]
pub struct Ctx {
    /// Session in which the request's nodes and openings are valid.
    pub session: SessionId,
    /// The request's id in the logs.
    pub request: RequestId,
    /// Key that identifies retransmissions; `None` if the request is not repeated, or may be executed twice.
    pub key: Option<RequestKey>,
    /// User on whose behalf the operation runs.
    pub identity: Identity,
    /// Time after which the caller no longer waits for the answer; `None`: never.
    pub deadline: Option<Instant>,
    /// Cancellation of the operation by the caller, before its answer.
    pub interrupt: Interrupt,
    /// Optional results that the caller will use; others are omitted.
    pub want: Want,
    /// For `getattr`: accept cached attributes fetched after this instant, so that a layer reuses attributes
    /// that accompanied another answer. For `lookup`: reject older cached entries, even trusted ones.
    pub fetched_since: Option<Instant>,
    /// For a removal: attributes from the caller's recent look-up of the name. The name may refer to another
    /// node by now; a back end for which that does not matter need not look the name up again.
    pub found: Option<Arc<Attr>>,
    /// For `open`: the caller checks permissions and fetches attributes itself, in parallel with using the
    /// opening. A back end that would have to query a server for them opens at once; operations on the
    /// opening are checked where they are performed.
    pub opens_unchecked: bool,
    /// For `readdir`: the subdirectories will be listed next. A back end may prefetch them and answer later
    /// listings from the prefetched data; [`DirPage::asked`](crate::fs::DirPage::asked) then returns the time
    /// at which they were requested.
    pub lists_subdirectories: bool,
}

impl Ctx {
    /// Returns a context of the superuser without a deadline, for tools and tests.
    pub fn root(session: SessionId) -> Self {
        Self {
            session,
            request: RequestId::default(),
            key: None,
            identity: Identity::ROOT,
            deadline: None,
            interrupt: Interrupt::default(),
            want: Want::empty(),
            fetched_since: None,
            found: None,
            opens_unchecked: false,
            lists_subdirectories: false,
        }
    }

    /// Returns a context for a query that the server makes for itself while it performs this request: with
    /// the superuser's identity, and without the request's key, optional results, interrupt and deadline.
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
