use tombolo_core::Limits;

/// How a [`Memory`](crate::Memory) behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What all contents together may take up, in bytes. More fails with `NoSpace`.
    pub size_limit_bytes: u64,
    /// How many nodes there may be. More fails with `NoSpace`.
    pub node_limit: u64,
    /// How many names a file may have. More fails with `TooManyLinks`.
    pub link_limit: u32,
    /// What each session may hold.
    pub session_limits: Limits,
}

impl Default for Options {
    /// 1 GiB, a million nodes, 65,000 names for a file.
    fn default() -> Self {
        Self {
            size_limit_bytes: 1 << 30,
            node_limit: 1 << 20,
            link_limit: 65_000,
            session_limits: Limits::default(),
        }
    }
}
