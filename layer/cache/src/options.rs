//! How a cache behaves.

use std::time::{Duration, SystemTime};

use tombolo_host_runtime::thread_pool::ThreadPoolLimits;

/// What the cache promises of the age of what it answers (`docs/semantics/cache.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contract {
    /// The tree never changes: what is here is never asked for again, also after a restart.
    Immutable,
    /// All changes come through this cache: what was asked for since the start is not asked for again.
    Exclusive,
    /// An open sees what was closed before it, wherever that was. Attributes without an open are believed for
    /// [`Options::attr_refresh`].
    #[default]
    CloseToOpen,
    /// Everything is believed for as long as a lease is held that the origin's server recalls before others
    /// change anything; without it, as [`CloseToOpen`](Self::CloseToOpen).
    Lease,
    /// Everything is believed for this long.
    Refresh(Duration),
}

impl Contract {
    /// Whether sessions can be told of all changes ([`Changes`](tombolo_core::fs::Changes)): those of others
    /// at the origin are not seen.
    pub fn tells_changes(self) -> bool {
        matches!(self, Self::Immutable | Self::Exclusive)
    }
}

/// What is brought before it is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// Nothing.
    Off,
    /// Directories of a walk, and small files beside those that are read, once callers are seen to go from
    /// one to the next.
    #[default]
    Walk,
    /// The names of all that lies below a directory as soon as one looks into it, and the small files beside
    /// the first that is read.
    Tree,
}

/// How a cache behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is promised.
    pub contract: Contract,
    /// How long attributes are believed without an open, under [`Contract::CloseToOpen`], and
    /// [`Contract::Lease`] without one.
    pub attr_refresh: Duration,
    /// How long an answer of the origin about a user's rights is believed, while the file is the same.
    pub rights_refresh: Duration,
    /// What is fetched and checked as one, in bytes, if that is not what the store says: a power of two from
    /// 4 KiB to 1 MiB.
    pub block_bytes: Option<u32>,
    /// Whether the rest of a file is fetched when any of it is read.
    pub whole_files: bool,
    /// How far ahead of a reader is fetched at most, in bytes; 0 is not at all.
    pub ahead_bytes_max: u64,
    /// What is listed and fetched ahead, beside what a reader will read next of a file.
    pub prefetch: Prefetch,
    /// Whether a sidecar beside a file ([`tombolo_wire_image`]) is gone by.
    pub sidecars: bool,
    /// Refuse changes.
    pub read_only: bool,
    /// The threads that wait for the disk of the cache.
    pub pool: ThreadPoolLimits,
    /// This host's clock. How long anything is believed does not go by it, only what counts as changed a
    /// moment ago.
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
