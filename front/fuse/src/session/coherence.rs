//! Lifetimes of the kernel's cached names, attributes and pages. See `docs/semantics/coherence.md`.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tombolo_core::fs::{Attr, NodeId, OpenFlags, Timestamp, WeakAttr};
use tombolo_core::lock;
use tombolo_wire_fuse::init::Capabilities;
use tombolo_wire_fuse::layout::open::OpenOutFlags;
use tombolo_wire_fuse::reply::Lifetimes;

/// Bound on the age of the kernel's cache when others change the tree. Attributes and pages of a
/// [volatile](Attr::volatile) file are cached as in `Strict`, whatever the mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coherence {
    /// Names and attributes are not cached in the kernel, and pages only if they are mapped. Before Linux 6.6
    /// all pages are cached, and dropped at each open.
    Strict,
    /// Names and attributes are cached for one second; pages, while each open finds the file unchanged.
    #[default]
    Auto,
    /// All state is cached for a day, absent names too, for a tree that only this session changes.
    Always,
    /// All state is cached until a notice reports a change, as long as the file system reports all changes;
    /// otherwise as in `Strict`. If the kernel cannot invalidate all names at once, those of directories are
    /// cached for a second, and absent ones for a minute.
    Push,
}

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Upper bound of the granularity of time stamps: two changes within one tick of the server's kernel (10 ms
/// at 100 Hz) may share a stamp, so a stamp younger than this does not prove a file unchanged.
pub(super) const TICK: Duration = Duration::from_millis(20);

impl Coherence {
    pub(super) fn lifetimes(self) -> Lifetimes {
        let keep = match self {
            Coherence::Strict => Duration::ZERO,
            Coherence::Auto => SECOND,
            Coherence::Always => DAY,
            Coherence::Push => YEAR,
        };
        Lifetimes { entry: keep, attr: keep }
    }

    /// Returns the lifetime of a negative entry: none in strict and in auto, as programs wait for a name to
    /// appear more often than they request a missing name twice.
    pub(super) fn absence(self) -> Option<Duration> {
        matches!(self, Coherence::Always | Coherence::Push).then(|| self.lifetimes().entry)
    }
}

/// Page-cache policy, decided at each open.
#[derive(Debug)]
pub(super) struct PageCache {
    coherence: Coherence,
    /// Attributes of each file at the time when its cached pages were last valid, by node.
    versions: [Mutex<HashMap<NodeId, WeakAttr>>; SHARDS],
}

const SHARDS: usize = 16;

/// Maximum number of files per shard; a full shard is cleared, and the files' next opens drop their pages.
const SHARD_FILES_MAX: usize = 8192;

impl PageCache {
    pub(super) fn new(coherence: Coherence) -> Self {
        PageCache { coherence, versions: Default::default() }
    }

    /// Returns `true` if [`PageCache::flags`] needs the attributes as of the open.
    pub(super) fn wants_attr(&self) -> bool {
        self.coherence == Coherence::Auto
    }

    /// Returns the flags for the reply to an open of `node`. `attr` are the attributes as of the open.
    pub(super) fn flags(
        &self,
        coherence: Coherence,
        node: NodeId,
        how: OpenFlags,
        attr: Option<&Attr>,
        negotiated: Capabilities,
    ) -> OpenOutFlags {
        // The kernel is not notified of changes of a volatile file.
        let volatile = attr.is_some_and(|attr| attr.volatile);
        match if volatile { Coherence::Strict } else { coherence } {
            Coherence::Always => OpenOutFlags::KEEP_CACHE,
            Coherence::Push if Self::bypasses_page_cache(how, negotiated) => OpenOutFlags::DIRECT_IO,
            Coherence::Push => OpenOutFlags::KEEP_CACHE,
            // Without mappings no program could be executed; a kernel that cannot map direct-I/O files caches
            // pages until the next open.
            Coherence::Strict if negotiated.contains(Capabilities::DIRECT_IO_ALLOW_MMAP) => {
                OpenOutFlags::DIRECT_IO | OpenOutFlags::PARALLEL_DIRECT_WRITES
            }
            Coherence::Strict => OpenOutFlags::empty(),
            Coherence::Auto if Self::bypasses_page_cache(how, negotiated) => OpenOutFlags::DIRECT_IO,
            Coherence::Auto if self.is_unchanged(node, attr) => OpenOutFlags::KEEP_CACHE,
            Coherence::Auto => OpenOutFlags::empty(),
        }
    }

    /// Returns the flags for the reply to an open of a directory. In always and push the kernel caches the
    /// listing and drops it at its own changes of the directory and at a notice; in other modes changes by
    /// others would be missed until the attributes are revalidated.
    pub(super) fn directory_flags(coherence: Coherence) -> OpenOutFlags {
        match coherence {
            Coherence::Always | Coherence::Push => OpenOutFlags::CACHE_DIR | OpenOutFlags::KEEP_CACHE,
            Coherence::Strict | Coherence::Auto => OpenOutFlags::empty(),
        }
    }

    /// Returns `true` if the opening bypasses the page cache. A write-only opening does: it gains nothing
    /// from a write-through cache, and saves a copy and a GETXATTR of security.capability at each file's
    /// first write. So does an appending one: through the cache, the kernel would place an append at the end
    /// of the file as it last knew it.
    ///
    /// Returns `false` before Linux 6.6, where direct writes do not drop pages cached by other openings,
    /// whose readers would keep seeing the old data, and files opened with direct I/O cannot be mapped.
    fn bypasses_page_cache(how: OpenFlags, negotiated: Capabilities) -> bool {
        let past = how.contains(OpenFlags::APPEND) || !how.contains(OpenFlags::READ);
        past && negotiated.contains(Capabilities::DIRECT_IO_ALLOW_MMAP)
    }

    /// Removes the record of a node that the kernel forgets. If the kernel still knows the node, this costs
    /// the next open its page cache.
    pub(super) fn forget(&self, node: NodeId) {
        if self.coherence == Coherence::Auto {
            self.shard(node).remove(&node);
        }
    }

    fn is_unchanged(&self, node: NodeId, attr: Option<&Attr>) -> bool {
        let Some(attr) = attr else { return false };
        let now = WeakAttr::from(attr);
        let mut versions = self.shard(node);
        if !is_settled(attr.mtime.max(attr.ctime)) {
            versions.remove(&node);
            return false;
        }
        if versions.len() >= SHARD_FILES_MAX && !versions.contains_key(&node) {
            versions.clear();
        }
        versions.insert(node, now) == Some(now)
    }

    fn shard(&self, node: NodeId) -> std::sync::MutexGuard<'_, HashMap<NodeId, WeakAttr>> {
        let [first, ..] = &self.versions;
        let shard = self.versions.get(node.0 as usize % SHARDS).unwrap_or(first);
        lock(shard)
    }
}

/// Returns `true` if the stamp is old enough that another change now would get a different stamp.
fn is_settled(stamp: Timestamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let Ok(secs) = u64::try_from(stamp.secs) else { return true };
    let then = Duration::new(secs, stamp.nanos.min(999_999_999));
    now.checked_sub(then).is_some_and(|age| age > TICK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_wire_fuse::attr::from_wire;
    use tombolo_wire_fuse::layout::attr::FuseAttr;

    fn file(mtime: u64, size: u64) -> Attr {
        from_wire(&FuseAttr { mode: 0o100_644, mtime, ctime: mtime, size, ..Default::default() }).unwrap()
    }

    fn open(cache: &PageCache, attr: &Attr) -> OpenOutFlags {
        cache.flags(cache.coherence, NodeId(5), OpenFlags::READ, Some(attr), Capabilities::all())
    }

    #[test]
    fn auto_keeps_pages_of_unchanged_files() {
        let cache = PageCache::new(Coherence::Auto);
        assert_eq!(open(&cache, &file(1000, 7)), OpenOutFlags::empty(), "the first open knows nothing");
        assert_eq!(open(&cache, &file(1000, 7)), OpenOutFlags::KEEP_CACHE);
        assert_eq!(open(&cache, &file(1001, 7)), OpenOutFlags::empty(), "changed");
        assert_eq!(open(&cache, &file(1001, 8)), OpenOutFlags::empty(), "changed");
        assert_eq!(open(&cache, &file(1001, 8)), OpenOutFlags::KEEP_CACHE);
        cache.forget(NodeId(5));
        assert_eq!(open(&cache, &file(1001, 8)), OpenOutFlags::empty(), "forgotten");
    }

    #[test]
    fn auto_distrusts_recent_time_stamps() {
        let cache = PageCache::new(Coherence::Auto);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 60;
        assert_eq!(open(&cache, &file(now, 7)), OpenOutFlags::empty());
        assert_eq!(open(&cache, &file(now, 7)), OpenOutFlags::empty());
    }

    #[test]
    fn strict_reads_past_the_cache_where_mappings_still_work() {
        let cache = PageCache::new(Coherence::Strict);
        assert!(open(&cache, &file(1, 1)).contains(OpenOutFlags::DIRECT_IO));
        let old = cache.flags(cache.coherence, NodeId(5), OpenFlags::READ, None, Capabilities::empty());
        assert_eq!(old, OpenOutFlags::empty(), "an older kernel could not map the file");
        assert_eq!(Coherence::Strict.lifetimes(), Lifetimes::default());
    }

    #[test]
    fn pages_of_a_volatile_file_are_not_kept() {
        for coherence in [Coherence::Auto, Coherence::Always, Coherence::Push] {
            let cache = PageCache::new(coherence);
            let volatile = Attr { volatile: true, ..file(1000, 7) };
            for _ in 0..2 {
                assert!(open(&cache, &volatile).contains(OpenOutFlags::DIRECT_IO), "{coherence:?}");
            }
        }
    }

    #[test]
    fn write_only_openings_bypass_the_page_cache() {
        let cache = PageCache::new(Coherence::Auto);
        let flags =
            |how, negotiated| cache.flags(cache.coherence, NodeId(5), how, Some(&file(1000, 7)), negotiated);
        for how in [OpenFlags::WRITE, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND] {
            assert_eq!(flags(how, Capabilities::all()), OpenOutFlags::DIRECT_IO);
            assert!(!flags(how, Capabilities::empty()).contains(OpenOutFlags::DIRECT_IO), "before Linux 6.6");
        }
        assert!(
            !flags(OpenFlags::READ | OpenFlags::WRITE, Capabilities::all()).contains(OpenOutFlags::DIRECT_IO)
        );
    }

    #[test]
    fn the_table_of_known_files_is_bounded() {
        let cache = PageCache::new(Coherence::Auto);
        for number in 0..(2 * SHARDS * SHARD_FILES_MAX) as u64 {
            let (node, attr) = (NodeId(number), file(1, 1));
            cache.flags(Coherence::Auto, node, OpenFlags::READ, Some(&attr), Capabilities::empty());
        }
        assert!(cache.versions.iter().all(|shard| shard.lock().unwrap().len() <= SHARD_FILES_MAX));
    }
}
