//! What a proxy says of its sessions: the reply to `sessions`, in `docs/protocols/control.md`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::service::status::EndpointStatus;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    pub name: String,
    pub state: SessionState,
    /// Why it is in that state, where it should not be.
    pub failure: Option<String>,
    /// What is cached, and under which name it is served and counted.
    pub source: String,
    pub export: String,
    /// The directory of its cache.
    pub cache: String,
    pub mode: String,
    pub contract: String,
    /// How one gets at it.
    #[serde(rename = "ways")]
    pub endpoints: Vec<EndpointStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionState {
    Starting,
    Running,
    /// Its front ends are gone, and the origin gets what it lacks.
    Ending,
    /// The origin has everything, some of it in two versions.
    Ended,
    /// It was there before the proxy was started, and is tried again.
    Waiting,
    /// It could not be made.
    Failed,
    /// It was detached, and the origin lacks something: the next start brings it back.
    Kept,
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Ending => "ending",
            Self::Ended => "ended",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Kept => "kept",
        })
    }
}
