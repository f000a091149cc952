//! A guest's identity: a small disk that it finds when it begins to run, and that goes before it is saved.

use std::path::Path;

use serde_json::{Value, json};

use crate::machine::IDENTITY_SLOT;
use crate::monitor::{Monitor, MonitorError};

/// The disk's serial number: in guests with udev it is `/dev/disk/by-id/virtio-tombolo-identity`.
pub const SERIAL: &str = "tombolo-identity";

pub(crate) const DISK: &str = "identity";
pub(crate) const NODE: &str = "identity-file";

impl Monitor {
    /// Opens this file, of whole sectors, for the disk that has a guest's identity. The guest does not see
    /// it.
    pub fn open_identity(&mut self, file: &Path) -> Result<(), MonitorError> {
        let file = file.to_string_lossy();
        let node = json!({
            "driver": "raw", "node-name": NODE, "read-only": true,
            "file": { "driver": "file", "filename": file, "read-only": true },
        });
        self.execute("blockdev-add", &node).map(drop)
    }

    /// Gives the machine a read-only disk that is the file which was opened for it, after its
    /// [shares](crate::shares) if it `has_shares`. They go with the network card ([`unplug`](Self::unplug)).
    pub fn plug_identity(&mut self, has_shares: bool) -> Result<(), MonitorError> {
        let disk = json!({
            "driver": "virtio-blk-pci", "id": DISK, "drive": NODE, "serial": SERIAL, "bus": IDENTITY_SLOT,
            "addr": "0.0", "multifunction": has_shares,
        });
        self.execute("device_add", &disk).map(drop)
    }

    /// Whether the guest has read that disk since it was plugged, as it does when it has found it. Nothing
    /// where QEMU does not tell.
    pub fn has_read_identity(&mut self) -> Result<Option<bool>, MonitorError> {
        let told = self.execute("query-blockstats", &json!({}))?;
        let is_its = |disk: &&Value| disk["node-name"] == NODE;
        let reads =
            told.as_array().and_then(|disks| disks.iter().find(is_its)?["stats"]["rd_operations"].as_u64());
        Ok(reads.map(|reads| reads > 0))
    }
}
