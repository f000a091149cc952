//! Exports of an NFS server, for `tombolo ls` of a location that names none.

use crate::location::{self, Location};

/// Returns the export paths of a server, if the location names only the server and the server lists them. A
/// server over ssh is not queried: its paths are those of its host, and only ssh connects to it.
pub fn of(location: &Location) -> Option<Vec<Vec<u8>>> {
    let Location::Nfs(url) = location else { return None };
    if url.path != b"/" || url.ssh.is_some() {
        return None;
    }
    let mut exports = location::exports(url).ok()?;
    exports.sort();
    Some(exports)
}
