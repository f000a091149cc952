//! Tree of many small files under version control.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::error::{Doing, Result};
use crate::files::fill;
use crate::table::mounts::Place;

/// Number of files per directory.
const PER_FOLDER: usize = 100;
const BYTES: usize = 1024;
/// Age of the files. git reads a file again unless it is older than the index.
const AGE: Duration = Duration::from_secs(3600);

/// The tree and its parent, removed on drop.
pub struct SmallTree {
    root: TempDir,
    files: usize,
}

impl SmallTree {
    /// Creates `files` files below `within`.
    pub fn new(within: &Path, files: usize) -> Result<Self> {
        let tree = Self { root: crate::table::folder(within)?, files };
        fill(&tree.shared(), (0..files).map(|number| (Self::file(number), BYTES)))?;
        let then = SystemTime::now() - AGE;
        for path in (0..files).map(|number| tree.shared().join(Self::file(number))) {
            let file = File::options().write(true).open(&path);
            file.and_then(|file| file.set_modified(then)).doing_to("date", &path)?;
        }
        Ok(tree)
    }

    pub fn shared(&self) -> PathBuf {
        self.root.path().join("shared")
    }

    /// Returns the path of a mount point or socket next to the tree.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Returns the location of mounts of the tree.
    pub fn place(&self) -> Place {
        Place { shared: self.shared(), beside: self.beside("") }
    }

    /// Returns a file next to the tree, which [`Self::date`] makes newer than all in it.
    pub fn newest(&self) -> PathBuf {
        self.beside("newest")
    }

    /// Creates the newest file; nothing may be changed afterwards.
    pub fn date(&self) -> Result<()> {
        let path = self.newest();
        File::create(&path).doing_to("make", &path).map(drop)
    }

    /// Returns a file, relative to the root.
    pub fn file(number: usize) -> PathBuf {
        format!("d{:03}/f{:05}", number / PER_FOLDER, number).into()
    }

    /// Returns the directories of the first `files` files, relative to the root.
    pub fn folders(&self, files: usize) -> Vec<PathBuf> {
        let firsts = (0..self.files.min(files)).step_by(PER_FOLDER);
        firsts.filter_map(|number| Self::file(number).parent().map(PathBuf::from)).collect()
    }

    /// Returns `count` files from all over the tree, relative to the root.
    pub fn some(&self, count: usize) -> Vec<PathBuf> {
        let step = (self.files / count.max(1)).max(1);
        (0..self.files).step_by(step).take(count).map(Self::file).collect()
    }
}
