//! The process's mask of permission bits.

/// Clears the mask of the whole process, so that modes arrive as they were asked for.
///
/// A server does so once, at start: the masks of its clients were applied before it was asked.
pub fn clear() {
    rustix::process::umask(rustix::fs::Mode::empty());
}
