//! Options of a mount.

use std::time::Duration;

use tombolo_core::Limits;
use tombolo_host_rpc::client as rpc_client;

/// Lifetimes of cached attributes (nfs(5), `acregmin` and related options). A changed node gets the minimum;
/// each revalidation after a whole lifetime without a change doubles the lifetime, up to the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeTimes {
    /// Minimum for files.
    pub file_min: Duration,
    /// Maximum for files.
    pub file_max: Duration,
    /// Minimum for directories.
    pub dir_min: Duration,
    /// Maximum for directories.
    pub dir_max: Duration,
}

impl AttributeTimes {
    /// No attribute caching (`noac`).
    pub const NONE: Self = Self::all(Duration::ZERO);

    /// Returns lifetimes that are all `time` (`actimeo`).
    pub const fn all(time: Duration) -> Self {
        Self { file_min: time, file_max: time, dir_min: time, dir_max: time }
    }
}

impl Default for AttributeTimes {
    /// Returns the defaults of nfs(5): 3 to 60 seconds for files, 30 to 60 for directories.
    fn default() -> Self {
        Self {
            file_min: Duration::from_secs(3),
            file_max: Duration::from_secs(60),
            dir_min: Duration::from_secs(30),
            dir_max: Duration::from_secs(60),
        }
    }
}

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// Options of the transport: in-flight limit, timeouts, hard or soft.
    pub rpc: rpc_client::Options,
    /// Maximum size of a READ, in bytes, within the server's limit (`rsize`).
    pub read_size_max: u32,
    /// Maximum size of a WRITE, in bytes (`wsize`).
    pub write_size_max: u32,
    /// Lifetimes of cached attributes.
    pub attributes: AttributeTimes,
    /// Read-ahead of a sequential reader, in bytes; 0 disables it.
    pub read_ahead_bytes: usize,
    /// Limit of written bytes retained until the server has them on stable storage, beyond which writers
    /// wait.
    pub dirty_bytes_max: usize,
    /// Limits of one session: nodes and openings.
    pub limits: Limits,
    /// `true` if changes are refused.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rpc: rpc_client::Options::default(),
            read_size_max: SIZE_MAX,
            write_size_max: SIZE_MAX,
            attributes: AttributeTimes::default(),
            read_ahead_bytes: 4 << 20,
            dirty_bytes_max: 64 << 20,
            limits: Limits::default(),
            read_only: false,
        }
    }
}

/// Maximum size of a READ or WRITE, in bytes.
pub(crate) const SIZE_MAX: u32 = 1 << 20;
/// Maximum file data of a datagram, in bytes: 32 KiB and the headers fit in its 64 KiB.
pub(crate) const DATAGRAM_SIZE_MAX: u32 = 32 << 10;
