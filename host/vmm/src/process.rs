//! The VMM as a process.

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

use crate::end::{End, Events, heard};

/// Starts a VMM whose memory is a file that is far away, or an overlay of one, with a monitor at its standard
/// input that tells of its end. It is killed when this process ends.
///
/// QEMU asks for huge pages for all of a guest's memory (madvise(2), `MADV_HUGEPAGE`). For a file that means
/// that the kernel reads 2 MiB around each page that the guest touches, whatever it was told to read ahead
/// (Linux 5.18, `do_sync_mmap_readahead`). So the process is refused that request, and takes no notice.
///
/// # Errors
/// Those of starting a process.
pub fn spawn(mut command: Command) -> io::Result<(Child, Events)> {
    let filter = without_huge_pages().map_err(io::Error::other)?;
    let (ours, theirs) = UnixStream::pair()?;
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    let (sender, started) = channel();
    // The filter holds for the thread that asks for it, and for what that starts; and what it starts dies
    // with it.
    let listening = thread::Builder::new().name("vmm-events".into()).spawn(move || {
        ends_with_this_thread(&mut command, Death::Killed);
        let child = apply_filter(&filter).map_err(io::Error::other).and_then(|()| command.spawn());
        // The other end of the connection is the VMM's alone then, and ends with it.
        drop(command);
        let number = child.as_ref().ok().map(Child::id);
        let _ = sender.send(child);
        let Some(number) = number else { return End::Unsaid };
        let end = heard(ours);
        // Also one that says what makes no sense.
        let _ = await_end(number);
        end
    })?;
    let child =
        started.recv().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it has panicked")));
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
