//! Scoped umask of a single thread.

use std::marker::PhantomData;
use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::thread::UnshareFlags;

use crate::errno::Result;
use crate::open::permission;

/// Makes the calling thread create nodes of `mode` under `mask` until the guard is dropped, which restores
/// the process's umask for the thread.
///
/// The kernel applies the umask, because only it can check atomically for a directory's default ACL, which
/// replaces the umask (acl(5)). Other threads are unaffected: the thread is first unshared from those with
/// which it shares working directory, root and umask. Three system calls; none if the process's umask clears
/// the same bits of this mode. The process's umask is read at the first call only, so it must be set before
/// that.
///
/// Where the kernel refuses to unshare (the seccomp filter of a container), the process's umask applies as
/// well.
pub fn mask(mask: u32, mode: u32) -> Masked {
    let process = process();
    if process.is_some_and(|process| process & mode == mask & mode) {
        return Masked { process: None, mode, not_send: PhantomData };
    }
    // The thread is unshared each time, because a thread that it has started since the last time shares its
    // umask, root and working directory again; if there is none, the call costs little.
    let Some(process) = process.filter(|_| unshare_fs().is_ok()) else {
        return Masked { process: None, mode: mode & !mask, not_send: PhantomData };
    };
    rustix::process::umask(permission(mask));
    Masked { process: Some(process), mode, not_send: PhantomData }
}

/// A guard during whose life the thread's new nodes have the mode of [`mask`]. Bound to its thread.
#[derive(Debug)]
#[must_use = "the umask applies only while this lives"]
pub struct Masked {
    /// The process's umask, if the thread currently has another one.
    process: Option<u32>,
    mode: u32,
    not_send: PhantomData<*const ()>,
}

impl Masked {
    /// Returns the permission bits to pass to the system call that creates the node.
    pub fn mode(&self) -> u32 {
        self.mode
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        if let Some(process) = self.process {
            rustix::process::umask(permission(process));
        }
    }
}

/// Returns the process's umask as of the first call; `None` if threads cannot be unshared.
fn process() -> Option<u32> {
    static MASK: OnceLock<Option<u32>> = OnceLock::new();
    *MASK.get_or_init(|| {
        unshare_fs().ok()?;
        // umask(2) returns the umask only by changing it.
        let mask = rustix::process::umask(Mode::empty());
        rustix::process::umask(mask);
        Some(mask.as_raw_mode())
    })
}

/// Makes the thread's umask, root and working directory its own, no longer shared with other threads.
fn unshare_fs() -> Result<()> {
    // SAFETY: the only flag is CLONE_FS: no descriptor or memory of other threads is affected, and this
    // process relies on no shared working directory.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    fn made(dir: &Path, name: &str) -> u32 {
        let path = dir.join(name);
        fs::write(&path, b"").expect("write");
        fs::metadata(&path).expect("stat").permissions().mode() & 0o777
    }

    #[test]
    fn umask_guard_affects_one_thread_and_is_scoped() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let usual = made(dir.path(), "usual");
        thread::scope(|scope| {
            scope.spawn(|| {
                for (mask_bits, mode) in [(0o077, 0o600), (0, 0o666), (0o111, 0o666)] {
                    let (masked_now, masked) = channel();
                    // A new thread shares everything with the thread that starts it.
                    let dir = dir.path();
                    let sibling = scope.spawn(move || masked.recv().map(|()| made(dir, "sibling")));
                    let masked = mask(mask_bits, 0o666);
                    assert_eq!((made(dir, "masked"), masked.mode()), (mode, 0o666));
                    masked_now.send(()).expect("send");
                    assert_eq!(sibling.join().expect("join"), Ok(usual), "under {mask_bits:o}");
                    drop(masked);
                    assert_eq!(made(dir, "free"), usual);
                    for name in ["masked", "sibling", "free"] {
                        fs::remove_file(dir.join(name)).expect("remove");
                    }
                }
            });
        });
        assert_eq!(made(dir.path(), "after"), usual, "the process has the mask that it had");
    }
}
