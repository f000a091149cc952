//! The mask of permission bits that new files get.

use std::cell::Cell;
use std::marker::PhantomData;

use rustix::fs::Mode;
use rustix::thread::UnshareFlags;

use crate::errno::Result;
use crate::open::permission;

/// Clears the mask of the whole process, so that modes arrive as they were asked for.
///
/// A server does so once, at start: its clients have masks of their own.
pub fn clear() {
    rustix::process::umask(Mode::empty());
}

/// Gives the calling thread a mask until the guard is dropped, which leaves it with none.
///
/// The kernel then knows better than we could: where a directory has a default ACL, the mask does not count (acl(5)).
/// The first call on a thread parts it from the process's working directory, root and mask, for good.
pub fn mask(mask: u32) -> Result<Masked> {
    if mask != 0 {
        part()?;
        rustix::process::umask(permission(mask));
    }
    Ok(Masked { set: mask != 0, here: PhantomData })
}

/// While it lives, the thread has a mask. It stays on its thread.
#[derive(Debug)]
#[must_use = "the mask counts only while this lives"]
pub struct Masked {
    set: bool,
    here: PhantomData<*const ()>,
}

impl Drop for Masked {
    fn drop(&mut self) {
        if self.set {
            clear();
        }
    }
}

/// Parts the thread's file system attributes from its siblings', once.
fn part() -> Result<()> {
    thread_local!(static PARTED: Cell<bool> = const { Cell::new(false) });
    if !PARTED.get() {
        // SAFETY: only CLONE_FS: no descriptor or memory of a sibling is touched, and nothing here relies on the working
        // directory being shared.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS)? };
        PARTED.set(true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_mask_is_the_thread_s_own_and_ends_with_its_guard() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mode = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, b"").expect("write");
            std::fs::metadata(&path).expect("stat").permissions().mode() & 0o777
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let masked = mask(0o077).expect("mask");
                assert_eq!(mode("masked"), 0o600);
                let elsewhere = rustix::process::umask(Mode::empty());
                assert_eq!(elsewhere.as_raw_mode(), 0o077);
                drop(masked);
                assert_eq!(mode("free"), 0o666);
            });
        });
    }
}
