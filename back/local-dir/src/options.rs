//! How a directory is served.

use std::sync::Arc;

use tombolo_core::Limits;
use tombolo_host_runtime::thread_pool::ThreadPoolLimits;

use tombolo_sys::open::Reopen;
use tombolo_sys::pattern::Pattern;

/// What to do about other file systems that are mounted inside the export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Submounts {
    /// They are part of it, with a file system number of their own.
    #[default]
    Show,
    /// Their mount points do not exist.
    Hide,
}

/// How a directory is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// Refuse every change.
    pub read_only: bool,
    /// What to do about mounts inside the export.
    pub submounts: Submounts,
    /// How many descriptors the nodes may hold, over all sessions. Openings and locks come on top.
    pub descriptors: usize,
    /// What one session may hold.
    pub limits: Limits,
    /// Watch, while a session wants to be told of changes, what other processes of the host do to the file
    /// systems of the export. It costs them 2 µs for each write and 7 µs for each new file, all over those
    /// file systems, and takes CAP_SYS_ADMIN.
    pub watch_host: bool,
    /// Files that are [volatile](tombolo_core::fs::Attr::volatile).
    pub ask: Vec<Pattern>,
    /// What opens files for this process that it may not open itself, where it is in a sandbox.
    pub help: Option<Arc<dyn Reopen>>,
    /// The threads for what may block.
    pub pool: ThreadPoolLimits,
}

impl Default for Options {
    /// Writable, submounts shown, 768 descriptors (so that with openings and the rest a thousand
    /// suffice), the default limits; the host is not watched,
    /// and no file is volatile.
    fn default() -> Self {
        Self {
            read_only: false,
            submounts: Submounts::Show,
            descriptors: 768,
            limits: Limits::default(),
            watch_host: false,
            ask: Vec::new(),
            help: None,
            pool: ThreadPoolLimits::default(),
        }
    }
}
