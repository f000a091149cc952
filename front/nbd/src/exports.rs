//! Disks by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use tombolo_core::block::BlockDevice;
use tombolo_wire_nbd::{BlockSizes, PAYLOAD_BYTES_MAX, TransmissionFlags};

/// A server's disks by name. A single disk is also found by the empty name, the default.
#[derive(Clone, Default)]
pub struct Exports(BTreeMap<String, Arc<dyn BlockDevice>>);

impl Exports {
    /// Adds a disk, replacing one with the same name.
    pub fn add(&mut self, name: impl Into<String>, disk: Arc<dyn BlockDevice>) {
        self.0.insert(name.into(), disk);
    }

    /// Iterates over the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the disk that a client requests by `name`, if there is one, and the disk's own name.
    pub(crate) fn find(&self, name: &str) -> Option<(&str, &Arc<dyn BlockDevice>)> {
        let found = self.0.get_key_value(name).or_else(|| {
            let alone = name.is_empty() && self.0.len() == 1;
            if alone { self.0.first_key_value() } else { None }
        });
        found.map(|(name, disk)| (name.as_str(), disk))
    }
}

/// Returns a disk's properties as NBD flags.
pub(crate) fn flags(disk: &dyn BlockDevice, can_df: bool) -> TransmissionFlags {
    use TransmissionFlags as Flags;
    let profile = disk.profile();
    // NBD_FLAG_CAN_MULTI_CONN is set, because the waist guarantees that a flush covers the writes answered on
    // every connection.
    let mut flags = Flags::HAS_FLAGS | Flags::SEND_FLUSH | Flags::SEND_FUA | Flags::CAN_MULTI_CONN;
    flags.set(Flags::SEND_DF, can_df);
    flags.set(Flags::READ_ONLY, profile.read_only);
    flags.set(Flags::SEND_TRIM, profile.discards && !profile.read_only);
    flags.set(Flags::SEND_WRITE_ZEROES | Flags::SEND_FAST_ZERO, !profile.read_only);
    flags
}

pub(crate) fn block_sizes(disk: &dyn BlockDevice) -> BlockSizes {
    let geometry = disk.geometry();
    BlockSizes {
        minimum: geometry.block_bytes,
        preferred: geometry.physical_block_bytes.max(geometry.optimal_bytes).max(geometry.block_bytes),
        payload_max: PAYLOAD_BYTES_MAX,
    }
}
