//! Deduplication by digest, for blocks of files with a sidecar.
//!
//! After blocks of a file with a sidecar were fetched, `fetcher` records their digests in [`DedupIndex`].
//! Before it fetches a block for which a sidecar lists one of these digests, it copies the recorded block
//! instead, if that still has the digest ([`Cache::copy_duplicates`]).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tombolo_core::{Result, lock};
use tombolo_mem::Buffer;
use tombolo_wire_image::{Digest, digest};

use crate::cache::Cache;
use crate::data::Data;
use crate::images::Advice;

/// Index of cached blocks by digest.
#[derive(Debug, Default)]
pub(crate) struct DedupIndex {
    places: Mutex<HashMap<Key, Place>>,
    /// Bytes copied; and bytes not copied because the recorded block did not match its digest any more.
    copied_bytes: AtomicU64,
    refused_bytes: AtomicU64,
}

/// Owner's uid and digest: to know the digest of another user's block must not suffice to read it.
type Key = (u32, Digest);

/// Location of a cached block: the data of a file, and the block's offset and length in bytes.
#[derive(Clone, Debug)]
struct Place {
    data: Weak<Data>,
    offset: u64,
    len: usize,
}

/// Maximum number of indexed blocks: 1 GiB in blocks of 4 KiB, with some 33 MiB of memory.
const PLACES_MAX: usize = 1 << 18;

/// Hashed blocks: offset, length and digest of each.
pub(crate) type Hashed = Vec<(u64, usize, Digest)>;

impl DedupIndex {
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.places).is_empty()
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn refused_bytes(&self) -> u64 {
        self.refused_bytes.load(Ordering::Relaxed)
    }

    /// Registers cached blocks of a file of this owner, until the index is full.
    pub(crate) fn add(&self, uid: u32, data: &Arc<Data>, blocks: Hashed) {
        let mut places = lock(&self.places);
        if places.len() + blocks.len() > PLACES_MAX {
            places.retain(|_, place| place.data.strong_count() > 0);
        }
        for (offset, len, digest) in blocks {
            if places.len() < PLACES_MAX {
                places.entry((uid, digest)).or_insert_with(|| Place {
                    data: Arc::downgrade(data),
                    offset,
                    len,
                });
            }
        }
    }

    /// Returns the `len` bytes with this digest, if a file of this owner has them in the cache.
    fn find(&self, key @ (_, wanted): &Key, len: usize) -> Option<Buffer> {
        let place = lock(&self.places).get(key).cloned().filter(|place| place.len == len)?;
        let found = place.data.upgrade().and_then(|data| {
            let mut buffer = Buffer::new(len);
            let read = data.read(place.offset, &buffer.sink(0..len)).ok();
            let is_right =
                read == Some(len) && buffer.as_slice().is_some_and(|bytes| digest(bytes) == *wanted);
            if read == Some(len) && !is_right {
                self.refused_bytes.fetch_add(len as u64, Ordering::Relaxed);
                tracing::warn!("cached block does not match its digest: it is not copied");
            }
            is_right.then_some(buffer)
        });
        if found.is_none() {
            lock(&self.places).remove(key);
        }
        found
    }
}

/// Hashes the sidecar's blocks that lie wholly within fetched data.
pub(crate) fn hashed(advice: &Advice, start: u64, bytes: &[u8]) -> Hashed {
    let end = start + bytes.len() as u64;
    let block_bytes = u64::from(advice.file.block_bytes);
    let blocks = start.div_ceil(block_bytes)..end.div_ceil(block_bytes);
    let whole = blocks.map(|block| advice.file.bytes_of(block..block + 1)).filter(|block| block.end <= end);
    let hash = |block: Range<u64>| {
        let bytes = bytes.get((block.start - start) as usize..(block.end - start) as usize)?;
        Some((block.start, bytes.len(), digest(bytes)))
    };
    whole.filter_map(hash).collect()
}

impl Cache {
    /// Copies missing blocks of a range from equal blocks of files of the same owner. May block on the disk.
    pub(crate) fn copy_duplicates(&self, uid: u32, data: &Arc<Data>, range: &Range<u64>) -> Result<()> {
        let Some(advice) = data.advice() else { return Ok(()) };
        let block_bytes = u64::from(advice.file.block_bytes);
        for block in range.start / block_bytes..range.end.div_ceil(block_bytes) {
            let at = advice.file.bytes_of(block..block + 1);
            let wanted = advice.digest_of(block).filter(|_| !data.is_here(&at));
            let Some(wanted) = wanted else { continue };
            if let Some(bytes) = self.dedup.find(&(uid, wanted), (at.end - at.start) as usize) {
                self.write(data, at.start, bytes)?;
                self.dedup.copied_bytes.fetch_add(at.end - at.start, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
