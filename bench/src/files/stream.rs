//! Sequential reading and writing of a large file, 1 MiB at a time.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use super::Tree;
use super::small::whole;
use crate::error::Doing;
use crate::measure::Work;

/// Size of a read or write.
const PIECE: usize = 1 << 20;
const PIECES: u64 = (Tree::LARGE_BYTES / PIECE) as u64;

/// Opens, reads completely, and closes the large file of the tree at `root`.
pub fn stream_read(root: &Path) -> Work<'static> {
    let (path, mut buffer) = (root.join(Tree::large()), vec![0; PIECE]);
    let once = move || {
        let mut file = File::open(&path).doing_to("open", &path)?;
        let mut total = 0;
        loop {
            match file.read(&mut buffer).doing_to("read", &path)? {
                0 => return whole("read", &path, total, Tree::LARGE_BYTES),
                got => total += got as u64,
            }
        }
    };
    Work::repeat(PIECES, once).bytes(PIECE as u64)
}

/// Opens, overwrites completely, and closes a large file; `name` distinguishes contestants.
pub fn stream_write(root: &Path, name: &str) -> Work<'static> {
    let path = root.join(Tree::new_folder()).join(format!("{name}.large"));
    let content = vec![b'w'; PIECE];
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let once = move || {
        let mut file = options.open(&path).doing_to("open", &path)?;
        (0..PIECES).try_for_each(|_| file.write_all(&content)).doing_to("write", &path)
    };
    Work::repeat(PIECES, once).bytes(PIECE as u64)
}
