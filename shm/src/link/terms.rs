//! The parameters negotiated before memory is shared.

use std::fmt;
use std::ops::{BitAnd, BitOr};

use crate::link::ends::{DoorbellKind, Epoch, Role};
use crate::link::layout::Layout;

/// The version of layout and handshake that this crate implements.
pub const VERSION: u32 = 1;

/// A set of extensions, one bit each. Unknown bits of a peer are retained until both sides' sets are
/// intersected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u64);

impl Features {
    /// The empty set.
    pub const NONE: Features = Features(0);
    /// The client answers call-backs.
    pub const CALL_BACKS: Features = Features(1);
    /// The server accepts the memory of further domains from the client. Only for links with a socket.
    pub const FORWARDED_REGIONS: Features = Features(1 << 1);
    /// The client's memory may be forwarded to further domains, of its own user and of root. Only for links
    /// with a socket.
    pub const REGION_FORWARDING: Features = Features(1 << 2);
    /// The server sends its window along with its memory. Only for links with a socket.
    pub const WINDOW: Features = Features(1 << 3);
    /// Requests of vrpc may be quiet, and openings prompt (docs/protocols/vrpc.md, "Quiet requests").
    pub const QUIET: Features = Features(1 << 4);
    /// The server's end has a mirror of its window behind the layout. Only for links in a file.
    pub const WINDOW_MIRROR: Features = Features(1 << 5);
    /// Extensions that need a file.
    pub const IN_FILES: Features = Features::WINDOW_MIRROR;
    /// Extensions that need a link control socket.
    pub const AT_SOCKETS: Features =
        Features(Features::FORWARDED_REGIONS.0 | Features::REGION_FORWARDING.0 | Features::WINDOW.0);
    /// Extensions that this implementation supports on either side.
    pub const SUPPORTED: Features =
        Features(Features::AT_SOCKETS.0 | Features::IN_FILES.0 | Features::QUIET.0);

    /// Returns the extensions that are not in `other`.
    pub fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// Returns `true` if all of `other` are contained.
    pub fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A set of doorbells, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Doorbells(u32);

impl Doorbells {
    /// [`DoorbellKind::Futex`].
    pub const FUTEX: Doorbells = Doorbells(1);
    /// [`DoorbellKind::Silent`].
    pub const SILENT: Doorbells = Doorbells(2);
    /// [`DoorbellKind::Bell`].
    pub const BELL: Doorbells = Doorbells(4);

    /// Returns `true` if the set contains the doorbell.
    pub fn contains(self, doorbell: DoorbellKind) -> bool {
        let bit = match doorbell {
            DoorbellKind::Futex => Doorbells::FUTEX,
            DoorbellKind::Silent => Doorbells::SILENT,
            DoorbellKind::Bell => Doorbells::BELL,
        };
        self.0 & bit.0 != 0
    }
}

macro_rules! bit_set {
    ($($set:ident: $bits:ty;)+) => {$(
        impl $set {
            /// Returns the set of those bits, known or not.
            pub fn from_bits(bits: $bits) -> $set {
                $set(bits)
            }

            /// Returns the bits, as sent in messages.
            pub fn bits(self) -> $bits {
                self.0
            }
        }

        impl BitAnd for $set {
            type Output = $set;
            fn bitand(self, other: $set) -> $set {
                $set(self.0 & other.0)
            }
        }

        impl BitOr for $set {
            type Output = $set;
            fn bitor(self, other: $set) -> $set {
                $set(self.0 | other.0)
            }
        }
    )+};
}

bit_set! {
    Features: u64;
    Doorbells: u32;
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
