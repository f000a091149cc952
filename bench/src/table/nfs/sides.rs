//! Measured servers.

use crate::error::{Error, Result};
use crate::files::Tree;
use crate::nfs::Limit;
use crate::peer::Nfs;
use crate::report::Report;

use super::{BARE, NULL, OURS, PEER};

/// A server with its column.
pub(super) struct Side {
    pub column: &'static str,
    pub server: Nfs,
}

/// All servers of the table that could be started.
#[derive(Default)]
pub(super) struct Sides {
    pub servers: Vec<Side>,
    /// Server of [`Limit::Swap`].
    pub bare: Option<Nfs>,
    /// Server of [`Limit::Null`].
    pub null: Option<Nfs>,
}

impl Sides {
    /// Starts all servers, and reports those that failed.
    pub fn start(tree: &Tree, no_peer: Option<&str>, report: &mut Report) -> Self {
        let mut here = |column: &str, server: Result<Nfs>| {
            server.map_err(|error| report.absent(format!("{column}: {error}"))).ok()
        };
        let (shared, beside) = (tree.shared(), tree.beside(""));
        let mut servers = Vec::new();
        let ours = here(OURS, Nfs::tombolo(&shared, &beside));
        servers.extend(ours.map(|server| Side { column: OURS, server }));
        let peer = match no_peer {
            Some(reason) => Err(Error::Absent(reason.to_owned())),
            None => Nfs::ganesha(&shared, &beside),
        };
        servers.extend(here(PEER, peer).map(|server| Side { column: PEER, server }));
        let bare = here(BARE, Nfs::limit(Limit::Swap));
        let null = here(NULL, Nfs::limit(Limit::Null));
        Self { servers, bare, null }
    }

    /// Returns the server that shows a limit, if it could be started.
    pub fn limit(&self, column: &str) -> Option<(&'static str, &Nfs)> {
        let bare = self.bare.as_ref().map(|server| (BARE, server));
        let null = self.null.as_ref().map(|server| (NULL, server));
        bare.into_iter().chain(null).find(|(name, _)| *name == column)
    }

    /// Returns columns and servers, without borrowing the table.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, &Nfs)> {
        self.servers.iter().map(|side| (side.column, &side.server))
    }
}
