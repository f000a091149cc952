//! The parameters negotiated before memory is shared.

use std::fmt;

use bitflags::bitflags;

use crate::link::ends::{DoorbellKind, Epoch, Role};
use crate::link::layout::Layout;

/// The version of layout and handshake that this crate implements.
pub const VERSION: u32 = 1;

bitflags! {
    /// A set of extensions, one bit each. Unknown bits of a peer are retained until both sides' sets are
    /// intersected.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Features: u64 {
        /// The client answers call-backs.
        const CALL_BACKS = 1;
        /// The server accepts the memory of further domains from the client. Only for links with a socket.
        const FORWARDED_REGIONS = 1 << 1;
        /// The client's memory may be forwarded to further domains, of its own user and of root. Only for
        /// links with a socket.
        const REGION_FORWARDING = 1 << 2;
        /// The server sends its window along with its memory. Only for links with a socket.
        const WINDOW = 1 << 3;
        /// Requests of vrpc may be quiet, and openings prompt (docs/protocols/vrpc.md, "Quiet requests").
        const QUIET = 1 << 4;
        /// The server's end has a mirror of its window behind the layout. Only for links in a file.
        const WINDOW_MIRROR = 1 << 5;
        /// Extensions that need a file.
        const IN_FILES = Self::WINDOW_MIRROR.bits();
        /// Extensions that need a link control socket.
        const AT_SOCKETS =
            Self::FORWARDED_REGIONS.bits() | Self::REGION_FORWARDING.bits() | Self::WINDOW.bits();
        /// Extensions that this implementation supports on either side.
        const SUPPORTED = Self::AT_SOCKETS.bits() | Self::IN_FILES.bits() | Self::QUIET.bits();
        const _ = !0;
    }

    /// A set of doorbells, one bit each.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Doorbells: u32 {
        /// [`DoorbellKind::Futex`].
        const FUTEX = 1;
        /// [`DoorbellKind::Silent`].
        const SILENT = 2;
        /// [`DoorbellKind::Bell`].
        const BELL = 4;
        const _ = !0;
    }
}

impl From<DoorbellKind> for Doorbells {
    fn from(doorbell: DoorbellKind) -> Self {
        match doorbell {
            DoorbellKind::Futex => Self::FUTEX,
            DoorbellKind::Silent => Self::SILENT,
            DoorbellKind::Bell => Self::BELL,
        }
    }
}

/// The protocol used on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The file-system waist in its own layout (docs/formats/vrpc.md).
    Vrpc,
    /// ONC RPC messages, as NFS sends them over a network.
    OncRpc,
}

/// The identity of one life of a client or server: random, made when it starts. A client uses the same
/// incarnation for all its links, so that a server recognises the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub [u8; 16]);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The negotiated parameters of a link, constant during its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// Version of layout and handshake in use.
    pub version: u32,
    /// Extensions in use: those supported by both sides.
    pub features: Features,
    /// Protocol in use.
    pub protocol: Protocol,
    /// Layout of both regions.
    pub layout: Layout,
    /// Generation of the link, chosen by the server.
    pub epoch: Epoch,
    /// Means by which the sides wake each other.
    pub doorbell: DoorbellKind,
    /// Incarnation of the server.
    pub server: Incarnation,
}

// Numbers used in all messages and headers.

impl Role {
    pub(crate) fn number(self) -> u32 {
        match self {
            Role::Client => 1,
            Role::Server => 2,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Role> {
        [Role::Client, Role::Server].into_iter().find(|role| role.number() == number)
    }
}

impl DoorbellKind {
    pub(crate) fn number(self) -> u32 {
        match self {
            DoorbellKind::Futex => 1,
            DoorbellKind::Silent => 2,
            DoorbellKind::Bell => 3,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<DoorbellKind> {
        DoorbellKind::ALL.into_iter().find(|doorbell| doorbell.number() == number)
    }
}

impl Protocol {
    /// Returns the protocol's number in messages.
    pub fn number(self) -> u32 {
        match self {
            Protocol::Vrpc => 1,
            Protocol::OncRpc => 2,
        }
    }

    /// Returns the protocol with that number, if any.
    pub fn from_number(number: u32) -> Option<Protocol> {
        [Protocol::Vrpc, Protocol::OncRpc].into_iter().find(|protocol| protocol.number() == number)
    }
}
