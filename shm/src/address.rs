//! Global addresses: a domain number and an offset, valid on both sides of a link.
//!
//! The sender of a reference translates an offset in its memory to a global address, and the receiver checks
//! the address against its [`BaseTable`]. There is no other way from a global address to memory.

use std::fmt;
use std::ops::Range;

use thiserror::Error;
use tombolo_mem::{Region, Sink, Source};

use crate::link::{Ends, Extent, Role};

/// Number of bits of the offset; the domain's bits are above.
pub const OFFSET_BITS: u32 = 48;
/// Maximum number of domains in a [`BaseTable`].
pub const DOMAINS_MAX: usize = 64;

/// The number of a domain on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain(pub u16);

impl Domain {
    /// The client of the link.
    pub const CLIENT: Domain = Domain(0);
    /// The server of the link.
    pub const SERVER: Domain = Domain(1);
    /// First number of domains whose regions are forwarded on a link.
    pub const FIRST_OTHER: Domain = Domain(2);
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An address in the memory of a domain: domain (16 bits) and offset in bytes (48 bits). Validated by a
/// [`BaseTable`] only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GlobalAddress(u64);

impl GlobalAddress {
    /// Returns the address; `None` if the offset needs more than 48 bits.
    pub fn new(domain: Domain, offset: u64) -> Option<GlobalAddress> {
        (offset >> OFFSET_BITS == 0).then(|| GlobalAddress(u64::from(domain.0) << OFFSET_BITS | offset))
    }

    /// Returns the address with these bits; all values are allowed.
    pub fn from_bits(bits: u64) -> GlobalAddress {
        GlobalAddress(bits)
    }

    /// Returns the bits as sent over a link.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the number of the domain, known or not.
    pub fn domain(self) -> Domain {
        Domain((self.0 >> OFFSET_BITS) as u16)
    }

    /// Returns the offset, in bytes.
    pub fn offset(self) -> u64 {
        self.0 & ((1 << OFFSET_BITS) - 1)
    }
}

impl fmt::Debug for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.domain().0, self.offset())
    }
}

/// The reason why a reference cannot be resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AddressError {
    /// The domain has no memory in the table: it is unknown, or was withdrawn.
    #[error("unknown domain {domain}")]
    Domain {
        /// Number of the unknown domain.
        domain: Domain,
    },
    /// The range is not entirely inside the domain's addressable memory.
    #[error("{len_bytes} bytes at {offset:#x} of domain {domain} are not addressable")]
    Range {
        /// Domain of the address.
        domain: Domain,
        /// Offset in the domain's memory, in bytes.
        offset: u64,
        /// Length in bytes.
        len_bytes: u64,
    },
    /// The memory is to be written, but belongs to another domain.
    #[error("the memory of domain {domain} is read-only")]
    NotOurs {
        /// Domain of the address.
        domain: Domain,
    },
}

/// The reason why a domain cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RegionError {
    /// The table has a domain with that number.
    #[error("domain {domain} exists already")]
    Known {
        /// Number that is in use.
        domain: Domain,
    },
    /// The table has [`DOMAINS_MAX`] entries.
    #[error("more than {DOMAINS_MAX} domains")]
    TooMany,
    /// The addressable range exceeds the memory.
    #[error("the addressable range exceeds the memory of domain {domain}")]
    Outside {
        /// Number of the domain to be added.
        domain: Domain,
    },
}

/// The mapped memory of each domain, and its addressable range.
#[derive(Debug, Clone)]
pub struct BaseTable {
    /// Sorted by domain number.
    bases: Vec<(Domain, Base)>,
}

#[derive(Debug, Clone)]
struct Base {
    memory: Extent,
    /// Offsets in `memory` that addresses may refer to.
    nameable: Range<u64>,
    /// `true` if this side writes the memory.
    ours: bool,
}

/// A checked reference: a range inside a mapped region.
#[derive(Debug, Clone, Copy)]
pub struct Resolved<'a> {
    /// The mapped region that contains the range.
    pub region: &'a Region,
    /// Offset in the region, in bytes.
    pub offset: usize,
    /// Length, in bytes.
    pub len: usize,
}

impl BaseTable {
    /// Returns a table without domains.
    pub fn empty() -> BaseTable {
        BaseTable { bases: Vec::new() }
    }

    /// Returns the table of a link's two domains. Only the bulk memory of both is addressable: header, rings
    /// and buffers have owners that a reference must not bypass.
    pub fn of_link(ends: &Ends) -> BaseTable {
        let bulk = ends.layout.bulk_offset()..ends.layout.bytes();
        let own = Base { memory: ends.own.clone(), nameable: bulk.clone(), ours: true };
        let peer = Base { memory: ends.peer.clone(), nameable: bulk, ours: false };
        let (client, server) = match ends.role {
            Role::Client => (own, peer),
            Role::Server => (peer, own),
        };
        BaseTable { bases: vec![(Domain::CLIENT, client), (Domain::SERVER, server)] }
    }

    /// Adds a domain, whose memory this side only reads; `nameable` is the addressable range of offsets in
    /// it.
    pub fn add(&mut self, domain: Domain, memory: Extent, nameable: Range<u64>) -> Result<(), RegionError> {
        if nameable.start > nameable.end || nameable.end > memory.len().min(1 << OFFSET_BITS) {
            return Err(RegionError::Outside { domain });
        }
        if self.bases.len() >= DOMAINS_MAX {
            return Err(RegionError::TooMany);
        }
        match self.bases.binary_search_by_key(&domain, |(domain, _)| *domain) {
            Ok(_) => Err(RegionError::Known { domain }),
            Err(at) => {
                self.bases.insert(at, (domain, Base { memory, nameable, ours: false }));
                Ok(())
            }
        }
    }

    /// Removes a domain and returns its memory, if present. Earlier sources and sinks stay valid, because
    /// they keep the memory mapped.
    pub fn forget(&mut self, domain: Domain) -> Option<Extent> {
        let at = self.bases.binary_search_by_key(&domain, |(domain, _)| *domain).ok()?;
        Some(self.bases.remove(at).1.memory)
    }

    /// Resolves `len` bytes at the address, for reading.
    #[inline]
    pub fn resolve(&self, address: GlobalAddress, len: u64) -> Result<Resolved<'_>, AddressError> {
        self.base(address.domain())?.place(address, len)
    }

    /// Returns a source of `len` bytes at the address, which keeps the memory mapped.
    pub fn source(&self, address: GlobalAddress, len: u64) -> Result<Source, AddressError> {
        let place = self.resolve(address, len)?;
        let mut source = Source::new();
        source.push(place.region, place.offset, place.len).map_err(|_| range(address, len))?;
        Ok(source)
    }

    /// Returns a sink of `len` bytes at the address, which must be in this side's own memory.
    pub fn sink(&self, address: GlobalAddress, len: u64) -> Result<Sink, AddressError> {
        let base = self.base(address.domain())?;
        if !base.ours {
            return Err(AddressError::NotOurs { domain: address.domain() });
        }
        let place = base.place(address, len)?;
        let mut sink = Sink::new();
        sink.push(place.region, place.offset, place.len).map_err(|_| range(address, len))?;
        Ok(sink)
    }

    #[inline]
    fn base(&self, domain: Domain) -> Result<&Base, AddressError> {
        let at = self.bases.binary_search_by_key(&domain, |(domain, _)| *domain);
        let base = at.ok().and_then(|at| self.bases.get(at));
        base.map(|(_, base)| base).ok_or(AddressError::Domain { domain })
    }
}

impl Base {
    #[inline]
    fn place(&self, address: GlobalAddress, len: u64) -> Result<Resolved<'_>, AddressError> {
        let offset = address.offset();
        let end = offset.checked_add(len).ok_or(range(address, len))?;
        if offset < self.nameable.start || end > self.nameable.end {
            return Err(range(address, len));
        }
        let at = self.memory.place(offset, len).map_err(|_| range(address, len))?;
        // A length inside mapped memory always fits a `usize`.
        let len = usize::try_from(len).map_err(|_| range(address, len))?;
        Ok(Resolved { region: self.memory.region(), offset: at, len })
    }
}

#[cold]
fn range(address: GlobalAddress, len_bytes: u64) -> AddressError {
    AddressError::Range { domain: address.domain(), offset: address.offset(), len_bytes }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::link::Layout;

    fn at(domain: Domain, offset: u64) -> GlobalAddress {
        GlobalAddress::new(domain, offset).expect("48 bits")
    }

    #[test]
    fn references_resolve_to_equal_bytes_on_both_sides() {
        let layout = Layout::with_bulk(8, 8, 8192).expect("a layout");
        let (client, server) = Ends::in_memory(layout);
        let (ours, theirs) = (BaseTable::of_link(&client), BaseTable::of_link(&server));
        let place = at(Domain::CLIENT, layout.bulk_offset() + 100);
        assert_eq!(ours.sink(place, 5).expect("our own bulk memory").write_at(0, b"hello"), 5);
        let mut got = [0; 5];
        assert_eq!(theirs.source(place, 5).expect("to be read").read_at(0, &mut got), 5);
        assert_eq!(&got, b"hello");
        assert_eq!(theirs.sink(place, 5).err(), Some(AddressError::NotOurs { domain: Domain::CLIENT }));
        assert!(theirs.sink(at(Domain::SERVER, layout.bulk_offset()), 8192).is_ok());
    }

    #[test]
    fn rings_and_buffers_cannot_be_named() {
        let layout = Layout::with_bulk(8, 8, 8192).expect("a layout");
        let table = BaseTable::of_link(&Ends::in_memory(layout).0);
        let bulk = layout.bulk_offset();
        for (offset, len) in [
            (0, 1),
            (4096, 64),
            (bulk - 1, 2),
            (bulk, 8193),
            (bulk + 8192, 1),
            (bulk, u64::MAX),
            (1 << 47, 1),
        ] {
            let domain = Domain::CLIENT;
            let expected = AddressError::Range { domain, offset, len_bytes: len };
            assert_eq!(table.resolve(at(domain, offset), len).err(), Some(expected), "{offset} {len}");
        }
        assert!(table.resolve(at(Domain::CLIENT, bulk), 8192).is_ok());
        let stranger = at(Domain(2), bulk);
        assert_eq!(table.resolve(stranger, 1).err(), Some(AddressError::Domain { domain: Domain(2) }));
    }

    #[test]
    fn domains_are_added_and_forgotten() {
        let mut table = BaseTable::of_link(&Ends::in_memory(Layout::with_bulk(8, 8, 0).expect("a layout")).0);
        // Only a part in the middle of the memory is addressable.
        let memory = Extent::whole(Region::heap(8192));
        let domain = Domain(700);
        assert_eq!(table.add(domain, memory.clone(), 0..8193), Err(RegionError::Outside { domain }));
        table.add(domain, memory.clone(), 1024..4096).expect("new");
        assert_eq!(table.add(domain, memory.clone(), 0..1), Err(RegionError::Known { domain }));
        assert!(table.resolve(at(domain, 1024), 3072).is_ok());
        assert!(table.resolve(at(domain, 1023), 1).is_err());
        assert!(table.resolve(at(domain, 1024), 3073).is_err());
        assert!(table.resolve(at(domain, 4096), 1).is_err());
        assert_eq!(table.sink(at(domain, 1024), 1).err(), Some(AddressError::NotOurs { domain }));
        assert!(table.forget(domain).is_some());
        assert!(table.forget(domain).is_none());
        assert_eq!(table.resolve(at(domain, 1024), 1).err(), Some(AddressError::Domain { domain }));
        for number in 2..u16::try_from(DOMAINS_MAX).expect("small") {
            table.add(Domain(number), memory.clone(), 0..4096).expect("room");
        }
        assert_eq!(table.add(domain, memory, 0..1), Err(RegionError::TooMany));
    }

    proptest! {
        #[test]
        fn global_address_round_trips_its_parts(bits: u64, domain: u16, offset: u64) {
            let any = GlobalAddress::from_bits(bits);
            prop_assert_eq!(GlobalAddress::new(any.domain(), any.offset()), Some(any));
            match GlobalAddress::new(Domain(domain), offset) {
                Some(address) => prop_assert_eq!((address.domain(), address.offset()), (Domain(domain), offset)),
                None => prop_assert!(offset >= 1 << 48),
            }
        }

        /// Checks that a granted range is inside the addressable one, and that every such range is granted.
        #[test]
        fn resolved_addresses_are_inside(start in 0u64..9000, end in 0u64..9000, bits: u64, near in 0u64..9000, len in prop_oneof![0u64..9000, any::<u64>()]) {
            let memory = Extent::new(Region::heap(16384), 4096, 8192).expect("inside");
            let mut table = BaseTable::empty();
            let added = table.add(Domain(5), memory, start..end);
            prop_assert_eq!(added.is_ok(), start <= end && end <= 8192);
            for address in [GlobalAddress::from_bits(bits), at(Domain(5), near)] {
                let good = added.is_ok() && address.domain() == Domain(5) && address.offset() >= start
                    && u128::from(address.offset()) + u128::from(len) <= u128::from(end);
                let resolved = table.resolve(address, len);
                prop_assert_eq!(resolved.is_ok(), good);
                if let Ok(place) = resolved {
                    prop_assert_eq!(place.offset as u64, 4096 + address.offset());
                    prop_assert_eq!(place.len as u64, len);
                }
            }
        }
    }
}
