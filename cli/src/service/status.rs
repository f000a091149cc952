//! Status of a server: the reply to `status` in `docs/protocols/control.md`.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tombolo_host_service::control::{Client, PROTOCOL};

use crate::failure::{Failure, OrCannot};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub protocol: u32,
    pub version: String,
    pub pid: u32,
    pub exports: Vec<ExportStatus>,
    /// Endpoints of all exports, called `ways` in the protocol.
    #[serde(rename = "ways")]
    pub endpoints: Vec<EndpointStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportStatus {
    pub name: String,
    /// Source of the export's files: a location, or `disk:` and the source of a disk.
    pub source: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// `virtiofs`, `fuse`, `shm`, `shm-file`, `nfs` or `nfs-tls`; for a disk `vhost-user-blk`, `nbd` or
    /// `fuse`.
    pub kind: String,
    /// Socket, memory, mount point or address; `stdio` for standard input and output.
    pub at: String,
    pub export: String,
}

impl Status {
    /// Returns the status of this process, with its version and process id.
    pub fn of_this_process(exports: Vec<ExportStatus>, endpoints: Vec<EndpointStatus>) -> Self {
        let version = env!("CARGO_PKG_VERSION").into();
        Self { protocol: PROTOCOL, version, pid: std::process::id(), exports, endpoints }
    }
}

impl EndpointStatus {
    pub fn new(kind: &str, at: &impl ToString, export: &impl ToString) -> Self {
        Self { kind: kind.into(), at: at.to_string(), export: export.to_string() }
    }
}

/// Sends a request to the server at `socket`, and decodes the reply.
pub fn ask<T: DeserializeOwned>(client: &mut Client, socket: &Path, request: &str) -> Result<T, Failure> {
    let asking = format!("query the server at {} for its {request}", socket.display());
    let answer = client.ask(request).or_cannot(&asking)?;
    serde_json::from_value(answer).or_cannot(&asking)
}
