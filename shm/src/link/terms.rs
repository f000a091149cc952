//! What two sides have to agree on before they share memory.

use std::fmt;
use std::ops::{BitAnd, BitOr};

use crate::link::ends::{DoorbellKind, Epoch, Role};
use crate::link::layout::Layout;

/// The version of the layout and of the handshake that this crate speaks.
pub const VERSION: u32 = 1;

/// Extensions, one bit each. Those that a peer names and this version does not know are kept until both
/// sides' are intersected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u64);

impl Features {
    /// No extension.
    pub const NONE: Features = Features(0);
    /// The client answers call-backs.
    pub const CALL_BACKS: Features = Features(1);
    /// The server takes the memory of further domains from the client. At a socket only.
    pub const FORWARDED_REGIONS: Features = Features(1 << 1);
    /// The client's memory may be passed on to further domains, of its own user and of root. At a socket
    /// only.
    pub const REGION_FORWARDING: Features = Features(1 << 2);
    /// The server's window comes along with its memory. At a socket only.
    pub const WINDOW: Features = Features(1 << 3);
    /// Those that need a socket beside the link.
    pub const AT_SOCKETS: Features =
        Features(Features::FORWARDED_REGIONS.0 | Features::REGION_FORWARDING.0 | Features::WINDOW.0);

    /// The set of those bits, known or not.
    pub fn from_bits(bits: u64) -> Features {
        Features(bits)
    }

    /// The bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Those that are not among `other`.
    pub fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// Whether all of `other` are among them.
    pub fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitAnd for Features {
    type Output = Features;
    fn bitand(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

impl BitOr for Features {
    type Output = Features;
    fn bitor(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

/// A set of ways to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Doorbells(u32);

impl Doorbells {
    /// [`DoorbellKind::Futex`].
    pub const FUTEX: Doorbells = Doorbells(1);
    /// [`DoorbellKind::Silent`].
    pub const SILENT: Doorbells = Doorbells(2);

    /// The set of those bits, known or not.
    pub fn from_bits(bits: u32) -> Doorbells {
        Doorbells(bits)
    }

    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether that way is among them.
    pub fn contains(self, doorbell: DoorbellKind) -> bool {
        let bit = match doorbell {
            DoorbellKind::Futex => Doorbells::FUTEX,
            DoorbellKind::Silent => Doorbells::SILENT,
        };
        self.0 & bit.0 != 0
    }
}

impl BitAnd for Doorbells {
    type Output = Doorbells;
    fn bitand(self, other: Doorbells) -> Doorbells {
        Doorbells(self.0 & other.0)
    }
}

impl BitOr for Doorbells {
    type Output = Doorbells;
    fn bitor(self, other: Doorbells) -> Doorbells {
        Doorbells(self.0 | other.0)
    }
}

/// What is spoken over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The file-system waist in a layout of its own (docs/formats/vrpc.md).
    Vrpc,
    /// Messages of ONC RPC, as NFS sends them over a network.
    OncRpc,
}

/// Which life of a client or of a server: random, made when it starts. A client keeps its own over all its
/// links, so that a server knows it again.
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

/// What both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// The version of layout and handshake.
    pub version: u32,
    /// Extensions that both speak.
    pub features: Features,
    /// What is spoken.
    pub protocol: Protocol,
    /// Where things lie in either region.
    pub layout: Layout,
    /// Which life of the link it is.
    pub epoch: Epoch,
    /// How one side wakes the other.
    pub doorbell: DoorbellKind,
    /// Which life of the server it is.
    pub server: Incarnation,
}

// The numbers that stand for them in every message and header.

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
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<DoorbellKind> {
        [DoorbellKind::Futex, DoorbellKind::Silent].into_iter().find(|doorbell| doorbell.number() == number)
    }
}

impl Protocol {
    /// The number that stands for it.
    pub fn number(self) -> u32 {
        match self {
            Protocol::Vrpc => 1,
            Protocol::OncRpc => 2,
        }
    }

    /// What the number stands for, if anything.
    pub fn from_number(number: u32) -> Option<Protocol> {
        [Protocol::Vrpc, Protocol::OncRpc].into_iter().find(|protocol| protocol.number() == number)
    }
}
