//! Status of a server: the reply to `status` in `docs/protocols/control.md`.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tombolo_host_service::control::{Client, PROTOCOL};

use crate::failure::Failure;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub protocol: u32,
    pub version: String,
    pub pid: u32,
    pub exports: Vec<ExportStatus>,
    /// Endpoints.
    #[serde(rename = "ways")]
    pub endpoints: Vec<EndpointStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportStatus {
    pub name: String,
    /// Origin of the export's files.
    pub source: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// `virtiofs`, `fuse`, `shm`, `shm-file`, `nfs` or `nfs-tls`; for a disk `vhost-user-blk`, `nbd` or
    /// `fuse`.
    pub kind: String,
    /// Socket, mount point or address.
    pub at: String,
    /// Name of the export.
    pub export: String,
}

impl Status {
    /// Returns the status of this process.
    pub fn of_this_process(exports: Vec<ExportStatus>, endpoints: Vec<EndpointStatus>) -> Self {
        let version = env!("CARGO_PKG_VERSION").into();
        Self { protocol: PROTOCOL, version, pid: std::process::id(), exports, endpoints }
    }
}

/// Sends a request to the server at `socket`, and decodes the reply.
pub fn ask<T: DeserializeOwned>(client: &mut Client, socket: &Path, request: &str) -> Result<T, Failure> {
    let asking = format!("query the server at {} for its {request}", socket.display());
    let answer = client.ask(request).map_err(|error| Failure::cannot(&asking, &error))?;
    serde_json::from_value(answer).map_err(|error| Failure::cannot(&asking, &error))
}
