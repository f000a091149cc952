//! Memory that is shared by descriptor, and seals on it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use bitflags::bitflags;
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
    open,
};

use crate::errno::{Errno, Result, retry};

bitflags! {
    /// What no process can do with the memory any more (fcntl(2), "File Sealing"). None of them is ever taken
    /// off.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Seals: u32 {
        /// Add seals.
        const SEAL = SealFlags::SEAL.bits();
        /// Make it shorter.
        const SHRINK = SealFlags::SHRINK.bits();
        /// Make it longer.
        const GROW = SealFlags::GROW.bits();
        /// Write to it in any way.
        const WRITE = SealFlags::WRITE.bits();
        /// Write to it but through mappings that were made before the seal.
        const FUTURE_WRITE = SealFlags::FUTURE_WRITE.bits();
    }
}

/// New memory of `bytes` zeroes that takes seals. `name` is what /proc shows; pages exist once they are
/// touched.
pub fn create(name: &str, bytes: u64) -> Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    retry(|| ftruncate(&memory, bytes))?;
    Ok(memory)
}

/// The same, of a length that stays, as programs that this one starts have it too: by that number.
pub fn heritable(name: &str, bytes: u64) -> Result<(OwnedFd, i32)> {
    let memory = create(name, bytes)?;
    seal(&memory, Seals::SHRINK | Seals::GROW)?;
    let memory = rustix::io::dup(memory)?;
    let number = memory.as_raw_fd();
    Ok((memory, number))
}

/// Memory that the program which has started this one has, by its number.
pub fn inherited(number: i32) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    retry(|| open(format!("/proc/self/fd/{number}"), flags, Mode::empty()))
}

/// Seals it. EPERM when it was sealed against that.
pub fn seal(memory: impl AsFd, seals: Seals) -> Result<()> {
    fcntl_add_seals(memory, SealFlags::from_bits_retain(seals.bits()))
}

/// The seals on it. EINVAL for a descriptor of something that takes none, such as a file on a disk.
pub fn seals(memory: impl AsFd) -> Result<Seals> {
    Ok(Seals::from_bits_retain(fcntl_get_seals(memory)?.bits()))
}

/// Its size in bytes.
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
    fn a_file_on_a_disk_or_a_pipe_has_no_seals() {
        // Of /tmp one cannot know: a file of a tmpfs has F_SEAL_SEAL.
        let executable = File::open("/proc/self/status").expect("a file");
        assert_eq!(seals(&executable), Err(Errno::INVAL));
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        assert_eq!(seals(&reader), Err(Errno::INVAL));
    }
}
