//! Probes for kernel features, by requesting and releasing them.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::errno::{Result, check};
use crate::fanotify::Fanotify;

/// Succeeds if file-system events can be watched (fanotify with file ids and names, as permitted to the
/// machine's root).
pub fn fanotify() -> Result<()> {
    Fanotify::new().map(drop)
}

/// Succeeds if an io_uring can be created.
pub fn io_uring() -> Result<()> {
    // `struct io_uring_params` has 120 bytes, all zero by default.
    let mut parameters = [0_u64; 15];
    // SAFETY: the kernel reads and writes 120 bytes at the pointer, which live through the call.
    let outcome = unsafe { libc::syscall(libc::SYS_io_uring_setup, 2, parameters.as_mut_ptr()) };
    close(outcome)
}

/// Succeeds if memory can be shared by descriptor and sealed against shrinking.
pub fn sealed_memory() -> Result<()> {
    let memory = memfd_create("tombolo-probe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, 4096)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK)
}

fn close(outcome: libc::c_long) -> Result<()> {
    let number = libc::c_int::try_from(check(outcome)?).unwrap_or(libc::c_int::MAX);
    // SAFETY: the kernel has just created this descriptor for this call, and no other owner has it.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_leave_nothing_open() {
        let open = || std::fs::read_dir("/proc/self/fd").expect("proc").count();
        let before = open();
        for _ in 0..50 {
            let _ = (fanotify(), io_uring(), sealed_memory());
        }
        // Other tests of this process open and close descriptors concurrently.
        assert!(open() < before + 50);
        sealed_memory().expect("every kernel since 3.17 seals");
    }
}
