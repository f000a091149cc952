//! The messages.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the protocol, told in each answer to `status`.
pub const PROTOCOL: u32 = 1;

/// The longest request that a server reads, in bytes, with its newline.
pub const LINE_LIMIT_BYTES: usize = 4096;

/// The request that changes something.
pub(super) const SET: &str = "set";

/// What a tool asks.
#[derive(Debug, Serialize, Deserialize)]
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
