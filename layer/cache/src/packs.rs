//! Compressed reads of several parts of a file, from a distant server of this product. Optional: without them
//! each part is fetched by itself (`Fetcher::start_one`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tombolo_core::fs::{COMPRESSED_BYTES_MAX, COMPRESSED_RANGES_MAX, within};
use tombolo_core::{Error, Result};
use tombolo_host_runtime::task;
use tombolo_mem::{Buffer, Sink};

use crate::cache::Cache;
use crate::data::{Data, Fetch, Fetched};
use crate::fetcher::Fetcher;

/// Maximum size of a combined read, unless a single fetch is larger. No part of the read is available before
/// all of it has arrived.
const PACK_BYTES: u64 = 256 << 10;

/// Thresholds beyond which data hardly compress: the bytes of a file read compressed so far, and the
/// percentage of them that was transferred.
const DENSE_BYTES: u64 = 1 << 20;
const DENSE_PERCENT: u64 = 90;

/// Bytes of a file read compressed, before and after compression.
#[derive(Debug, Default)]
pub(crate) struct PackedSoFar {
    bytes: AtomicU64,
    compressed_bytes: AtomicU64,
}

impl PackedSoFar {
    fn add(&self, bytes: usize, compressed_bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.compressed_bytes.fetch_add(compressed_bytes as u64, Ordering::Relaxed);
    }

    fn is_dense(&self) -> bool {
        let [bytes, packed] =
            [&self.bytes, &self.compressed_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        bytes >= DENSE_BYTES && packed.saturating_mul(100) > bytes.saturating_mul(DENSE_PERCENT)
    }
}

/// Returns `true` if compressed reads pay: the origin is distant, no cache is nearer, and the data compress.
pub(crate) fn are_worth_it(cache: &Cache, data: &Data) -> bool {
    // Another cache of this host and a site cache are both nearer than the origin.
    let has_nearer = cache.borrower.get().is_some() || cache.middle.get().is_some();
    !has_nearer
        && !data.packed.is_dense()
        && cache.line.is_far()
        && !cache.packs_nothing.load(Ordering::Relaxed)
        && cache.origin.fs.packing().is_some()
}

/// Starts fetches of a file as combined reads. Parts that a combined read does not bring are fetched singly.
pub(crate) fn start(fetcher: &Fetcher, fetches: impl Iterator<Item = Arc<Fetch>>) {
    for fetches in groups(fetches) {
        let fetcher = fetcher.clone();
        let mut group = Group { data: fetcher.data.clone(), fetches };
        task::spawn(async move {
            let ranges: Vec<_> = group.fetches.iter().map(|fetch| fetch.range.clone()).collect();
            bring(&fetcher, &ranges).await;
            // Fetch the remainder by READs.
            for fetch in std::mem::take(&mut group.fetches) {
                fetcher.start_one(fetch);
            }
        });
    }
}

/// Fetches of one combined read. A fetch still in the group when it is dropped fails, as readers wait for it.
struct Group {
    data: Arc<Data>,
    fetches: Vec<Arc<Fetch>>,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.fetches.iter().for_each(|fetch| self.data.end(fetch, Fetched::Failed));
    }
}

/// Combines fetches, in order, into groups for reads of up to [`PACK_BYTES`].
fn groups(fetches: impl Iterator<Item = Arc<Fetch>>) -> Vec<Vec<Arc<Fetch>>> {
    let (mut groups, mut bytes) = (Vec::<Vec<_>>::new(), 0);
    for fetch in fetches {
        bytes += fetch.bytes();
        match groups.last_mut().filter(|group| bytes <= PACK_BYTES && group.len() < COMPRESSED_RANGES_MAX) {
            Some(group) => group.push(fetch),
            None => {
                bytes = fetch.bytes();
                groups.push(vec![fetch]);
            }
        }
    }
    groups
}

/// Reads the missing parts of these ranges by a compressed read, if possible.
async fn bring(fetcher: &Fetcher, ranges: &[Range<u64>]) {
    let Fetcher { cache, data, .. } = fetcher;
    for range in ranges {
        fetcher.copy_equal(range).await;
    }
    let size = data.version().size;
    let up_to_end = |part: Range<u64>| part.start..part.end.min(size);
    let parts: Vec<_> = ranges.iter().flat_map(|range| data.missing(range)).map(up_to_end).collect();
    let bytes: u64 = parts.iter().map(|part| part.end.saturating_sub(part.start)).sum();
    let is_fit = parts.len() <= COMPRESSED_RANGES_MAX && (1..=COMPRESSED_BYTES_MAX).contains(&bytes);
    if !is_fit || parts.iter().any(Range::is_empty) {
        return;
    }
    let asked = Instant::now();
    let sent = cache.line.sent(bytes, asked);
    let came = read(fetcher, (&parts, bytes as usize, asked)).await;
    cache.line.came(sent, if came.is_ok() { bytes } else { 0 }, Instant::now());
    match came {
        // An older server of this product does not know the operation.
        Err(Error::NotSupported) => cache.packs_nothing.store(true, Ordering::Relaxed),
        Err(error) => tracing::debug!(%error, "compressed read failed"),
        Ok(_) => {}
    }
}

/// Reads parts from the origin, verifies their version, and stores them.
async fn read(fetcher: &Fetcher, (parts, bytes, asked): (&[Range<u64>], usize, Instant)) -> Result<Fetched> {
    let Fetcher { cache, data, from, .. } = fetcher;
    let (mut into, mut buffers) = (Sink::new(), Vec::new());
    for part in parts {
        let len = (part.end - part.start) as usize;
        let buffer = Buffer::new(len);
        into.append(buffer.sink(0..len));
        buffers.push((part.start, buffer));
    }
    let reading = within(cache.origin.fs.packing(), |packing| {
        packing.read_compressed(&from.cx, from.file.node, parts, into)
    });
    let packed = reading.resolve().await?;
    cache.counters.fetched_bytes.add_len(bytes);
    cache.counters.saved_bytes.add_len(bytes.saturating_sub(packed.compressed_bytes));
    data.packed.add(bytes, packed.compressed_bytes);
    fetcher.take_in((packed.attr, asked), buffers).await
}
