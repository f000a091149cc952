//! Served directory.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Doing, Result};

/// Number of small files per folder.
const PER_FOLDER: usize = 1000;

/// A temporary directory with the files that operations need, removed on drop.
#[derive(Debug)]
pub struct Tree {
    root: TempDir,
    files: usize,
}

impl Tree {
    pub const SMALL_BYTES: usize = 4096;
    pub const LARGE_BYTES: usize = 64 << 20;

    /// Creates a tree below `within` with `files` small files and a large one.
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

    /// Returns the path of a mount point or socket next to the tree.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.root.path().join("mounts").join(name)
    }

    /// Returns the number of small files.
    pub fn files(&self) -> usize {
        self.files
    }

    /// Returns a small file, relative to the root.
    pub fn small(number: usize) -> PathBuf {
        format!("d{}/f{number}", number / PER_FOLDER).into()
    }

    /// Returns the large file, relative to the root.
    pub fn large() -> &'static Path {
        Path::new("large")
    }

    /// Returns the folder for temporary files, relative to the root.
    pub fn new_folder() -> &'static Path {
        Path::new("new")
    }
}
