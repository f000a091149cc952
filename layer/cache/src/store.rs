//! Stand-in while the store is being built: all in memory, data in files of a directory.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{PersistentHandle, Volume, WeakAttr};
use tombolo_core::{Error, Result};
use tombolo_mem::{Buffer, Sink};
use tombolo_sys::rw::{self, TransferFlags};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u64);
impl ObjectId {
    pub const ROOT: Self = Self(1);
}

pub struct Store {
    dir: PathBuf,
    next: AtomicU64,
    ids: Mutex<HashMap<PersistentHandle, ObjectId>>,
    generation: AtomicU64,
}

const BLOCK: u64 = 64 << 10;

impl Store {
    pub fn open(dir: &Path) -> std::io::Result<Arc<Self>> {
        std::fs::create_dir_all(dir)?;
        Ok(Arc::new(Self {
            dir: dir.to_owned(),
            next: AtomicU64::new(2),
            ids: Mutex::default(),
            generation: AtomicU64::new(0),
        }))
    }
    pub fn volume(&self) -> Volume {
        Volume([7; 16])
    }
    pub fn id_of(&self, handle: &PersistentHandle) -> Result<ObjectId> {
        let mut ids = self.ids.lock().unwrap();
        Ok(*ids.entry(handle.clone()).or_insert_with(|| ObjectId(self.next.fetch_add(1, Ordering::Relaxed))))
    }
    pub fn remove(&self, id: ObjectId) {
        self.ids.lock().unwrap().retain(|_, other| *other != id);
    }
    pub fn data(&self, id: ObjectId, version: &WeakAttr) -> Result<DataFile> {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("{}.{generation}", id.0));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(Error::io)?;
        let _ = std::fs::remove_file(&path);
        Ok(DataFile { file, size: version.size, here: Mutex::default() })
    }
}

#[derive(Debug)]
pub struct DataFile {
    file: File,
    size: u64,
    here: Mutex<HashSet<u64>>,
}

impl DataFile {
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let here = self.here.lock().unwrap();
        let mut missing: Vec<Range<u64>> = Vec::new();
        if range.is_empty() {
            return missing;
        }
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            if !here.contains(&block) {
                let (start, end) =
                    (block * BLOCK, ((block + 1) * BLOCK).min(self.size.next_multiple_of(BLOCK)));
                match missing.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => missing.push(start..end),
                }
            }
        }
        missing
    }
    pub fn read_at_once(&self, offset: u64, into: &Sink) -> Result<Option<usize>> {
        match rw::read(self.file.as_fd(), into, offset, TransferFlags::NOWAIT) {
            Ok(count) => Ok(Some(count)),
            Err(_) => Ok(None),
        }
    }
    pub fn read(&self, offset: u64, into: &Sink) -> Result<usize> {
        Ok(rw::read(self.file.as_fd(), into, offset, TransferFlags::empty())?)
    }
    pub fn write(&self, offset: u64, bytes: Buffer) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let mut bytes = bytes;
        let len = bytes.len() as u64;
        self.file.write_all_at(bytes.as_slice().ok_or(Error::NoMemory)?, offset).map_err(Error::io)?;
        let mut here = self.here.lock().unwrap();
        for block in offset / BLOCK..(offset + len).div_ceil(BLOCK) {
            here.insert(block);
        }
        Ok(())
    }
}
