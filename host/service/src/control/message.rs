//! The messages.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the protocol, told in each answer to `status`.
pub const PROTOCOL: u32 = 1;

/// The longest request that a server reads, in bytes, with its newline.
pub const LINE_LIMIT_BYTES: usize = 65_536;

/// The request that changes something.
pub(super) const SET: &str = "set";

/// The request that makes a session.
pub(super) const CREATE: &str = "session-create";

/// What a tool asks.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// Comes back in the reply.
    #[serde(default)]
    pub id: u64,
    /// What is asked for.
    pub request: String,
    /// With `set`: what is to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<String>,
    /// The session that is meant, where a server has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// With a session that is to be made: how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

/// How a session is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The words behind `tombolo session create`.
    pub command: Vec<String>,
    /// The directory that relative paths among them count from.
    pub directory: PathBuf,
}

/// What the server answers: exactly one of `ok` and `error`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Reply {
    /// The request's own.
    pub id: u64,
    /// The answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
