//! Start of QEMU as a child process that ends with this one.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use tombolo_sys::process::{Death, await_end, ends_with_this_thread};

use crate::end::{End, Events, receive_events};

/// Starts a VMM with a monitor at its standard input that reports its end. The VMM is killed when this
/// process ends.
///
/// QEMU requests huge pages for all guest memory (madvise(2), `MADV_HUGEPAGE`). If the memory is a file of a
/// clone, whose pages are remote, the kernel then reads 2 MiB around each accessed page, whatever its
/// read-ahead setting (Linux 5.18, `do_sync_mmap_readahead`). The request is therefore made to fail, which
/// QEMU ignores.
///
/// # Errors
/// Errors of starting a process.
pub fn spawn(mut command: Command) -> io::Result<(Child, Events)> {
    let filter = without_huge_pages().map_err(io::Error::other)?;
    let (ours, theirs) = UnixStream::pair()?;
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    let (sender, started) = channel();
    // The filter applies to the thread that installs it and its children, which die with the thread.
    let listening = thread::Builder::new().name("vmm-events".into()).spawn(move || {
        ends_with_this_thread(&mut command, Death::Killed);
        let child = apply_filter(&filter).map_err(io::Error::other).and_then(|()| command.spawn());
        // With the command dropped only the VMM holds the other end of the connection, which closes with the
        // VMM.
        drop(command);
        let number = child.as_ref().ok().map(Child::id);
        let _ = sender.send(child);
        let Some(number) = number else { return End::Unknown };
        let end = receive_events(ours);
        // Waits for the end even after a protocol violation.
        let _ = await_end(number);
        end
    })?;
    let child = started.recv().unwrap_or_else(|_| Err(io::Error::other("the starting thread panicked")));
    Ok((child?, Events::new(listening)))
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
