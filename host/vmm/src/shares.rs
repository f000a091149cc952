//! File systems of the host that a running machine gets and gives back: vhost-user-fs devices, which QEMU 7.2
//! cannot save.
//!
//! They are the functions 1 to 7 of the slot whose function 0 is the disk with the guest's identity: a guest
//! looks for the others when that appears, and all go with it. So a machine has the same ports with shares
//! and without.

use std::path::Path;

use serde_json::json;

use crate::machine::IDENTITY_SLOT;
use crate::monitor::{Monitor, MonitorError};

/// A slot has eight functions (PCI Local Bus 3.0 §6.2.1), one of which is the identity's.
pub const SHARES_MAX: usize = 7;

/// The name of a share's device, and of what it is connected to.
pub(crate) fn id_of(number: usize) -> String {
    format!("share-{}", number + 1)
}

impl Monitor {
    /// Connects to the server of the share of this number, below [`SHARES_MAX`]. The guest does not see it.
    pub fn connect_share(&mut self, number: usize, socket: &Path) -> Result<(), MonitorError> {
        let address = json!({ "type": "unix", "data": { "path": socket.to_string_lossy() } });
        let backend = json!({ "type": "socket", "data": { "addr": address, "server": false } });
        self.execute("chardev-add", &json!({ "id": id_of(number), "backend": backend })).map(drop)
    }

    /// Gives the machine a device for what [`connect_share`](Self::connect_share) has connected, with this
    /// tag. The guest finds it with its identity, which comes after all shares, and goes with them.
    pub fn plug_share(&mut self, number: usize, tag: &str) -> Result<(), MonitorError> {
        let id = id_of(number);
        let device = json!({
            "driver": "vhost-user-fs-pci", "id": id, "chardev": id, "tag": tag,
            "bus": IDENTITY_SLOT, "addr": format!("0.{}", number + 1),
        });
        self.execute("device_add", &device).map(drop)
    }
}
