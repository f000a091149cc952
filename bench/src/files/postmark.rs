//! Postmark's job (Katcher, 1997): the small files of a mail server, created, read, appended to and removed.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use super::whole;
use crate::error::{Doing, Result};
use crate::measure::go_on;

/// Seed, for the same files and transactions in each run.
const SEED: u64 = 42;
const BYTES_MIN: usize = 512;
/// Maximum size of a read or write.
const PIECE_MAX: usize = 8192;

/// Parameters of the job.
#[derive(Clone, Copy, Debug)]
pub struct Postmark {
    /// Initial number of files.
    pub files: usize,
    /// Number of transactions: each creates or removes a file, and reads or appends to one.
    pub transactions: usize,
    /// Maximum initial file size.
    pub bytes_max: usize,
    /// Number of reads per append.
    pub reads: u32,
}

impl Postmark {
    /// Runs the job in a new folder, and removes it.
    pub fn run(&self, folder: &Path) -> Result<()> {
        fs::create_dir(folder).doing_to("make", folder)?;
        let content = vec![b'm'; self.bytes_max];
        let mut pool = Pool { folder, rng: Rng::with_seed(SEED), content, files: Vec::new(), next: 0 };
        for _ in 0..self.files {
            go_on()?;
            pool.create()?;
        }
        for _ in 0..self.transactions {
            go_on()?;
            if pool.files.is_empty() || pool.rng.bool() {
                pool.create()?
            } else {
                pool.remove()?
            }
            if pool.files.is_empty() {
                continue;
            }
            if pool.rng.u32(0..=self.reads) < self.reads { pool.read()? } else { pool.append()? }
        }
        while !pool.files.is_empty() {
            go_on()?;
            pool.remove()?;
        }
        fs::remove_dir(folder).doing_to("remove", folder)
    }
}

struct Pool<'a> {
    folder: &'a Path,
    rng: Rng,
    content: Vec<u8>,
    /// Numbers and sizes of the existing files.
    files: Vec<(u64, usize)>,
    next: u64,
}

impl Pool<'_> {
    fn create(&mut self) -> Result<()> {
        let (number, bytes) = (self.next, self.some_bytes());
        self.next += 1;
        let path = self.path(number);
        let mut file = File::create_new(&path).doing_to("create", &path)?;
        self.write(&mut file, bytes).doing_to("write", &path)?;
        self.files.push((number, bytes));
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        let (number, _) = self.files.swap_remove(self.rng.usize(0..self.files.len()));
        let path = self.path(number);
        fs::remove_file(&path).doing_to("remove", &path)
    }

    fn read(&mut self) -> Result<()> {
        let (path, at) = self.one();
        let mut file = File::open(&path).doing_to("open", &path)?;
        let (mut buffer, mut total) = (vec![0; piece(&file).doing_to("look at", &path)?], 0);
        loop {
            match file.read(&mut buffer).doing_to("read", &path)? {
                0 => break,
                got => total += got as u64,
            }
        }
        whole("read", &path, total, self.files.get(at).map_or(0, |file| file.1))
    }

    fn append(&mut self) -> Result<()> {
        let ((path, at), bytes) = (self.one(), self.some_bytes());
        let mut file = OpenOptions::new().append(true).open(&path).doing_to("open", &path)?;
        self.write(&mut file, bytes).doing_to("write", &path)?;
        if let Some(file) = self.files.get_mut(at) {
            file.1 += bytes;
        }
        Ok(())
    }

    /// Returns a random file and its index.
    fn one(&mut self) -> (PathBuf, usize) {
        let at = self.rng.usize(0..self.files.len());
        (self.path(self.files.get(at).map_or(0, |file| file.0)), at)
    }

    fn some_bytes(&mut self) -> usize {
        self.rng.usize(BYTES_MIN..=self.content.len().max(BYTES_MIN))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number}"))
    }

    fn write(&self, file: &mut File, bytes: usize) -> std::io::Result<()> {
        self.content
            .get(..bytes)
            .unwrap_or_default()
            .chunks(piece(file)?)
            .try_for_each(|piece| file.write_all(piece))
    }
}

/// Returns the size of reads and writes: Postmark uses the C library's streams, whose buffers are as large as
/// stat(2) recommends, up to [`PIECE_MAX`] (glibc, `_IO_file_doallocate`).
fn piece(file: &File) -> std::io::Result<usize> {
    Ok((file.metadata()?.blksize() as usize).clamp(BYTES_MIN, PIECE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn postmark_cleans_up_and_detects_a_truncated_file() {
        let within = tempfile::tempdir().unwrap();
        let job = Postmark { files: 20, transactions: 200, bytes_max: 9_700, reads: 4 };
        job.run(&within.path().join("job")).unwrap();
        assert_eq!(fs::read_dir(within.path()).unwrap().count(), 0);

        let content = vec![b'm'; 9_700];
        let mut pool =
            Pool { folder: within.path(), rng: Rng::with_seed(1), content, files: Vec::new(), next: 0 };
        pool.create().unwrap();
        pool.append().unwrap();
        pool.read().unwrap();
        File::options().write(true).open(pool.path(0)).unwrap().set_len(100).unwrap();
        assert!(matches!(pool.read(), Err(Error::Wrong { .. })));
    }
}
