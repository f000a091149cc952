//! The memory of an ivshmem device in a guest: BAR 2 of PCI device 1af4:1110, backed by a file of the host.
//! Needs no driver, only permission to open the BAR's file in sysfs, which root has.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tombolo_mem::Region;
use tombolo_sys::open::OpenFlags;

use crate::region::{RegionError, map, region_len};

/// The kernel's list of devices.
pub const DEVICES: &str = "/sys/bus/pci/devices";

/// Ids of QEMU's ivshmem (docs/specs/ivshmem-spec: "Device Registers").
const VENDOR: u32 = 0x1af4;
const DEVICE: u32 = 0x1110;
/// Number of the BAR (a device's memory range) with the shared memory.
const MEMORY_BAR: usize = 2;

/// Maps the memory of the device at `address` (such as 0000:00:03.0, or 00:03.0), or of the only device for
/// `None`. `devices` is [`DEVICES`], except in tests.
pub fn open(devices: &Path, address: Option<&str>) -> Result<Region, RegionError> {
    let device = find(devices, address)?;
    let bytes = bar_bytes(&device)?;
    let bar = bar_of(&device);
    region_len(&bar, bytes)?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OpenFlags::SYNC.bits().cast_signed())
        .open(&bar)
        .map_err(|source| RegionError::io(bar.display(), source))?;
    map(&bar, &file, bytes)
}

/// Returns the path of the file that [`open`] maps, without mapping it.
pub fn file(devices: &Path, address: Option<&str>) -> Result<PathBuf, RegionError> {
    Ok(bar_of(&find(devices, address)?))
}

fn bar_of(device: &Path) -> PathBuf {
    device.join(format!("resource{MEMORY_BAR}"))
}

fn find(devices: &Path, address: Option<&str>) -> Result<PathBuf, RegionError> {
    if let Some(address) = address {
        // Without a domain, domain 0 is meant, as lspci prints it.
        let full =
            if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() };
        let device = devices.join(&full);
        let sound = full.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
        return match sound && is_ivshmem(&device) {
            true => Ok(device),
            false => Err(RegionError::NoDevice { which: Some(address.to_owned()) }),
        };
    }
    let io = |source| RegionError::io(devices.display(), source);
    let mut found = Vec::new();
    for entry in fs::read_dir(devices).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if is_ivshmem(&path) {
            found.push(path);
        }
    }
    found.sort();
    match found.len() {
        0 => Err(RegionError::NoDevice { which: None }),
        1 => Ok(found.swap_remove(0)),
        _ => {
            let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Err(RegionError::Several { found: found.iter().map(name).collect() })
        }
    }
}

fn is_ivshmem(device: &Path) -> bool {
    number(&device.join("vendor")) == Some(VENDOR) && number(&device.join("device")) == Some(DEVICE)
}

fn number(path: &Path) -> Option<u32> {
    let text = fs::read_to_string(path).ok()?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Returns the length of the BAR, from the device's list of resources, which has a line for each BAR: first
/// address, last address, flags.
fn bar_bytes(device: &Path) -> Result<u64, RegionError> {
    let path = device.join("resource");
    let text = fs::read_to_string(&path).map_err(|source| RegionError::io(path.display(), source))?;
    let invalid = || RegionError::io(path.display(), std::io::ErrorKind::InvalidData);
    let line = text.lines().nth(MEMORY_BAR).ok_or_else(invalid)?;
    let mut fields = line.split_whitespace().map(|field| {
        field.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or_else(invalid)
    });
    let first = fields.next().ok_or_else(invalid)??;
    let last = fields.next().ok_or_else(invalid)??;
    if last == 0 {
        return Ok(0);
    }
    last.checked_sub(first).and_then(|less_one| less_one.checked_add(1)).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a device as in sysfs, with a plain file for the BAR.
    fn device(devices: &Path, address: &str, ids: (&str, &str), resource: &str) {
        let device = devices.join(address);
        fs::create_dir(&device).expect("a directory");
        fs::write(device.join("vendor"), format!("{}\n", ids.0)).expect("write");
        fs::write(device.join("device"), format!("{}\n", ids.1)).expect("write");
        fs::write(device.join("resource"), resource).expect("write");
        fs::write(device.join("resource2"), vec![7; 8192]).expect("write");
    }

    const RESOURCE: &str = "0x00000000febd1000 0x00000000febd10ff 0x0000000000040200\n\
                            0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                            0x00000000fe800000 0x00000000fe801fff 0x000000000014220c\n";

    #[test]
    fn the_only_device_is_found_and_mapped_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        device(dir.path(), "0000:00:02.0", ("0x8086", "0x10d3"), RESOURCE);
        assert!(matches!(open(dir.path(), None), Err(RegionError::NoDevice { which: None })));
        device(dir.path(), "0000:00:03.0", ("0x1af4", "0x1110"), RESOURCE);
        for address in [None, Some("0000:00:03.0"), Some("00:03.0")] {
            let region = open(dir.path(), address).expect("the device");
            let mut last = [0];
            region.read_at(8191, &mut last).expect("inside");
            assert_eq!((region.len(), last), (8192, [7]));
        }
        for address in ["00:02.0", "00:04.0", "../0000:00:03.0", ""] {
            assert!(
                matches!(open(dir.path(), Some(address)), Err(RegionError::NoDevice { .. })),
                "{address}"
            );
        }
        device(dir.path(), "0000:00:05.0", ("0x1af4", "0x1110"), RESOURCE);
        let several = open(dir.path(), None).expect_err("two");
        assert!(several.to_string().ends_with("0000:00:03.0, 0000:00:05.0"), "{several}");
        assert!(open(dir.path(), Some("00:05.0")).is_ok());
    }

    #[test]
    fn resources_that_make_no_sense_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let bar = |lines: &str| format!("0x0 0x0 0x0\n0x0 0x0 0x0\n{lines}\n");
        for (number, resource) in [
            String::new(),
            bar("0x10 0x0f 0x0"),
            bar("0x0 0xffffffffffffffff 0x0"),
            bar("word 0x0f 0x0"),
            bar("0x0"),
            bar("0x0 0x0 0x0"),
            bar("0x1000 0x1fff0 0x0"),
        ]
        .iter()
        .enumerate()
        {
            let address = format!("0000:00:{number:02x}.0");
            device(dir.path(), &address, ("0x1af4", "0x1110"), resource);
            assert!(open(dir.path(), Some(&address)).is_err(), "{resource:?}");
        }
    }
}
