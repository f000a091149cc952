//! How a mount behaves.

use std::time::Duration;

use tombolo_core::Limits;
use tombolo_host_rpc::client as rpc_client;

/// How long attributes are believed without asking (nfs(5), `acregmin` and its kin). A node that was seen to
/// change is believed for the least time; each look that finds it unchanged doubles that, up to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeTimes {
    /// Files: at least.
    pub file_min: Duration,
    /// Files: at most.
    pub file_max: Duration,
    /// Directories: at least.
    pub dir_min: Duration,
    /// Directories: at most.
    pub dir_max: Duration,
}

impl AttributeTimes {
    /// Nothing is believed (`noac`).
    pub const NONE: Self = Self::all(Duration::ZERO);

    /// All four alike (`actimeo`).
    pub const fn all(time: Duration) -> Self {
        Self { file_min: time, file_max: time, dir_min: time, dir_max: time }
    }
}

impl Default for AttributeTimes {
    /// Those of every other client: 3 to 60 seconds for files, 30 to 60 for directories.
    fn default() -> Self {
        Self {
            file_min: Duration::from_secs(3),
            file_max: Duration::from_secs(60),
            dir_min: Duration::from_secs(30),
            dir_max: Duration::from_secs(60),
        }
    }
}

/// How a mount behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The transport's part: in-flight limit, time-outs, hard or soft.
    pub rpc: rpc_client::Options,
    /// The largest READ, in bytes, if the server allows as much (`rsize`).
    pub read_size_max: u32,
    /// The largest WRITE, in bytes (`wsize`).
    pub write_size_max: u32,
    /// How long attributes are believed.
    pub attributes: AttributeTimes,
    /// How far ahead of a sequential reader is read, in bytes; 0 is not at all.
    pub read_ahead_bytes: usize,
    /// So many written bytes are held until the server has them on stable storage; then writers wait.
    pub dirty_bytes_max: usize,
    /// What one session may hold: nodes and openings.
    pub limits: Limits,
    /// Refuse changes.
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

/// What one READ or WRITE carries at most, in bytes.
pub(crate) const SIZE_MAX: u32 = 1 << 20;
/// What a datagram carries of file data at most, in bytes: 32 KiB and the heads fit in its 64 KiB.
pub(crate) const DATAGRAM_SIZE_MAX: u32 = 32 << 10;
