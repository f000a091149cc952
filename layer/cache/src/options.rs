//! Options of a cache: freshness, prefetching and limits.

use std::time::{Duration, SystemTime};

use tombolo_host_runtime::thread_pool::ThreadPoolLimits;

/// Guaranteed freshness of a cache's answers (`docs/semantics/cache.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contract {
    /// The tree never changes: cached state is never revalidated, not even after a restart.
    Immutable,
    /// All changes are made through this cache: state fetched since the start does not age.
    Exclusive,
    /// An open returns data of every earlier close, on any client. Attributes without an open are valid for
    /// [`Options::attr_refresh`].
    #[default]
    CloseToOpen,
    /// Names, attributes and data fetched while the cache has a lease are valid until the lease ends; the
    /// origin's server recalls the lease before others change anything. Without a lease, as
    /// [`CloseToOpen`](Self::CloseToOpen).
    Lease,
    /// Cached state is valid for this long.
    Refresh(Duration),
}

impl Contract {
    /// Returns `true` if sessions can be notified of all changes ([`Changes`](tombolo_core::fs::Changes)).
    /// Under the other contracts, the cache is not notified of others' changes at the origin.
    pub fn tells_changes(self) -> bool {
        matches!(self, Self::Immutable | Self::Exclusive)
    }
}

/// Extent of the prefetch of directories and small files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// No prefetch of directories and small files.
    Off,
    /// Directories ahead of a client that lists one after another (a walk), and small files of a directory in
    /// which a client reads one after another.
    #[default]
    Walk,
    /// All names below a directory at its first use, and the small files next to the first one that is read.
    Tree,
}

/// Options of a cache, or of those of its files that a rule selects.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Guaranteed freshness.
    pub contract: Contract,
    /// Lifetime of attributes without an open, under [`Contract::CloseToOpen`], and [`Contract::Lease`]
    /// without a lease.
    pub attr_refresh: Duration,
    /// Lifetime of the origin's answers about a user's permissions to an unchanged file, under
    /// [`Contract::CloseToOpen`] and [`Contract::Lease`].
    pub rights_refresh: Duration,
    /// Unit of fetches and checksums in bytes, a power of two from 4 KiB to 1 MiB; `None`: that of the file's
    /// sidecar, or else the store's.
    pub block_bytes: Option<u32>,
    /// Fetch the whole file when any part of it is read.
    pub whole_files: bool,
    /// Maximum read-ahead, in bytes; 0 disables it.
    pub ahead_bytes_max: u64,
    /// Prefetch of directories and small files, apart from read-ahead.
    pub prefetch: Prefetch,
    /// Use the sidecars next to files ([`tombolo_wire_image`]).
    pub sidecars: bool,
    /// Refuse changes.
    pub read_only: bool,
    /// Limits of the thread pool for blocking disk I/O.
    pub pool: ThreadPoolLimits,
    /// This host's clock. Lifetimes do not depend on it: it only shows whether a change is recent.
    pub wall_clock: fn() -> SystemTime,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            contract: Contract::default(),
            attr_refresh: Duration::from_secs(3),
            rights_refresh: Duration::from_secs(60),
            block_bytes: None,
            whole_files: false,
            ahead_bytes_max: 16 << 20,
            prefetch: Prefetch::default(),
            sidecars: true,
            read_only: false,
            pool: ThreadPoolLimits::default(),
            wall_clock: SystemTime::now,
        }
    }
}
