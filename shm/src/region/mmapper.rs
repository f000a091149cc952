//! `/dev/mmapper` in a UML guest: the file passed to it with `iomem=mmapper,FILE`.

use std::fs::OpenOptions;
use std::path::Path;

use tombolo_mem::Region;

use crate::region::{RegionError, map, region_len};

/// Path of the device.
pub const DEVICE: &str = "/dev/mmapper";

/// Maps `bytes` of the device from its start; its length cannot be queried. An access beyond the end of the
/// file kills the process in some kernels, so map one page first, and take the length from that page
/// (docs/formats/link.md, "In a file").
pub fn open(device: &Path, bytes: u64) -> Result<Region, RegionError> {
    region_len(device, bytes)?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(device)
        .map_err(|source| RegionError::io(device.display(), source))?;
    map(device, &file, bytes)
}
