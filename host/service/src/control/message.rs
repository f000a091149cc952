//! Messages of the control protocol.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the protocol, part of each reply to `status`.
pub const PROTOCOL: u32 = 1;

/// Maximum length of a request in bytes, including its newline.
pub const LINE_LIMIT_BYTES: usize = 65_536;

/// Name of the request that changes options.
pub(super) const SET: &str = "set";

/// Name of the request that creates a session.
pub(super) const CREATE: &str = "session-create";

/// A request: one line of JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// Number that the reply repeats.
    #[serde(default)]
    pub id: u64,
    /// Name of the request.
    pub request: String,
    /// With `set`: the options to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<String>,
    /// The session, if the server has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// With `session-create`: parameters of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

/// Parameters of a new session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Arguments of `tombolo session create`.
    pub command: Vec<String>,
    /// Base directory of relative paths in the arguments.
    pub directory: PathBuf,
}

/// A reply with exactly one of `ok` and `error`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Reply {
    pub id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    /// The reason for a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
