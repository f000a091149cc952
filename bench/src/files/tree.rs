//! Served directory.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Doing, Result};
use crate::measure::go_on;

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
        fill(&tree.shared(), (0..files).map(|number| (Self::small(number), Self::SMALL_BYTES)))?;
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

/// Creates files of these sizes below a directory, which is created if missing, as are theirs.
pub fn fill(root: &Path, files: impl Iterator<Item = (PathBuf, usize)>) -> Result<()> {
    fs::create_dir_all(root).doing_to("make", root)?;
    let mut folder = root.to_owned();
    for (name, bytes) in files {
        let path = root.join(name);
        if let Some(parent) = path.parent().filter(|parent| *parent != folder) {
            go_on()?;
            fs::create_dir_all(parent).doing_to("make", parent)?;
            folder = parent.to_owned();
        }
        fs::write(&path, vec![b'x'; bytes]).doing_to("write", &path)?;
    }
    Ok(())
}
