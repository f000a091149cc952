//! Why there is no export.

use crate::failure::Failure;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMounted {
    pub server: ServerState,
    pub reason: String,
    pub remedy: Option<&'static str>,
}

/// What may be expected of a server that gave no export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It was there, or there is none: asking again is in vain.
    Settled,
    /// It is not there, and may come.
    Away,
    /// Its name has no address; that may be a slip of the pen, or the name service is away.
    Nowhere,
}

impl NotMounted {
    /// What will not go away by itself.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { server: ServerState::Settled, reason: reason.into(), remedy: None }
    }

    /// The server is not there.
    pub fn away(reason: impl Into<String>) -> Self {
        Self { server: ServerState::Away, ..Self::new(reason) }
    }

    /// As a failure of a command.
    pub fn while_doing(self, doing: &str) -> Failure {
        let failure = Failure::cannot(doing, self.reason);
        match self.remedy {
            Some(remedy) => failure.remedy(remedy),
            None => failure,
        }
    }
}
