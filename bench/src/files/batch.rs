//! Folder of small files, from creation to removal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::Tree;
use crate::error::{Doing, Error, Result};
use crate::measure::Work;

const FILES: u64 = 32;

/// Creates a folder, writes small files into it, lists it, stats and reads each file, and removes all; the
/// figure is files per second. `root` is the tree's location; `name` distinguishes contestants.
pub fn small_files(root: &Path, name: &str) -> Work<'static> {
    let folder = root.join(Tree::new_folder()).join(format!("{name}.files"));
    let files = SmallFiles { folder, content: vec![b'z'; Tree::SMALL_BYTES] };
    Work::repeat(FILES, move || files.once()).per_second(true)
}

struct SmallFiles {
    folder: PathBuf,
    content: Vec<u8>,
}

impl SmallFiles {
    fn once(&self) -> Result<()> {
        fs::create_dir(&self.folder).doing_to("make", &self.folder)?;
        for number in 0..FILES {
            let path = self.folder.join(number.to_string());
            let mut file = File::create_new(&path).doing_to("create", &path)?;
            file.write_all(&self.content).doing_to("write", &path)?;
        }
        let mut seen = 0;
        let mut read = Vec::with_capacity(self.content.len());
        for entry in fs::read_dir(&self.folder).doing_to("list", &self.folder)? {
            let path = entry.doing_to("list", &self.folder)?.path();
            let bytes = fs::metadata(&path).doing_to("look at", &path)?.len();
            read.clear();
            File::open(&path).and_then(|mut file| file.read_to_end(&mut read)).doing_to("read", &path)?;
            if read != self.content || bytes != read.len() as u64 {
                let what = format!("read {}", path.display());
                return Err(Error::Wrong { what, answer: format!("{} bytes of {bytes}", read.len()) });
            }
            seen += 1;
        }
        if seen != FILES {
            let what = format!("list {}", self.folder.display());
            return Err(Error::Wrong { what, answer: format!("{seen} entries") });
        }
        for number in 0..FILES {
            let path = self.folder.join(number.to_string());
            fs::remove_file(&path).doing_to("remove", &path)?;
        }
        fs::remove_dir(&self.folder).doing_to("remove", &self.folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Clock;

    #[test]
    fn batch_cleans_up_and_detects_a_wrong_byte() {
        let within = tempfile::tempdir().unwrap();
        let tree = Tree::new(within.path(), 1).unwrap();
        let mut files = small_files(&tree.shared(), "test");
        let mut clock = Clock::new();
        files.run(40, &mut clock).unwrap();
        assert_eq!(clock.count(), 64, "whole folders");
        let left = fs::read_dir(tree.shared().join(Tree::new_folder())).unwrap().count();
        assert_eq!(left, 0);
        // The name is occupied by a file.
        fs::write(tree.shared().join(Tree::new_folder()).join("test.files"), "").unwrap();
        assert!(files.run(1, &mut Clock::new()).is_err());
    }
}
