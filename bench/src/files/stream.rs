//! Reading and writing a large file from end to end, 1 MiB at a time.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::Tree;
use crate::error::{Doing, Error, Result};
use crate::measure::{Clock, Work};

/// Bytes of one read or write.
const PIECE: usize = 1 << 20;
/// Pieces of the file.
const PIECES: u64 = (Tree::LARGE_BYTES / PIECE) as u64;

/// open, read all of it, close.
pub struct StreamRead {
    path: PathBuf,
    buffer: Vec<u8>,
}

impl StreamRead {
    /// On the tree as seen at `root`.
    pub fn new(root: &Path) -> Self {
        Self { path: root.join(Tree::large()), buffer: vec![0; PIECE] }
    }
}

impl Work for StreamRead {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        clock.start();
        for _ in 0..whole_files(count) {
            let mut file = File::open(&self.path).doing_to("open", &self.path)?;
            let mut total = 0;
            loop {
                let got = file.read(&mut self.buffer).doing_to("read", &self.path)?;
                if got == 0 {
                    break;
                }
                total += got;
            }
            drop(file);
            clock.lap_of(PIECES);
            if total != Tree::LARGE_BYTES {
                let what = format!("read {}", self.path.display());
                return Err(Error::Wrong { what, answer: format!("{total} bytes") });
            }
        }
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        Some(PIECE as u64)
    }
}

/// open, write all of it over what is there, close.
pub struct StreamWrite {
    path: PathBuf,
    content: Vec<u8>,
}

impl StreamWrite {
    /// On the tree as seen at `root`; `name` tells contestants apart.
    pub fn new(root: &Path, name: &str) -> Self {
        let path = root.join(Tree::new_folder()).join(format!("{name}.large"));
        Self { path, content: vec![b'w'; PIECE] }
    }
}

impl Work for StreamWrite {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        clock.start();
        for _ in 0..whole_files(count) {
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(false)
                .open(&self.path)
                .doing_to("open", &self.path)?;
            for _ in 0..PIECES {
                file.write_all(&self.content).doing_to("write", &self.path)?;
            }
            drop(file);
            clock.lap_of(PIECES);
        }
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        Some(PIECE as u64)
    }
}

/// A file is read or written whole.
fn whole_files(pieces: u64) -> u64 {
    pieces.div_ceil(PIECES).max(1)
}
