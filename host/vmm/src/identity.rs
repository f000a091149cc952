//! A guest's identity: a small disk, plugged before a guest boots or right after it is resumed from its
//! device state, and unplugged before it is saved.

use std::path::Path;

use serde_json::{Value, json};

use crate::machine::IDENTITY_SLOT;
use crate::monitor::{Monitor, MonitorError};

/// Serial number of the disk: `/dev/disk/by-id/virtio-tombolo-identity` in guests with udev.
pub const SERIAL: &str = "tombolo-identity";

pub(crate) const DISK: &str = "identity";
pub(crate) const NODE: &str = "identity-file";

impl Monitor {
    /// Opens a file of whole sectors for the identity disk. Not visible to the guest.
    pub fn open_identity(&mut self, file: &Path) -> Result<(), MonitorError> {
        let file = file.to_string_lossy();
        let node = json!({
            "driver": "raw", "node-name": NODE, "read-only": true,
            "file": { "driver": "file", "filename": file, "read-only": true },
        });
        self.execute("blockdev-add", &node).map(drop)
    }

    /// Plugs the opened file as a read-only disk. If the guest `has_shares`, they must be plugged before,
    /// because the guest detects them with this disk ([`shares`](crate::shares)). [`unplug`](Self::unplug)
    /// unplugs the disk and the shares together with the network card.
    pub fn plug_identity(&mut self, has_shares: bool) -> Result<(), MonitorError> {
        let disk = json!({
            "driver": "virtio-blk-pci", "id": DISK, "drive": NODE, "serial": SERIAL, "bus": IDENTITY_SLOT,
            "addr": "0.0", "multifunction": has_shares,
        });
        self.execute("device_add", &disk).map(drop)
    }

    /// Returns `true` if the guest has read the disk since it was plugged, as guests do when they detect a
    /// disk. `None` if QEMU does not report that.
    pub fn has_read_identity(&mut self) -> Result<Option<bool>, MonitorError> {
        let reply = self.execute("query-blockstats", &json!({}))?;
        let is_its = |disk: &&Value| disk["node-name"] == NODE;
        let reads =
            reply.as_array().and_then(|disks| disks.iter().find(is_its)?["stats"]["rd_operations"].as_u64());
        Ok(reads.map(|reads| reads > 0))
    }
}
