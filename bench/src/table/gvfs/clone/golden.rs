//! Images of virtual machines that have run a service, made by `tests/guests/golden`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::error::{Doing, Result};
use crate::peer::{Program, completed, find, in_checkout, this_program};

/// Size of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub memory: &'static str,
    pub disk: &'static str,
    /// Incompressible part of the disk.
    pub filled: &'static str,
}

pub const QUICK: Size = Size { memory: "128M", disk: "16M", filled: "4M" };
pub const USUAL: Size = Size { memory: "192M", disk: "64M", filled: "16M" };
/// The paper's size.
pub const FULL: Size = Size { memory: "320M", disk: "1600M", filled: "400M" };

/// Creates an image, recorded for prefetching.
pub fn make(image: &Path, size: Size) -> Result<()> {
    let mut command = Command::new(in_checkout(Path::new("tests/guests/golden"))?);
    command.arg(image).args(["--memory", size.memory, "--disk", size.disk, "--filled", size.filled]);
    command.env("TOMBOLO", find(Program::Tombolo)?).env("TOMBOLO_BENCH", this_program()?);
    completed("tests/guests/golden", &mut command).map(drop)
}

/// Returns the size of an image's files.
pub fn bytes(image: &Path) -> Result<u64> {
    let entries = fs::read_dir(image).doing_to("list", image)?;
    Ok(entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|file| file.size()).sum())
}
