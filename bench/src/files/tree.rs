//! The directory that is served.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Doing, Result};

/// Small files in each folder.
const PER_FOLDER: usize = 1000;

/// A directory of the run's own, with what the operations need. It is removed when dropped.
#[derive(Debug)]
pub struct Tree {
    root: TempDir,
    files: usize,
}

impl Tree {
    pub const SMALL_BYTES: usize = 4096;
    pub const LARGE_BYTES: usize = 64 << 20;

    /// Makes a tree below `within` with so many small files and a large one.
    pub fn new(within: &Path, files: usize) -> Result<Self> {
        let root = crate::table::folder(within)?;
        let tree = Self { root, files };
        for folder in ["shared", "shared/new", "mounts"] {
            let folder = tree.root.path().join(folder);
            fs::create_dir(&folder).doing_to("make", &folder)?;
        }
        let content = vec![b'x'; Self::SMALL_BYTES];
        for number in 0..files {
            let path = tree.shared().join(Self::small(number));
            if number % PER_FOLDER == 0 {
                let folder = path.parent().unwrap_or(tree.root.path());
                fs::create_dir(folder).doing_to("make", folder)?;
            }
            fs::write(&path, &content).doing_to("write", &path)?;
        }
        let large = tree.shared().join(Self::large());
        fs::write(&large, vec![b'y'; Self::LARGE_BYTES]).doing_to("write", &large)?;
        Ok(tree)
    }

    pub fn shared(&self) -> PathBuf {
        self.root.path().join("shared")
    }

    /// Where a server mounts it, or puts its socket.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.root.path().join("mounts").join(name)
    }

    /// How many small files there are.
    pub fn files(&self) -> usize {
        self.files
    }

    /// A small file, relative to the root.
    pub fn small(number: usize) -> PathBuf {
        format!("d{}/f{number}", number / PER_FOLDER).into()
    }

    /// The large file, relative to the root.
    pub fn large() -> &'static Path {
        Path::new("large")
    }

    /// A folder for what is made and removed again, relative to the root.
    pub fn new_folder() -> &'static Path {
        Path::new("new")
    }
}
