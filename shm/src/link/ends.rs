//! A link from one side's view: [`Ends`] has the memory of both sides, and the agreed parameters.

use std::num::NonZeroU32;
use std::sync::Arc;

use tombolo_mem::{OutOfBounds, Region};

use crate::doorbell::Bell;
use crate::link::layout::Layout;
use crate::link::terms::Features;

/// A side of a link, with its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sends requests, and allocates the bulk memory of both regions.
    Client,
    /// Answers requests, chooses epoch and sizes, and may send call-backs.
    Server,
}

impl Role {
    /// Returns the other side of the link.
    pub fn peer(self) -> Role {
        match self {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        }
    }
}

/// The generation of a link, chosen by the server and never zero. Messages of another generation are not
/// recognised: slot stamps contain the low 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epoch(NonZeroU32);

impl Epoch {
    /// Epoch of a link whose memory was never used before.
    pub const FIRST: Epoch = Epoch(NonZeroU32::MIN);

    /// Returns the epoch with that number; `None` for zero.
    pub fn new(number: u32) -> Option<Epoch> {
        NonZeroU32::new(number).map(Epoch)
    }

    /// Returns the number. The region header and WELCOME contain all of it, slot stamps its low 16 bits.
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

/// The means by which one side wakes the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DoorbellKind {
    /// A shared futex on the word in the producer's header; both sides run on one kernel.
    Futex,
    /// No doorbell, as between a guest and its host without a stream: a sleeper polls at intervals.
    Silent,
    /// A byte in a stream outside of the shared memory, such as a guest's serial port.
    Bell,
}

impl DoorbellKind {
    /// All kinds, the preferred ones first.
    pub const ALL: [DoorbellKind; 3] = [DoorbellKind::Futex, DoorbellKind::Bell, DoorbellKind::Silent];
}

/// The memory of one domain: a region or a part of one (half of a file that both sides map).
#[derive(Debug, Clone)]
pub struct Extent {
    region: Region,
    offset: usize,
    len: usize,
}

impl Extent {
    /// Returns `len` bytes of the region from `offset` on. Fails if they are not inside the region.
    pub fn new(region: Region, offset: u64, len: u64) -> Result<Extent, OutOfBounds> {
        let region_len = region.len();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        match start.checked_add(bytes) {
            Some(end) if end <= region_len => Ok(Extent { region, offset: start, len: bytes }),
            _ => Err(OutOfBounds { offset: start, len: bytes, region_len }),
        }
    }

    /// Returns the whole region.
    pub fn whole(region: Region) -> Extent {
        Extent { offset: 0, len: region.len(), region }
    }

    /// Returns the containing region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the offset in the region, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Returns the length, in bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns `true` if the extent has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Translates the offset of `len` bytes of this extent to an offset in the region. Fails if they are not
    /// all inside the extent. An offset that a peer names must pass this check.
    #[inline]
    pub fn place(&self, offset: u64, len: u64) -> Result<usize, OutOfBounds> {
        let outside = || OutOfBounds {
            offset: usize::try_from(offset).unwrap_or(usize::MAX),
            len: usize::try_from(len).unwrap_or(usize::MAX),
            region_len: self.len,
        };
        match offset.checked_add(len) {
            // `offset` is at most `self.len`, so it fits into a `usize`, and the sum is inside the region.
            Some(end) if end <= self.len as u64 => Ok(self.offset + offset as usize),
            _ => Err(outside()),
        }
    }

    /// Returns the offset in the region of the last `len` bytes of this extent; `None` if the layout needs
    /// some of them.
    pub fn tail(&self, len: u64, layout: &Layout) -> Option<usize> {
        let offset = self.len().checked_sub(len).filter(|offset| *offset >= layout.bytes())?;
        self.place(offset, len).ok()
    }

    /// Copies `out.len()` bytes from `offset` of this extent. Each byte has a value that it had in the region
    /// at some time during the call.
    #[inline]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.region.read_at(self.place(offset, out.len() as u64)?, out)
    }

    /// Copies `bytes` to `offset` of this extent, which must belong to this side.
    #[inline]
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.region.write_at(self.place(offset, bytes.len() as u64)?, bytes)
    }
}

/// A link from one side's view, ready for rings: the memory of both sides is mapped, checked, and at least as
/// long as the layout requires.
#[derive(Debug, Clone)]
pub struct Ends {
    /// The side that this process has.
    pub role: Role,
    /// The memory that this side writes, and the peer only reads: in a file by convention only.
    pub own: Extent,
    /// The memory that the peer writes, and may change at any moment.
    pub peer: Extent,
    /// Layout of both sides' memory.
    pub layout: Layout,
    /// Generation of the link: part of every slot's stamp.
    pub epoch: Epoch,
    /// Extensions negotiated for the link.
    pub features: Features,
    /// Means by which the sides wake each other.
    pub doorbell: DoorbellKind,
    /// This side's bell, if it has one; only for [`DoorbellKind::Bell`].
    pub bell: Option<Arc<Bell>>,
}

impl Ends {
    /// Returns `true` if this side can be woken, and can wake the other.
    pub fn has_doorbell(&self) -> bool {
        match self.doorbell {
            DoorbellKind::Futex => true,
            DoorbellKind::Bell => self.bell.is_some(),
            DoorbellKind::Silent => false,
        }
    }

    /// Returns the client's and the server's side of a link over private memory, with all supported
    /// extensions that need neither socket nor file: for tests, and for a client and a server in one process.
    pub fn in_memory(layout: Layout) -> (Ends, Ends) {
        let len = usize::try_from(layout.bytes()).unwrap_or(usize::MAX);
        let [own, peer] = [(); 2].map(|()| Extent::whole(Region::heap(len)));
        let (epoch, features, doorbell) = (Epoch::FIRST, Features::QUIET, DoorbellKind::Futex);
        let client = Ends { role: Role::Client, own, peer, layout, epoch, features, doorbell, bell: None };
        let (own, peer) = (client.peer.clone(), client.own.clone());
        let server = Ends { role: Role::Server, own, peer, ..client.clone() };
        (client, server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_region_cannot_be_left() {
        let region = Region::heap(8192);
        let upper = Extent::new(region.clone(), 4096, 2048).expect("inside");
        upper.write_at(0, b"x").expect("inside");
        let mut got = [0];
        region.read_at(4096, &mut got).expect("inside");
        assert_eq!(&got, b"x");
        assert_eq!(upper.place(2047, 1).expect("the last byte"), 4096 + 2047);
        assert_eq!(upper.place(2048, 0).expect("nothing, at the end"), 4096 + 2048);
        for (offset, len) in [(2047, 2), (2048, 1), (4096, 0), (u64::MAX, 1), (1, u64::MAX), (0, 2049)] {
            assert!(upper.place(offset, len).is_err(), "{offset} {len}");
        }
        let layout = Layout::with_bulk(8, 8, 0).expect("a layout");
        let end = Extent::new(Region::heap(1 << 20), 4096, layout.bytes() + 8192).expect("inside");
        assert_eq!(end.tail(8192, &layout), usize::try_from(4096 + layout.bytes()).ok());
        assert_eq!((end.tail(8193, &layout), end.tail(u64::MAX, &layout)), (None, None));
        for (offset, len) in [(8192, 1), (0, 8193), (u64::MAX, 2), (2, u64::MAX)] {
            assert!(Extent::new(region.clone(), offset, len).is_err(), "{offset} {len}");
        }
    }
}
