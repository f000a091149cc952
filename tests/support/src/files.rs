//! Files of layers under test.

use std::fs;
use std::path::Path;

/// Copies a directory as a kill would leave it. A cache's index precedes the files on which its rows depend,
/// and databases precede their logs: entries moved meanwhile are in both.
pub fn image(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("mkdir");
    let mut files: Vec<_> = fs::read_dir(from).expect("list").flatten().collect();
    files.sort_by_key(|file| (!file.file_name().to_string_lossy().starts_with("index.db"), file.file_name()));
    for file in files {
        match file.file_type().expect("a type").is_dir() {
            true => image(&file.path(), &to.join(file.file_name())),
            // A file may be removed meanwhile.
            false => drop(fs::copy(file.path(), to.join(file.file_name()))),
        }
    }
}
