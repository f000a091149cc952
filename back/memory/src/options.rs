//! Limits of an export.

use tombolo_core::Limits;

/// Limits of a [`Memory`](crate::Memory).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum total size of all contents, in bytes. Beyond it operations fail with `NoSpace`.
    pub size_limit_bytes: u64,
    /// Maximum number of nodes. Beyond it operations fail with `NoSpace`.
    pub node_limit: u64,
    /// Maximum number of names of a file. Beyond it operations fail with `TooManyLinks`.
    pub link_limit: u32,
    /// Limits of each session, of which those on nodes and openings are enforced.
    pub session_limits: Limits,
}

impl Default for Options {
    /// Returns 1 GiB, about a million nodes, 65,000 names per file.
    fn default() -> Self {
        Self {
            size_limit_bytes: 1 << 30,
            node_limit: 1 << 20,
            link_limit: 65_000,
            session_limits: Limits::default(),
        }
    }
}
