//! TUN devices: network interfaces whose packets a process reads and writes (Linux,
//! `Documentation/networking/tuntap.rst`).

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

use crate::errno::{Errno, Result, check, retry};

/// Creates a device of this name in the network namespace of this thread. The device exists as long as the
/// returned descriptor, which is nonblocking and transfers one IP packet per read or write. A device that is
/// moved to another namespace stays attached to the descriptor.
pub fn make(name: &str) -> Result<OwnedFd> {
    let fd = open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
    };
    // Leaves one byte for the terminator.
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(Errno::INVAL);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    retry(|| {
        // SAFETY: the kernel reads and writes one ifreq at an address that is valid during the call.
        let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        check(outcome.into())
    })?;
    Ok(fd)
}
