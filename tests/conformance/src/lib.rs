//! Conformance suites of Tombolo's file systems and disks.
//!
//! - [`waist`]: cases against an [`Export`](tombolo_core::fs::Export): every operation, every documented
//!   error, and guarantees to users. Run over every back end, bare and under layers.
//! - [`disk`]: cases against a [`BlockDevice`](tombolo_core::block::BlockDevice), run over every disk.
//! - [`posix`]: cases against a mounted directory, by system calls only: the program `tombolo-conformance
//!   DIR`. Run on plain file systems (where all pass: they are the oracle), through FUSE mounts, and inside
//!   guests.
//! - [`walk`]: random changes by several mounts of one directory and by the host: the program
//!   `tombolo-conformance --walk`.
//!
//! A case is a function with a name. It passes, fails (by a panic with the reason), or is skipped with a
//! reason.
#![forbid(unsafe_code)]

pub mod disk;
pub mod posix;
mod report;
pub mod waist;
pub mod walk;

pub use report::{Report, Skip, Verdict};

/// Returns `true` in the long run (`make test-long`), which uses full sizes.
pub fn is_long_run() -> bool {
    std::env::var_os("TOMBOLO_LONG").is_some()
}

/// Returns bytes with a period that is no power of two.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| ((index + seed) % 251) as u8).collect()
}

/// Encodes an access list as `linux/posix_acl_xattr.h` specifies: tag, rights and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |&(tag, perm, id): &(u16, u16, u32)| {
        [tag.to_le_bytes().as_slice(), &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2_u32.to_le_bytes().to_vec()].into_iter().chain(entries.iter().map(entry)).flatten().collect()
}

/// Returns the access list `user::rw-, user:7:rw-, group::r--, mask::rw-, other::---`.
fn sample_acl() -> Vec<u8> {
    acl(&[(0x01, 6, u32::MAX), (0x02, 6, 7), (0x04, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)])
}
