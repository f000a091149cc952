//! Rules of the tree: which crate may depend on which, where `unsafe`, libc and file-descriptor numbers may
//! appear (`ARCHITECTURE.md`), and how comments and tests are worded (`CONTRIBUTING.md`).
//!
//! [`ROOMS`] has the first as data; `tests/it/house.rs`, `docs.rs` and `words.rs` check the tree.
#![forbid(unsafe_code)]

mod comments;

pub use comments::{Comment, Documents, comments_of};

use std::path::{Path, PathBuf};

/// One row of the house. A crate may depend on crates of lower rows only.
pub struct Room {
    /// Path prefix of its crates, relative to the workspace.
    pub folder: &'static str,
    /// Height: larger is higher up.
    pub row: u32,
    /// `true` if `unsafe` may be written in it.
    pub may_be_unsafe: bool,
    /// `true` if libc, rustix, raw pointers and file-descriptor numbers may be named in it.
    pub may_name_the_system: bool,
}

const fn room(folder: &'static str, row: u32, may_be_unsafe: bool, may_name_the_system: bool) -> Room {
    Room { folder, row, may_be_unsafe, may_name_the_system }
}

/// The rows of the house, from the ground up.
pub const ROOMS: &[Room] = &[
    room("mem", 0, true, true),
    room("sys", 1, true, true),
    room("core", 2, false, true),
    room("wire", 3, false, true),
    room("shm", 3, true, true),
    room("host/runtime", 4, false, true),
    // Devices, links, sessions and VMMs are independent of each other.
    room("host/links", 5, false, true),
    room("host/vhost", 5, false, true),
    room("host/tls", 5, false, true),
    room("host/vmm", 5, false, true),
    room("host/rpc", 6, false, true),
    // In the row of back ends and front ends: only crates that assemble a process depend on it.
    room("host/service", 7, false, true),
    room("layer", 7, false, false),
    room("back", 7, false, false),
    room("front", 7, false, false),
    // Precedes its folder's general entry, as the first match counts. It receives pointers from C.
    room("client/c", 8, true, true),
    room("client", 7, false, false),
    room("cli", 8, false, false),
    // A separate program in the row of the shipped ones, so that neither can depend on the other.
    room("bench", 8, false, false),
    // An allocator requires `unsafe`.
    room("tests/allocations", 9, true, true),
    // Tests and tools may depend on everything; nothing may depend on them except as a development
    // dependency.
    room("tests", 9, false, true),
];

/// Permitted dependencies within a row, or upwards: from, to.
pub const DOORS: &[(&str, &str)] = &[
    ("wire/rpc", "wire/xdr"),
    ("wire/nfs3", "wire/xdr"),
    ("wire/nfs3", "wire/rpc"),
    // The measured guest is no part of the product.
    ("bench", "tests/vhost-driver"),
    // Neither is the emulated link.
    ("bench", "tests/wan"),
];

/// Returns the root of the workspace.
///
/// # Panics
///
/// Panics where Cargo has no metadata of it.
pub fn workspace_root() -> PathBuf {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec().expect("cargo metadata");
    metadata.workspace_root.into_std_path_buf()
}

/// Returns the room of a crate at `path` below the workspace.
pub fn room_of(path: &Path) -> Option<&'static Room> {
    ROOMS.iter().find(|room| path.starts_with(room.folder))
}

/// Returns all Rust sources below `folder`, except build output.
pub fn sources(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
