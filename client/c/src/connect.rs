//! Connection to a server at a socket.

use std::error::Error as _;
use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libtombolo::{Tree, User};
use tombolo_back_vrpc_client::{Socket, VrpcExport};
use tombolo_core::fs::Mode;
use tombolo_core::{Error, Identity};
use tombolo_host_links::connect::{ConnectError, ConnectOptions};
use tombolo_shm::doorbell;
use tombolo_shm::link::{Incarnation, NAME_BYTES_MAX, RefusalCode};
use tombolo_sys::{affinity, caller};

use crate::boundary::Failure;

/// Attaches to an export as the user of the calling thread.
pub(crate) fn attach(socket: &[u8], name: &[u8]) -> Result<Tree, Failure> {
    // A longer name would be truncated, and might then be that of another export.
    if name.len() > NAME_BYTES_MAX {
        return Err(Failure(-libc::ENAMETOOLONG));
    }
    let name = std::str::from_utf8(name).map_err(|_| Failure(-libc::ENOENT))?;
    let socket = Path::new(OsStr::from_bytes(socket));
    // Each session chooses its own incarnation in place of this one.
    let unused = Incarnation([0; 16]);
    let options = ConnectOptions::new(name, "libtombolo", unused).map_err(|_| Failure::BROKEN)?;
    let links = Socket::new(socket, options, doorbell::Mode::default()).map_err(|error| system(&error))?;
    let user = User {
        identity: own_identity()?,
        // The umask is irrelevant, because this interface creates no files.
        umask: Mode::new(0o022),
        realm: format!("libtombolo: {}", socket.display()),
    };
    Tree::attach(&VrpcExport::new(links), user).map_err(|error| reason(&error))
}

/// Returns the identity with which this thread opens files.
fn own_identity() -> Result<Identity, Failure> {
    let caller =
        caller::of_thread(affinity::own_thread()).map_err(|errno| Failure::from(Error::from(errno)))?;
    let groups = (!caller.groups.is_empty()).then(|| caller.groups.into());
    Ok(Identity { uid: caller.uid, gid: caller.gid, groups })
}

/// Returns the error number of a failed connection: that of the [`ConnectError`] among its causes, if there
/// is one, otherwise its own.
fn reason(error: &Error) -> Failure {
    let mut below = error.source();
    while let Some(error) = below {
        // A boxed error appears in the chain as itself.
        if let Some(error) = error.downcast_ref::<ConnectError>() {
            return Failure(-of_connect(error));
        }
        below = error.source();
    }
    Failure(tombolo_wire_fuse::status::to_errno(error).to_wire())
}

fn of_connect(error: &ConnectError) -> c_int {
    match error {
        ConnectError::Away { .. } => libc::ECONNREFUSED,
        ConnectError::NotALinkSocket { .. } => libc::ENOTSOCK,
        ConnectError::Refused { refused, .. } => match refused.code {
            RefusalCode::NoExport => libc::ENOENT,
            RefusalCode::NotAllowed => libc::EACCES,
            RefusalCode::TooMany => libc::EUSERS,
            RefusalCode::Failed => libc::EIO,
            _ => libc::EPROTO,
        },
        ConnectError::Silent { .. } => libc::ETIMEDOUT,
        ConnectError::Closed { .. } => libc::ECONNRESET,
        ConnectError::Answer { .. } => libc::EPROTO,
        ConnectError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        ConnectError::Memory(_) => libc::ENOMEM,
    }
}

pub(crate) fn system(error: &std::io::Error) -> Failure {
    Failure(-error.raw_os_error().unwrap_or(libc::EIO))
}
