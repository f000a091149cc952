//! Memory that only its owner writes: a memfd that is mapped and then sealed.
//!
//! The seal against future writes does not affect the owner's existing mapping. Without the seal a peer could
//! reopen its descriptor for writing, through /proc. The seal against shrinking keeps the peer's loads from
//! faulting.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tombolo_mem::Region;
use tombolo_sys::memfd::{self, Seals};

use crate::region::RegionError;

/// Seals required by both sides. `SEAL` prevents further seals, which either side could add.
const SEALS: Seals = Seals::SHRINK.union(Seals::FUTURE_WRITE).union(Seals::SEAL);

/// Memory of this process, and the descriptor through which other processes map it for reading.
#[derive(Debug)]
pub struct Sealed {
    region: Region,
    memory: OwnedFd,
}

impl Sealed {
    /// Creates zeroed memory of that many bytes; `name` is shown in /proc. Pages are allocated on first
    /// access.
    pub fn create(name: &str, bytes: u64) -> Result<Sealed, RegionError> {
        let io = |error| RegionError::io("shared memory", error);
        let memory = memfd::create(name, bytes).map_err(io)?;
        let len = usize::try_from(bytes)
            .map_err(|_| RegionError::io("shared memory", std::io::ErrorKind::OutOfMemory))?;
        let region =
            Region::map(&memory, 0, len).map_err(|source| RegionError::map("shared memory", source))?;
        memfd::seal(&memory, SEALS).map_err(io)?;
        Ok(Sealed { region, memory })
    }

    /// Returns the memory, which this process may write.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

/// Returns the descriptor to be sent to the peer, which can only map it for reading.
impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// Maps the first `bytes` of a peer's memory for reading. The descriptor may be closed afterwards.
pub fn map_peer(memory: impl AsFd, bytes: u64) -> Result<Region, RegionError> {
    // EINVAL if the descriptor is no memfd: reported like a memfd without the seals.
    let seals = memfd::seals(memory.as_fd()).map_err(|_| RegionError::NotSealed)?;
    if !seals.contains(SEALS) {
        return Err(RegionError::NotSealed);
    }
    // The size is read after the seals were checked: without the seals the memory could still shrink.
    let size =
        memfd::size_bytes(memory.as_fd()).map_err(|error| RegionError::io("the peer's memory", error))?;
    let too_small = RegionError::TooSmall { bytes: size, wanted_bytes: bytes };
    if size < bytes {
        return Err(too_small);
    }
    let len = usize::try_from(bytes).map_err(|_| too_small)?;
    Region::map_read_only(memory, 0, len).map_err(|source| RegionError::map("the peer's memory", source))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Fails without the seal: a holder of the descriptor could reopen the same memory for writing.
    #[test]
    fn a_peer_cannot_write_by_opening_the_memory_again() {
        let own = Sealed::create("test", 8192).expect("memory");
        let path = format!("/proc/self/fd/{}", own.as_fd().as_raw_fd());
        let again =
            OpenOptions::new().read(true).write(true).open(path).expect("root and the owner may open it");
        assert!(Region::map(&again, 0, 8192).is_err());
        assert!(again.set_len(0).is_err());
    }

    #[test]
    fn growing_peer_memory_has_no_effect() {
        let own = Sealed::create("test", 8192).expect("memory");
        let peer = map_peer(&own, 8192).expect("sealed");
        let again = std::fs::File::from(own.as_fd().try_clone_to_owned().expect("a descriptor"));
        again.set_len(1 << 20).expect("nothing is sealed against that");
        own.region().write_at(8188, b"last").expect("inside");
        let mut got = [0; 4];
        peer.read_at(8188, &mut got).expect("inside");
        assert_eq!((&got, peer.len()), (b"last", 8192));
        assert!(peer.write_at(0, b"x").is_err());
        assert!(peer.read_at(8192, &mut got).is_err() && !peer.is_poisoned());
    }

    #[test]
    fn memory_without_seals_is_refused() {
        for missing in [Seals::SHRINK, Seals::FUTURE_WRITE, Seals::SEAL] {
            let memory = memfd::create("test", 8192).expect("memory");
            memfd::seal(&memory, SEALS.difference(missing)).expect("seal");
            assert!(matches!(map_peer(&memory, 8192), Err(RegionError::NotSealed)), "{missing:?}");
        }
        let file = std::fs::File::open("/proc/self/status").expect("a file");
        assert!(matches!(map_peer(&file, 1), Err(RegionError::NotSealed)));
    }

    #[test]
    fn memory_that_is_too_small_is_refused() {
        let own = Sealed::create("test", 8192).expect("memory");
        let outcome = map_peer(&own, 8193);
        assert!(
            matches!(outcome, Err(RegionError::TooSmall { bytes: 8192, wanted_bytes: 8193 })),
            "{outcome:?}"
        );
        assert!(map_peer(&own, u64::MAX).is_err());
        assert!(map_peer(&own, 0).is_err());
    }
}
