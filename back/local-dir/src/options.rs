//! Options of an export.

use std::sync::Arc;

use tombolo_core::Limits;
use tombolo_host_runtime::thread_pool::ThreadPoolLimits;

use tombolo_sys::open::Reopen;
use tombolo_sys::pattern::Pattern;

/// Treatment of other file systems mounted inside the export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Submounts {
    /// Show their files in the export, with a file system number of their own.
    #[default]
    Show,
    /// Hide them: their mount points do not exist in the export.
    Hide,
}

/// Options of an export.
#[derive(Clone, Debug)]
pub struct Options {
    /// Refuse every change.
    pub read_only: bool,
    /// Treatment of mounts inside the export.
    pub submounts: Submounts,
    /// Limit of descriptors of nodes, over all sessions, above which those of unused nodes are closed. It is
    /// lower if the process has few descriptors, but leaves each session a minimum. Openings and locks need
    /// further descriptors.
    pub descriptors: usize,
    /// Limits of one session: nodes, openings, bytes in flight and pending operations.
    pub limits: Limits,
    /// Observe changes by other processes of the host to the file systems of the export while a session is
    /// subscribed. This costs those processes some 2 µs for each write and 7 µs for each new file, everywhere
    /// on these file systems, and takes CAP_SYS_ADMIN.
    pub watch_host: bool,
    /// Patterns of the names or paths of files that are [volatile](tombolo_core::fs::Attr::volatile).
    pub ask: Vec<Pattern>,
    /// Helper that opens files which the sandbox of this process does not allow it to open.
    pub help: Option<Arc<dyn Reopen>>,
    /// Threads for operations that may block.
    pub pool: ThreadPoolLimits,
}

impl Default for Options {
    /// Returns options for a writable export: submounts shown, 768 descriptors of nodes, default limits, host
    /// not observed, no volatile files.
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
