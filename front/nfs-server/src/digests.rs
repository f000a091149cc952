//! Digests of file chunks, by which a client verifies data from another source (`docs/protocols/side.md`):
//! computed in a pool and cached by version.

use std::time::{Duration, SystemTime};

use quick_cache::sync::Cache;
use tombolo_core::fs::{Attr, NodeId, WeakAttr};
use tombolo_core::{Ctx, Result, SessionId};
use tombolo_host_runtime::thread_pool::Lane;
use tombolo_mem::Source;
use tombolo_wire_nfs3::side::{CHUNK_BYTES, DIGEST_BYTES};

use crate::caller::CallTarget;

/// Maximum number of cached digests: 4 GiB of files, in some 10 MiB.
const CACHED_MAX: usize = 1 << 16;

/// Minimum age of a version whose digests are cached: a file that changed more recently may change again with
/// the same time stamps.
const AGE_MIN: Duration = Duration::from_secs(2);

/// Cache and computation of digests.
pub(crate) struct Digests {
    cache: Cache<Key, (WeakAttr, [u8; DIGEST_BYTES])>,
    lane: Lane,
}

/// Key of the cache: a chunk of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    session: SessionId,
    node: NodeId,
    chunk: u64,
}

impl Digests {
    /// Creates an empty cache. A thread of the lane computes digests at 1 GB/s or more.
    pub(crate) fn new(lane: Lane) -> Self {
        Self { cache: Cache::new(CACHED_MAX), lane }
    }

    /// Returns the digests of `count` chunks of a version, if all are cached.
    pub(crate) fn cached(
        &self,
        file: &CallTarget,
        version: &WeakAttr,
        first: u64,
        count: u64,
    ) -> Option<Vec<u8>> {
        let mut digests = Vec::new();
        for chunk in first..first.saturating_add(count) {
            let (of, digest) = self.cache.get(&key(file, chunk))?;
            if of != *version {
                return None;
            }
            digests.extend_from_slice(&digest);
        }
        Some(digests)
    }

    /// Computes the digests of data that begins at a chunk boundary.
    pub(crate) async fn make(&self, cx: &Ctx, data: Source) -> Result<Vec<u8>> {
        let made = self.lane.run(cx, move || {
            let (mut digests, mut chunk) = (Vec::new(), vec![0; CHUNK_BYTES as usize]);
            for at in (0..data.len()).step_by(chunk.len()) {
                let count = data.read_at(at, &mut chunk);
                digests.extend_from_slice(blake3::hash(&chunk[..count]).as_bytes());
            }
            Ok(digests)
        });
        made.resolve().await
    }

    /// Caches the digests of a version that is old enough.
    pub(crate) fn insert(&self, file: &CallTarget, attr: &Attr, first: u64, digests: &[u8]) {
        let changed = attr.ctime.max(attr.mtime);
        let changed = Duration::new(u64::try_from(changed.secs).unwrap_or(0), changed.nanos.min(999_999_999));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if now < changed.saturating_add(AGE_MIN) {
            return;
        }
        let (digests, _) = digests.as_chunks::<DIGEST_BYTES>();
        for (chunk, digest) in (first..).zip(digests) {
            self.cache.insert(key(file, chunk), (WeakAttr::from(attr), *digest));
        }
    }
}

fn key(file: &CallTarget, chunk: u64) -> Key {
    Key { session: file.export.session, node: file.node.id, chunk }
}
