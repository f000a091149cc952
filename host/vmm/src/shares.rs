//! Host file systems that can be plugged and unplugged while the machine runs: vhost-user-fs devices, which
//! QEMU 7.2 cannot save.
//!
//! They are the functions 1 to 7 of the slot whose function 0 is the identity disk: a guest scans for the
//! others when function 0 appears, and all are unplugged together. Thus a machine has the same ports with
//! and without shares.

use std::path::Path;

use serde_json::json;

use crate::machine::IDENTITY_SLOT;
use crate::monitor::{Monitor, MonitorError};

/// Maximum number of shares: a slot has eight functions (PCI Local Bus 3.0 §6.2.1), one for the identity.
pub const SHARES_MAX: usize = 7;

/// Returns the id of a share's device and of its back end.
pub(crate) fn id_of(number: usize) -> String {
    format!("share-{}", number + 1)
}

impl Monitor {
    /// Connects to the server of a share, numbered below [`SHARES_MAX`]. Not visible to the guest.
    pub fn connect_share(&mut self, number: usize, socket: &Path) -> Result<(), MonitorError> {
        let address = json!({ "type": "unix", "data": { "path": socket.to_string_lossy() } });
        let backend = json!({ "type": "socket", "data": { "addr": address, "server": false } });
        self.execute("chardev-add", &json!({ "id": id_of(number), "backend": backend })).map(drop)
    }

    /// Plugs a device with this tag for the server of [`connect_share`](Self::connect_share). The guest
    /// detects it together with its identity, which must be plugged after all shares; they are unplugged
    /// together.
    pub fn plug_share(&mut self, number: usize, tag: &str) -> Result<(), MonitorError> {
        let id = id_of(number);
        let device = json!({
            "driver": "vhost-user-fs-pci", "id": id, "chardev": id, "tag": tag,
            "bus": IDENTITY_SLOT, "addr": format!("0.{}", number + 1),
        });
        self.execute("device_add", &device).map(drop)
    }
}
