//! `/dev/mmapper` in a UML guest: the file that was given to it with `iomem=mmapper,FILE`.

use std::fs::OpenOptions;
use std::path::Path;

use tombolo_mem::Region;

use crate::region::{PAGE_BYTES, RegionError};

/// Where the device is.
pub const DEVICE: &str = "/dev/mmapper";

/// Maps `bytes` of the device from its start: it does not say how long it is. Touching what lies behind the end of the file kills the
/// process in some kernels, so ask for one page first, and learn the length from that (docs/formats/link.md, "Page").
pub fn open(device: &Path, bytes: u64) -> Result<Region, RegionError> {
    let size = || RegionError::Size { path: device.to_owned(), bytes };
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(size());
    }
    let len = usize::try_from(bytes).map_err(|_| size())?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(device)
        .map_err(|source| RegionError::io(device.display(), source))?;
    Region::map(&file, 0, len).map_err(|source| RegionError::map(device.display(), source))
}
