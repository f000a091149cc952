//! Failure to obtain an export.

use crate::failure::Failure;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMounted {
    pub server: ServerState,
    pub reason: String,
    pub remedy: Option<&'static str>,
}

/// Expectation for a server that gave no export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It responded, or does not exist: retrying is useless.
    Settled,
    /// Unreachable at present.
    Away,
    /// Its name has no address: misspelt, or the name service is unavailable.
    Nowhere,
}

impl NotMounted {
    /// Returns a permanent failure.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { server: ServerState::Settled, reason: reason.into(), remedy: None }
    }

    /// Returns the failure for an unreachable server.
    pub fn away(reason: impl Into<String>) -> Self {
        Self { server: ServerState::Away, ..Self::new(reason) }
    }

    /// Returns the failure of a command.
    pub fn while_doing(self, doing: &str) -> Failure {
        let failure = Failure::cannot(doing, self.reason);
        match self.remedy {
            Some(remedy) => failure.remedy(remedy),
            None => failure,
        }
    }
}
