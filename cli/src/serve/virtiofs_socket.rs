//! The sockets where VMMs connect: made here, for a user or a group, or handed in by the process that started this one.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf, absolute};

use tombolo_host::listener::Listener;
use tombolo_sys::{socket, users};

use super::virtiofs_arg::VirtioFsSocket;
use crate::failure::Failure;

/// Who may connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// The group of the sockets.
    pub group: Option<u32>,
    /// Their permission bits.
    pub mode: Option<u32>,
}

/// A socket that waits for VMMs.
pub enum GuestSocket {
    /// Its file goes when this is dropped.
    Made(Listener),
    /// Its file, if there is one, is somebody else's.
    Inherited {
        /// The socket.
        socket: UnixListener,
        /// Where it listens, or which descriptor it came as.
        at: PathBuf,
    },
}

impl SocketAccess {
    /// A group by its name or number, and permission bits as chmod(1) has them.
    pub fn new(group: Option<&str>, mode: Option<u32>) -> Result<Self, Failure> {
        let group = group.map(group_id).transpose()?;
        Ok(Self { group, mode })
    }

    /// As of virtiofsd: a group that is named may connect.
    fn mode(self) -> u32 {
        self.mode.unwrap_or(if self.group.is_some() { 0o660 } else { 0o600 })
    }
}

fn group_id(group: &str) -> Result<u32, Failure> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let finding = format!("find the group {group}");
    match users::group_id(group) {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(Failure::cannot(finding, "there is none of that name")),
        Err(errno) => Err(Failure::cannot(finding, &std::io::Error::from(errno))),
    }
}

impl GuestSocket {
    /// Listens where it was asked for.
    pub fn open(at: &VirtioFsSocket, access: SocketAccess) -> Result<Self, Failure> {
        match at {
            VirtioFsSocket::Path(path) => {
                let listener = Listener::bind(path, OWNER_ONLY)
                    .map_err(|error| Failure::cannot("listen for guests", &error))?;
                give(path, access)?;
                Ok(Self::Made(listener))
            }
            VirtioFsSocket::Inherited(fd) => {
                let socket = socket::inherited_listener(*fd).map_err(|errno| {
                    let failure = Failure::cannot(
                        format_args!("take descriptor {fd} for guests"),
                        &std::io::Error::from(errno),
                    );
                    failure.remedy("hand in a unix stream socket that listens")
                })?;
                let socket = UnixListener::from(socket);
                let path = socket.local_addr().ok().and_then(|at| at.as_pathname().map(Path::to_owned));
                Ok(Self::Inherited { socket, at: path.unwrap_or_else(|| at.to_string().into()) })
            }
        }
    }

    /// The socket itself.
    pub fn socket(&self) -> &UnixListener {
        match self {
            Self::Made(listener) => listener.socket(),
            Self::Inherited { socket, .. } => socket,
        }
    }

    /// Where VMMs connect.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Made(listener) => absolute(listener.path()).unwrap_or_else(|_| listener.path().to_owned()),
            Self::Inherited { at, .. } => at.clone(),
        }
    }
}

const OWNER_ONLY: u32 = 0o600;

/// The group first: nobody is to get in by the bits that are meant for another one.
fn give(path: &Path, access: SocketAccess) -> Result<(), Failure> {
    let giving = |what: String| format!("give the socket {} {what}", path.display());
    if let Some(group) = access.group {
        lchown(path, None, Some(group)).map_err(|error| {
            let failure = Failure::cannot(giving(format!("to group {group}")), &error);
            failure.remedy("the user who serves must be in it, or root")
        })?;
    }
    if access.mode() == OWNER_ONLY {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(access.mode()))
        .map_err(|error| Failure::cannot(giving(format!("mode {:o}", access.mode())), &error))
}
