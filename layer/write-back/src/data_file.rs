//! Files of the local disk with unsent data.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use tombolo_core::{Error, Result};
use tombolo_host_runtime::{lock, private};
use tombolo_mem::{Sink, Source};
use tombolo_sys::rw::{self, TransferFlags};

/// Maximum number of open data files; beyond it, the one opened first is closed until its next use.
const OPEN_MAX: usize = 512;

/// Directory of data files, with a queue of the open ones.
#[derive(Debug)]
pub(crate) struct DataFiles {
    dir: PathBuf,
    open: Mutex<VecDeque<Weak<DataFile>>>,
}

/// A sparse data file, with data at their offsets in the written file. Its `generation` is a number unique in
/// the journal, and its name.
#[derive(Debug)]
pub(crate) struct DataFile {
    pub generation: u64,
    pub path: PathBuf,
    file: Mutex<Option<Arc<File>>>,
    /// `true` if the file is removed with its last reference.
    is_doomed: AtomicBool,
    /// Locked shared by writes, and exclusively by `write_again`, which must not restore overwritten data.
    writing: RwLock<()>,
    files: Arc<DataFiles>,
    /// `true` if the next sync fails.
    #[cfg(test)]
    pub is_failing: AtomicBool,
}

impl DataFiles {
    pub(crate) fn new(dir: PathBuf) -> Arc<Self> {
        Arc::new(Self { dir, open: Mutex::default() })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the file of a generation, which is created on the disk at its first use.
    pub(crate) fn file(self: &Arc<Self>, generation: u64) -> Arc<DataFile> {
        let path = self.dir.join(format!("{generation:x}"));
        let (file, is_doomed) = (Mutex::default(), AtomicBool::new(false));
        let (writing, files) = (RwLock::default(), self.clone());
        Arc::new(DataFile {
            generation,
            path,
            file,
            is_doomed,
            writing,
            files,
            #[cfg(test)]
            is_failing: AtomicBool::new(false),
        })
    }

    /// Removes the files of all generations that are not known, as a crash may leave them.
    pub(crate) fn remove_others(&self, is_known: impl Fn(u64) -> bool) {
        for file in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = file.file_name();
            let generation = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
            if generation.is_some_and(|generation| !is_known(generation)) {
                let _ = fs::remove_file(file.path());
            }
        }
    }

    fn opened(&self, file: &Arc<DataFile>) {
        let mut open = lock(&self.open);
        open.push_back(Arc::downgrade(file));
        let oldest = if open.len() > OPEN_MAX { open.pop_front() } else { None };
        drop(open);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            lock(&oldest.file).take();
        }
    }
}

impl DataFile {
    pub(crate) fn write(self: &Arc<Self>, mut offset: u64, mut from: Source) -> Result<()> {
        let file = self.file()?;
        let _writing = self.writing.read().unwrap_or_else(PoisonError::into_inner);
        while !from.is_empty() {
            let count = rw::write(file.as_fd(), &from, offset, TransferFlags::empty())?;
            if count == 0 {
                return Err(Error::NoSpace);
            }
            from.advance(count);
            offset += count as u64;
        }
        Ok(())
    }

    /// Fills `into` from the page cache without waiting. Returns `true` if it was filled completely.
    pub(crate) fn read_at_once(self: &Arc<Self>, offset: u64, into: &Sink) -> Result<bool> {
        let file = self.file()?;
        Ok(rw::read(file.as_fd(), into, offset, TransferFlags::NOWAIT) == Ok(into.len()))
    }

    /// Fills `into`, with zeroes where nothing was written.
    pub(crate) fn read(self: &Arc<Self>, mut offset: u64, mut into: Sink) -> Result<()> {
        let file = self.file()?;
        while !into.is_empty() {
            match rw::read(file.as_fd(), &into, offset, TransferFlags::empty())? {
                0 => {
                    into.zero(0, into.len());
                    break;
                }
                count => {
                    into.advance(count);
                    offset += count as u64;
                }
            }
        }
        Ok(())
    }

    /// Returns the checksum of a range, up to the end of the file.
    pub(crate) fn sum(self: &Arc<Self>, range: Range<u64>) -> Result<u32> {
        Ok(crc32c::crc32c(&self.bytes(range)?))
    }

    /// Rewrites a range unchanged, so that the next sync writes it again: after a failed sync the kernel
    /// treats unwritten pages as written (fsync(2)).
    pub(crate) fn write_again(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        let _alone = self.writing.write().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.bytes(range.clone())?;
        self.file()?.write_all_at(&bytes, range.start).map_err(Error::io)
    }

    fn bytes(self: &Arc<Self>, range: Range<u64>) -> Result<Vec<u8>> {
        let file = self.file()?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], range.start + filled as u64).map_err(Error::io)? {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    pub(crate) fn sync(self: &Arc<Self>) -> Result<()> {
        #[cfg(test)]
        if self.is_failing.swap(false, Ordering::Relaxed) {
            return Err(Error::io("the disk is bad"));
        }
        Ok(tombolo_sys::sync::data(self.file()?.as_fd())?)
    }

    pub(crate) fn mark_for_removal(&self) {
        self.is_doomed.store(true, Ordering::Relaxed);
    }

    fn file(self: &Arc<Self>) -> Result<Arc<File>> {
        let mut slot = lock(&self.file);
        if let Some(file) = &*slot {
            return Ok(file.clone());
        }
        let file = Arc::new(private::file(&self.path).map_err(Error::io)?);
        *slot = Some(file.clone());
        drop(slot);
        self.files.opened(self);
        Ok(file)
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        if self.is_doomed.load(Ordering::Relaxed) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
