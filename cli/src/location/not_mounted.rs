//! Why there is no export.

use crate::failure::Failure;

/// Why there is no export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMounted {
    /// Whether the server was not there, and may come back.
    pub away: bool,
    /// For people.
    pub reason: String,
    /// What to do about it.
    pub remedy: Option<&'static str>,
}

impl NotMounted {
    /// What will not go away by itself.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { away: false, reason: reason.into(), remedy: None }
    }

    /// The server is not there.
    pub fn away(reason: impl Into<String>) -> Self {
        Self { away: true, ..Self::new(reason) }
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
