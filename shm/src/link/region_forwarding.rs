//! Messages that announce further domains of a client (docs/formats/link.md, "Region forwarding").

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::address::Domain;
use crate::link::message::MessageError;
use crate::link::raw::raw;

/// Maximum number of a client's forwarded regions per link.
pub const FORWARDED_REGIONS_MAX: usize = 8;

/// A further domain, whose memory the server may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardRegion {
    /// Number on this link: [`Domain::FIRST_OTHER`] or above, and never used before.
    pub domain: Domain,
    /// Effective user of the process that created the memory. The memory is forwarded only to processes of
    /// that user and of root.
    pub user: u32,
    /// Size of the domain's memory, in bytes.
    pub bytes: u64,
    /// Addressable range, in bytes from the beginning.
    pub nameable: Range<u64>,
}

/// The server's reply to a forwarded region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionForwarded {
    /// Number of the domain in the client's message.
    pub domain: Domain,
    /// `true` if references may address the region's memory from now on. Otherwise the number stays unknown
    /// on this link.
    pub is_known: bool,
}

/// The client's announcement that it no longer forwards a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdraw {
    /// Number of the domain. The client must send this only when every request that refers to the domain's
    /// memory has been answered.
    pub domain: Domain,
}

/// A decoded message body; `None` for a wrong length.
type Decoded<T> = Option<Result<T, MessageError>>;

impl ForwardRegion {
    pub(super) fn decode(bytes: &[u8]) -> Decoded<ForwardRegion> {
        let raw = RawForwardRegion::read_from_bytes(bytes).ok()?;
        Some(foreign_domain(raw.domain).map(|domain| ForwardRegion {
            domain,
            user: raw.user.get(),
            bytes: raw.bytes.get(),
            nameable: raw.start.get()..raw.end.get(),
        }))
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let raw = RawForwardRegion {
            domain: U32::new(self.domain.0.into()),
            user: U32::new(self.user),
            bytes: U64::new(self.bytes),
            start: U64::new(self.nameable.start),
            end: U64::new(self.nameable.end),
        };
        bytes.extend_from_slice(raw.as_bytes());
    }
}

impl RegionForwarded {
    pub(super) fn decode(bytes: &[u8]) -> Decoded<RegionForwarded> {
        let raw = RawOutcome::read_from_bytes(bytes).ok()?;
        Some(foreign_domain(raw.domain).and_then(|domain| match raw.outcome.get() {
            ACCEPTED => Ok(RegionForwarded { domain, is_known: true }),
            REFUSED => Ok(RegionForwarded { domain, is_known: false }),
            value => Err(MessageError::Value { what: "outcome", value }),
        }))
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let outcome = U32::new(if self.is_known { ACCEPTED } else { REFUSED });
        let raw = RawOutcome { domain: U32::new(self.domain.0.into()), outcome };
        bytes.extend_from_slice(raw.as_bytes());
    }
}

impl Withdraw {
    pub(super) fn decode(bytes: &[u8]) -> Decoded<Withdraw> {
        let raw = RawWithdraw::read_from_bytes(bytes).ok()?;
        Some(foreign_domain(raw.domain).map(|domain| Withdraw { domain }))
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(RawWithdraw { domain: U32::new(self.domain.0.into()) }.as_bytes());
    }
}

/// Decodes the number of a domain other than the link's own two.
fn foreign_domain(number: U32) -> Result<Domain, MessageError> {
    let domain = u16::try_from(number.get()).ok().map(Domain).filter(|domain| *domain >= Domain::FIRST_OTHER);
    domain.ok_or(MessageError::Value { what: "domain", value: number.get() })
}

// The body, behind a head of 16 bytes.
raw! {
    struct RawForwardRegion: 16..48 {
        16 domain: U32,
        20 user: U32,
        24 bytes: U64,
        32 start: U64,
        40 end: U64,
    }

    struct RawOutcome: 16..24 {
        16 domain: U32,
        20 outcome: U32,
    }

    struct RawWithdraw: 16..20 {
        16 domain: U32,
    }
}

const ACCEPTED: u32 = 1;
const REFUSED: u32 = 2;
