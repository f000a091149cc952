//! The mask of permission bits that new files get.

use std::marker::PhantomData;
use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::thread::UnshareFlags;

use crate::errno::Result;
use crate::open::permission;

/// Has the calling thread make a node of `mode` under `mask` until the guard is dropped, which gives the
/// thread the process's mask back.
///
/// The kernel applies the mask, since only it sees in time that a directory has a default ACL, which takes
/// the mask's place (acl(5)). No other thread sees the mask: the thread is parted first from those that share
/// its working directory, root and mask. Three system calls; none where the process's mask takes the same
/// bits off this mode. The process's mask is read once, so it has to be set before.
///
/// Where the kernel refuses to part threads (the seccomp filter of a container), the process's mask counts as
/// well.
pub fn mask(mask: u32, mode: u32) -> Masked {
    let process = process();
    if process.is_some_and(|process| process & mode == mask & mode) {
        return Masked { process: None, mode, here: PhantomData };
    }
    // Again each time, as a thread that was started meanwhile shares again; where none was, the kernel has
    // nothing to do.
    let Some(process) = process.filter(|_| part().is_ok()) else {
        return Masked { process: None, mode: mode & !mask, here: PhantomData };
    };
    rustix::process::umask(permission(mask));
    Masked { process: Some(process), mode, here: PhantomData }
}

/// While it lives, the thread has a mask. It stays on its thread.
#[derive(Debug)]
#[must_use = "the mask counts only while this lives"]
pub struct Masked {
    /// The process's mask, where the thread has another one for now.
    process: Option<u32>,
    mode: u32,
    here: PhantomData<*const ()>,
}

impl Masked {
    /// The permission bits to give to the system call that makes the node.
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

/// The mask that the process was started with or gave itself; none if threads cannot be parted.
fn process() -> Option<u32> {
    static MASK: OnceLock<Option<u32>> = OnceLock::new();
    *MASK.get_or_init(|| {
        part().ok()?;
        // umask(2) tells only by changing it.
        let mask = rustix::process::umask(Mode::empty());
        rustix::process::umask(mask);
        Some(mask.as_raw_mode())
    })
}

/// Parts the thread's file system attributes from its siblings'.
fn part() -> Result<()> {
    // SAFETY: only CLONE_FS: no descriptor or memory of a sibling is touched, and nothing here relies on the
    // working directory being shared.
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
    fn a_mask_is_one_thread_s_and_ends_with_its_guard() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let usual = made(dir.path(), "usual");
        thread::scope(|scope| {
            scope.spawn(|| {
                for (mask_bits, mode) in [(0o077, 0o600), (0, 0o666), (0o111, 0o666)] {
                    let (masked_now, masked) = channel();
                    // It shares all with the thread that starts it.
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
