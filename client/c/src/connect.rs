//! Connection to a server, at a socket or over memory shared with another kernel.

use std::error::Error as _;
use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libtombolo::{Tree, User};
use tombolo_back_vrpc_client::{Memory, Socket, VrpcExport};
use tombolo_core::fs::Mode;
use tombolo_core::{Error, Identity};
use tombolo_host_links::bell::{BellLocation, BellSource, PORTS};
use tombolo_host_links::connect::{ConnectError, ConnectOptions};
use tombolo_host_links::rendezvous::JoinError;
use tombolo_host_links::shared_memory::{MemoryError, MemoryLocation};
use tombolo_shm::doorbell;
use tombolo_shm::link::{Incarnation, NAME_BYTES_MAX, PageError, RefusalCode, Refused};
use tombolo_shm::region::RegionError;
use tombolo_shm::region::mmapper::DEVICE;
use tombolo_sys::{affinity, caller};

use crate::boundary::Failure;

/// Attaches to an export as the user of the calling thread. `place` is the path of a socket, or names memory:
/// `shm+file:PATH`, `shm+pci:[BDF]` or `shm+mmapper:`.
pub(crate) fn attach(place: &[u8], name: &[u8]) -> Result<Tree, Failure> {
    // A longer name would be truncated, and might then be that of another export.
    if name.len() > NAME_BYTES_MAX {
        return Err(Failure(-libc::ENAMETOOLONG));
    }
    let name = std::str::from_utf8(name).map_err(|_| Failure(-libc::ENOENT))?;
    // Each session chooses its own incarnation in place of this one.
    let unused = Incarnation([0; 16]);
    let options = ConnectOptions::new(name, "libtombolo", unused).map_err(|_| Failure::BROKEN)?;
    let (path, mode) = (Path::new(OsStr::from_bytes(place)), doorbell::Mode::default());
    let export = match memory_at(place)? {
        Some(memory) => {
            let bell = BellLocation::find(&memory, Path::new(PORTS)).map(BellSource::new);
            VrpcExport::new(Memory::new(memory, bell, options, mode))
        }
        None => VrpcExport::new(Socket::new(path, options, mode).map_err(|error| system(&error))?),
    };
    let user = User {
        identity: own_identity()?,
        // The umask is irrelevant, because this interface creates no files.
        umask: Mode::new(0o022),
        realm: format!("libtombolo: {}", path.display()),
    };
    Tree::attach(&export, user).map_err(|error| reason(&error))
}

/// Returns the memory that `place` names; `None` if it is the path of a socket. Fails with `EINVAL` if it
/// begins with `shm+` and is none of the three.
fn memory_at(place: &[u8]) -> Result<Option<MemoryLocation>, Failure> {
    if let Some(path) = place.strip_prefix(b"shm+file:") {
        return Ok(Some(MemoryLocation::File(OsStr::from_bytes(path).into())));
    }
    if let Some(address) = place.strip_prefix(b"shm+pci:")
        && !address.contains(&b'/')
    {
        let address = std::str::from_utf8(address).map_err(|_| Failure::INVALID)?;
        return Ok(Some(MemoryLocation::Pci((!address.is_empty()).then(|| address.into()))));
    }
    match place {
        b"shm+mmapper:" => Ok(Some(MemoryLocation::Mmapper(DEVICE.into()))),
        place if place.starts_with(b"shm+") => Err(Failure::INVALID),
        _ => Ok(None),
    }
}

/// Returns the identity with which this thread opens files.
fn own_identity() -> Result<Identity, Failure> {
    let caller =
        caller::of_thread(affinity::own_thread()).map_err(|errno| Failure::from(Error::from(errno)))?;
    let groups = (!caller.groups.is_empty()).then(|| caller.groups.into());
    Ok(Identity { uid: caller.uid, gid: caller.gid, groups })
}

/// Returns the error number of a failed connection: that of the link's error among its causes, if there is
/// one, otherwise its own.
fn reason(error: &Error) -> Failure {
    let mut below = error.source();
    while let Some(error) = below {
        // A boxed error appears in the chain as itself.
        let errno = error.downcast_ref().map(of_connect);
        let errno = errno.or_else(|| error.downcast_ref().map(of_join));
        if let Some(errno) = errno.or_else(|| error.downcast_ref().map(of_memory)) {
            return Failure(-errno);
        }
        below = error.source();
    }
    Failure(tombolo_wire_fuse::status::to_errno(error).to_wire())
}

fn of_connect(error: &ConnectError) -> c_int {
    match error {
        ConnectError::Away { .. } => libc::ECONNREFUSED,
        ConnectError::NotALinkSocket { .. } => libc::ENOTSOCK,
        ConnectError::Refused { refused, .. } => of_refusal(refused),
        ConnectError::Silent { .. } => libc::ETIMEDOUT,
        ConnectError::Closed { .. } => libc::ECONNRESET,
        ConnectError::Answer { .. } => libc::EPROTO,
        ConnectError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        ConnectError::Memory(_) => libc::ENOMEM,
    }
}

fn of_join(error: &JoinError) -> c_int {
    match error {
        JoinError::Busy => libc::EBUSY,
        JoinError::Refused(refused) => of_refusal(refused),
        JoinError::Silent => libc::ETIMEDOUT,
        JoinError::Ended(_) => libc::ECONNRESET,
        JoinError::Page(_) | JoinError::Welcome(_) | JoinError::Window => libc::EPROTO,
        JoinError::Io(source) => source.raw_os_error().unwrap_or(libc::EIO),
        JoinError::Start(_) => libc::EAGAIN,
    }
}

fn of_memory(error: &MemoryError) -> c_int {
    match error {
        // No server has written the page yet.
        MemoryError::Page { source: PageError::Blank, .. } => libc::ECONNREFUSED,
        MemoryError::Page { .. } | MemoryError::Length { .. } => libc::EPROTO,
        MemoryError::Region(RegionError::Size { .. }) => libc::EPROTO,
        MemoryError::Region(RegionError::NoDevice { .. }) => libc::ENODEV,
        MemoryError::Region(RegionError::Several { .. }) => libc::ENOTUNIQ,
        MemoryError::Region(RegionError::Io { source, .. }) => source.raw_os_error().unwrap_or(libc::EIO),
        MemoryError::Region(_) => libc::EIO,
    }
}

fn of_refusal(refused: &Refused) -> c_int {
    match refused.code {
        RefusalCode::NoExport => libc::ENOENT,
        RefusalCode::NotAllowed => libc::EACCES,
        RefusalCode::TooMany => libc::EUSERS,
        RefusalCode::Failed => libc::EIO,
        _ => libc::EPROTO,
    }
}

pub(crate) fn system(error: &std::io::Error) -> Failure {
    Failure(-error.raw_os_error().unwrap_or(libc::EIO))
}
