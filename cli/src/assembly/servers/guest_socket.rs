//! Sockets for VMMs: created by this process for a user or a group, or inherited from its parent.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf, absolute};

use tombolo_host_runtime::listener::Listener;
use tombolo_host_runtime::names;
use tombolo_sys::{change, creds, open, socket};

use crate::assembly::options::virtiofs::VirtioFsSocket;
use crate::failure::{Failure, OrCannot};

/// Group and permission bits of new sockets; `None` for the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    pub group: Option<u32>,
    pub mode: Option<u32>,
}

/// A listening socket for VMMs.
pub enum GuestSocket {
    /// Created by this process; dropping it removes the file.
    Made(Listener),
    /// Inherited; its file, if any, belongs to another process.
    Inherited {
        socket: UnixListener,
        /// Path, or the number of the inherited descriptor.
        at: PathBuf,
    },
}

impl SocketAccess {
    /// Resolves a group by name or number, with permission bits as for chmod(1).
    pub fn new(group: Option<&str>, mode: Option<u32>) -> Result<Self, Failure> {
        let group = group.map(group_id).transpose()?;
        Ok(Self { group, mode })
    }

    /// Returns the permission bits; by default a named group may connect, as with virtiofsd.
    fn mode(self) -> u32 {
        self.mode.unwrap_or(if self.group.is_some() { 0o660 } else { 0o600 })
    }
}

fn group_id(group: &str) -> Result<u32, Failure> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let finding = format!("find group {group}");
    match names::group_id(group) {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(Failure::cannot(finding, "no such group")),
        Err(error) => Err(Failure::cannot(finding, &error).remedy("use its number instead")),
    }
}

impl GuestSocket {
    /// Opens all sockets, in order. Inherited descriptors are verified before any socket is created, because
    /// an invalid number could become a new socket's.
    pub fn open_all<'a>(
        places: impl Iterator<Item = &'a VirtioFsSocket> + Clone,
        access: SocketAccess,
    ) -> Result<Vec<Self>, Failure> {
        let mut handed_in = Vec::new();
        for place in places.clone().filter(|place| matches!(place, VirtioFsSocket::Inherited(_))) {
            handed_in.push(Self::open(place, access)?);
        }
        let mut handed_in = handed_in.into_iter();
        let next = |place: &VirtioFsSocket| match place {
            VirtioFsSocket::Inherited(_) => handed_in.next().map(Ok),
            VirtioFsSocket::Path(_) => Some(Self::open(place, access)),
        };
        places.filter_map(next).collect()
    }

    pub fn open(at: &VirtioFsSocket, access: SocketAccess) -> Result<Self, Failure> {
        match at {
            VirtioFsSocket::Path(path) => {
                let listener = Listener::bind(path, OWNER_ONLY).or_cannot("listen for guests")?;
                give(path, access)?;
                Ok(Self::Made(listener))
            }
            VirtioFsSocket::Inherited(fd) => {
                let socket = inherited(*fd)?;
                let path = socket.local_addr().ok().and_then(|at| at.as_pathname().map(Path::to_owned));
                Ok(Self::Inherited { socket, at: path.unwrap_or_else(|| at.to_string().into()) })
            }
        }
    }

    /// Adopts the listening socket that a keeper has bound to `path` and passed as descriptor `fd`.
    pub fn kept(fd: i32, path: &Path) -> Result<Self, Failure> {
        let at = absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self::Inherited { socket: inherited(fd)?, at })
    }

    pub fn socket(&self) -> &UnixListener {
        match self {
            Self::Made(listener) => listener.socket(),
            Self::Inherited { socket, .. } => socket,
        }
    }

    pub fn path(&self) -> PathBuf {
        match self {
            Self::Made(listener) => absolute(listener.path()).unwrap_or_else(|_| listener.path().to_owned()),
            Self::Inherited { at, .. } => at.clone(),
        }
    }
}

fn inherited(fd: i32) -> Result<UnixListener, Failure> {
    let socket = socket::inherited_listener(fd).map_err(|errno| {
        Failure::cannot(format_args!("use descriptor {fd} for guests"), &io::Error::from(errno))
            .remedy("pass a listening UNIX stream socket")
    })?;
    Ok(socket.into())
}

const OWNER_ONLY: u32 = 0o600;

/// Sets the group before the mode, which is meant for that group.
fn give(path: &Path, access: SocketAccess) -> Result<(), Failure> {
    let giving = |what: String| format!("set {what} of the socket {}", path.display());
    if access == SocketAccess::default() {
        return Ok(());
    }
    let place = place_of(path).or_cannot(giving("the access".into()))?;
    if let Some(group) = access.group {
        change::owner(place.as_fd(), None, Some(group)).map_err(|errno| {
            let failure = Failure::cannot(giving(format!("group {group}")), &io::Error::from(errno));
            failure.remedy("the server's user must be a member, or root")
        })?;
    }
    if access.mode() == OWNER_ONLY {
        return Ok(());
    }
    let given = change::permissions(place.as_fd(), access.mode()).map_err(io::Error::from);
    given.or_cannot(giving(format!("mode {:o}", access.mode())))
}

/// Opens the socket just created. Fails if it was replaced, for instance by a link to another user's file,
/// which is possible in a directory that others can write.
fn place_of(path: &Path) -> io::Result<File> {
    let path = absolute(path)?;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let dir = open::open_root(dir)?;
    let place = File::from(open::open_place(dir.as_fd(), name.as_bytes())?);
    let found = place.metadata()?;
    let is_ours = found.file_type().is_socket() && found.nlink() == 1 && found.uid() == creds::own_ids().0;
    if is_ours { Ok(place) } else { Err(io::Error::other("it was replaced by another file")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn file_replacing_socket_keeps_its_owner() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let mode = |name: &str| fs::metadata(at(name)).expect("stat").permissions().mode() & 0o777;
        let access = SocketAccess { group: None, mode: Some(0o666) };
        let _socket = UnixListener::bind(at("socket")).expect("bind");
        give(&at("socket"), access).expect("our own");
        assert_eq!(mode("socket"), 0o666);
        fs::write(at("precious"), "").expect("write");
        fs::set_permissions(at("precious"), PermissionsExt::from_mode(0o600)).expect("chmod");
        symlink("precious", at("link")).expect("symlink");
        let _other = UnixListener::bind(at("other")).expect("bind");
        fs::set_permissions(at("other"), PermissionsExt::from_mode(0o600)).expect("chmod");
        fs::hard_link(at("other"), at("name-of-other")).expect("link");
        for (name, state) in [("link", "precious"), ("precious", "precious"), ("name-of-other", "other")] {
            assert!(give(&at(name), access).is_err(), "{name}");
            assert_eq!(mode(state), 0o600, "{name}");
        }
    }
}
