//! Failure to obtain an export.

use crate::failure::Failure;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMounted {
    pub server: Reachability,
    pub reason: String,
    pub remedy: Option<&'static str>,
}

/// Reachability of a server that has provided no export, by which callers decide on retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// Retrying is useless, for instance because the server has refused.
    Permanent,
    /// The server is unreachable at present.
    Unreachable,
    /// The server's name has no address: it is misspelt, or the name service is unavailable.
    Unresolved,
}

impl NotMounted {
    /// Returns a permanent failure.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { server: Reachability::Permanent, reason: reason.into(), remedy: None }
    }

    /// Returns the failure for an unreachable server.
    pub fn unreachable(reason: impl Into<String>) -> Self {
        Self { server: Reachability::Unreachable, ..Self::new(reason) }
    }

    /// Returns the failure `cannot DOING: REASON`, with the remedy.
    pub fn while_doing(self, doing: &str) -> Failure {
        self.remedy.into_iter().fold(Failure::cannot(doing, self.reason), Failure::remedy)
    }
}
