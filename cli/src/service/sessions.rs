//! Status of a proxy's sessions: the reply to `sessions` in `docs/protocols/control.md`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::service::status::EndpointStatus;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    pub name: String,
    pub state: SessionState,
    /// Reason for an abnormal state.
    pub failure: Option<String>,
    /// Origin, and the export's name for clients and counters.
    pub source: String,
    pub export: String,
    /// Cache directory.
    pub cache: String,
    pub mode: String,
    pub contract: String,
    /// Endpoints that serve the session; empty before it runs and after it has ended.
    #[serde(rename = "ways")]
    pub endpoints: Vec<EndpointStatus>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionState {
    #[default]
    Starting,
    Running,
    /// Front ends are closed, and remaining changes are being sent.
    Ending,
    /// The origin has everything, but some of it in two versions, or the record of sessions still contains
    /// this one.
    Ended,
    /// Restored at the proxy's start, and being retried.
    Waiting,
    /// Could not be created.
    Failed,
    /// Detached with unsent changes: restored at the next start.
    Kept,
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
