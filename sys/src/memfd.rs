//! Memory shared by descriptor, with seals.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use bitflags::bitflags;
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
    open,
};

use crate::errno::{Errno, Result, retry};

bitflags! {
    /// Operations forbidden on the memory to all processes (fcntl(2), "File Sealing"). Seals are never
    /// removed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Seals: u32 {
        /// Adding further seals.
        const SEAL = SealFlags::SEAL.bits();
        /// Shrinking the memory.
        const SHRINK = SealFlags::SHRINK.bits();
        /// Growing the memory.
        const GROW = SealFlags::GROW.bits();
        /// All writes; cannot be added while a writable mapping exists.
        const WRITE = SealFlags::WRITE.bits();
        /// Writes, except through mappings made before the seal.
        const FUTURE_WRITE = SealFlags::FUTURE_WRITE.bits();
    }
}

/// Creates memory of `bytes` zeroes that accepts seals. `name` is shown in /proc; pages are allocated on
/// first access.
pub fn create(name: &str, bytes: u64) -> Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    retry(|| ftruncate(&memory, bytes))?;
    Ok(memory)
}

/// Creates memory of fixed length that child programs inherit under the returned number.
pub fn heritable(name: &str, bytes: u64) -> Result<(OwnedFd, i32)> {
    let memory = create(name, bytes)?;
    seal(&memory, Seals::SHRINK | Seals::GROW)?;
    let memory = rustix::io::dup(memory)?;
    let number = memory.as_raw_fd();
    Ok((memory, number))
}

/// Opens memory inherited from the parent program under this number. The inherited descriptor itself stays
/// open.
pub fn inherited(number: i32) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    retry(|| open(format!("/proc/self/fd/{number}"), flags, Mode::empty()))
}

/// Adds seals. EPERM after [`Seals::SEAL`]; EBUSY for [`Seals::WRITE`] while a writable mapping exists.
pub fn seal(memory: impl AsFd, seals: Seals) -> Result<()> {
    fcntl_add_seals(memory, SealFlags::from_bits_retain(seals.bits()))
}

/// Returns the seals. EINVAL for a descriptor that does not support them, such as a file on a disk.
pub fn seals(memory: impl AsFd) -> Result<Seals> {
    Ok(Seals::from_bits_retain(fcntl_get_seals(memory)?.bits()))
}

/// Returns the size, in bytes.
pub fn size_bytes(memory: impl AsFd) -> Result<u64> {
    u64::try_from(fstat(memory)?.st_size).map_err(|_| Errno::OVERFLOW)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn sealed_memory_keeps_its_size_and_takes_no_writes() {
        let memory = create("test", 8192).expect("memory");
        assert_eq!(size_bytes(&memory), Ok(8192));
        assert_eq!(seals(&memory), Ok(Seals::empty()));
        seal(&memory, Seals::SHRINK | Seals::FUTURE_WRITE | Seals::SEAL).expect("seal");
        assert_eq!(seals(&memory), Ok(Seals::SHRINK | Seals::FUTURE_WRITE | Seals::SEAL));
        assert_eq!(seal(&memory, Seals::GROW), Err(Errno::PERM));
        let file = File::from(memory);
        assert!(file.set_len(4096).is_err());
        assert!(file.write_at(b"x", 0).is_err());
    }

    #[test]
    fn disk_files_and_pipes_have_no_seals() {
        // Not in /tmp, which may be a tmpfs, whose files have F_SEAL_SEAL.
        let executable = File::open("/proc/self/status").expect("a file");
        assert_eq!(seals(&executable), Err(Errno::INVAL));
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        assert_eq!(seals(&reader), Err(Errno::INVAL));
    }
}
