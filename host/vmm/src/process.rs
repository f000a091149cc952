//! The VMM as a process.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use crate::end::Events;

/// Starts a VMM whose memory is a file that is far away, or an overlay of one, with a monitor at its standard input that tells of its end.
///
/// QEMU asks for huge pages for all of a guest's memory (madvise(2), `MADV_HUGEPAGE`). For a file that means that the kernel reads 2 MiB
/// around each page that the guest touches, whatever it was told to read ahead (Linux 5.18, `do_sync_mmap_readahead`). So the process is
/// refused that request, and takes no notice.
///
/// # Errors
/// Those of starting a process.
pub fn spawn(command: &mut Command) -> io::Result<(Child, Events)> {
    let filter = without_huge_pages().map_err(io::Error::other)?;
    let (ours, theirs) = UnixStream::pair()?;
    let events = Events::listen(ours)?;
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    // It holds for the thread that asks for it, and for what that starts.
    let spawned = thread::scope(|scope| {
        let start = || {
            apply_filter(&filter).map_err(io::Error::other)?;
            command.spawn()
        };
        scope.spawn(start).join()
    });
    // Its end of the connection is nowhere else then, and ends with it.
    command.stdin(Stdio::null());
    let child = spawned.unwrap_or_else(|_| Err(io::Error::other("the thread that starts it has panicked")));
    Ok((child?, events))
}

fn without_huge_pages() -> Result<BpfProgram, seccompiler::BackendError> {
    let advice = SeccompCondition::new(
        2,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Eq,
        u64::from(libc::MADV_HUGEPAGE.cast_unsigned()),
    )?;
    let rules = [(libc::SYS_madvise, vec![SeccompRule::new(vec![advice])?])];
    let refused = SeccompAction::Errno(libc::EINVAL.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules.into(), SeccompAction::Allow, refused, arch)?.try_into()
}
