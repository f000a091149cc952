//! The root of an export, and its recovery.

use tombolo_core::Result;
use tombolo_wire_nfs3::{FileHandleBuf, Reply};

use crate::background::Background;
use crate::caller::Caller;
use crate::calls::Nfs;
use crate::mounting;
use crate::server::Endpoint;

/// The root of an export, and the state that its sessions share.
#[derive(Debug)]
pub(crate) struct Root {
    pub nfs: Nfs,
    pub handle: FileHandleBuf,
    /// Parameters to mount the export again by path; `None` for a handle obtained otherwise.
    pub mounted: Option<Mounted>,
    /// Background work of all sessions.
    pub background: Background,
}

/// Parameters with which the root was mounted.
#[derive(Clone, Debug)]
pub(crate) struct Mounted {
    pub endpoint: Endpoint,
    pub path: String,
    pub reserved_port: Option<bool>,
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Some(Mounted { endpoint: Endpoint::Tunnel(tunnel), .. }) = &self.mounted {
            tunnel.close();
        }
    }
}

impl Root {
    /// Returns the root's handle, which may differ after a restart of the server. `None` if it is stale and
    /// the export cannot be mounted again.
    pub(crate) async fn handle_again(&self, caller: &Caller) -> Result<Option<FileHandleBuf>> {
        if let Reply::Ok(_) = self.nfs.getattr(caller, self.handle).await? {
            return Ok(Some(self.handle));
        }
        let Some(Mounted { endpoint, path, reserved_port }) = &self.mounted else { return Ok(None) };
        match mounting::root(endpoint, path, *reserved_port).await {
            Ok((handle, _)) => Ok(Some(handle)),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "root handle is stale and mounting again failed");
                Ok(None)
            }
        }
    }
}
