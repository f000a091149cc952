//! What a server exports.

use crate::location::{self, Location};

/// The paths of a server's exports, where a location names the server and nothing in it. `None` where it does
/// not, or the server does not tell.
pub fn of(location: &Location) -> Option<Vec<Vec<u8>>> {
    let Location::Nfs(url) = location else { return None };
    if url.path != b"/" {
        return None;
    }
    let mut exports = location::exports(url).ok()?;
    exports.sort();
    Some(exports)
}
