//! Data of one version of a file on the disk: a sparse file, and a checksum for each cached block.
//!
//! Blocks written by this process are trusted. A block of an earlier process is verified before its first
//! use; if damaged, it counts as missing. Checksums are stored in chunks of [`CHUNK_BLOCKS`].

use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tombolo_core::fs::WeakAttr;
use tombolo_core::{Error, Result, lock};
use tombolo_host_runtime::private;
use tombolo_mem::{Buffer, Sink};

use super::access::{clear, not_kept, read_now, read_waiting};
use super::database::CHUNK_BLOCKS;
use super::rows::DataRow;
use super::sums::{checksum, decoded, encoded};
use super::{ObjectId, Shared};

/// Handle of a data file, which contains one version of a file's data.
#[derive(Debug)]
pub(crate) struct DataFile(Arc<State>);

/// State shared by a data file and the commit thread.
#[derive(Debug)]
pub(super) struct State {
    pub id: ObjectId,
    pub generation: u64,
    pub version: WeakAttr,
    block_bytes: u64,
    path: PathBuf,
    /// The file, opened on use; the number of open files is limited.
    file: Mutex<Option<Arc<File>>>,
    blocks: Mutex<Blocks>,
    /// `true` if the data are outdated or evicted: the file is removed when the last reference is dropped.
    is_doomed: AtomicBool,
    /// `true` if the data were fetched too soon after a change to be valid after a restart: not recorded yet.
    is_recent: AtomicBool,
    /// `true` if the data are never to be recorded in the database, so the file is removed at their last use.
    is_for_this_life: AtomicBool,
    shared: Arc<Shared>,
}

/// A guard that protects data from eviction while others read the file through their own descriptors.
#[derive(Debug)]
pub(crate) struct Hold(Arc<State>);

/// Part of a data file that can be lent.
#[derive(Debug)]
pub(crate) struct Lendable {
    pub generation: u64,
    /// Cached, valid parts of a range.
    pub extents: Vec<Range<u64>>,
    /// Read-only descriptor.
    pub reader: OwnedFd,
    pub hold: Hold,
}

/// Limits of one loan: bytes examined, extents, and bytes verified.
const LENT_BYTES_MAX: u64 = 64 << 20;
const LENT_EXTENTS_MAX: usize = 64;
const VERIFIED_BYTES_MAX: u64 = 8 << 20;

/// Cached blocks of a data file: their checksums, in chunks, and their total size.
#[derive(Debug)]
struct Blocks {
    chunks: HashMap<u64, Chunk>,
    kept_bytes: u64,
    /// Bytes of verified blocks.
    verified_bytes: u64,
    /// `true` if an earlier process has stored the data, so that chunks not in memory may be in the database.
    is_old: bool,
}

#[derive(Debug)]
struct Chunk {
    /// Checksum of each block; 0 if the block is not cached.
    sums: Vec<u32>,
    /// Blocks written or verified by this process.
    verified: Vec<bool>,
    is_dirty: bool,
}

impl DataFile {
    pub(super) fn new(state: Arc<State>) -> Self {
        Self(state)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let state = &*self.0;
        let blocks_max = state.version.size.div_ceil(state.block_bytes).min(CHUNK_BLOCKS) as usize;
        let of_chunk = size_of::<Chunk>() + blocks_max * (size_of::<u32>() + size_of::<bool>());
        size_of::<State>() + state.path.capacity() + lock(&state.blocks).chunks.len() * of_chunk
    }

    /// Returns the parts of a range, in whole blocks, that are neither cached nor borrowed (`elsewhere`).
    pub(crate) fn missing(
        &self,
        range: Range<u64>,
        elsewhere: impl Fn(&Range<u64>) -> bool,
    ) -> Vec<Range<u64>> {
        let state = &*self.0;
        let mut missing: Vec<Range<u64>> = Vec::new();
        let range = range.start..range.end.min(state.version.size);
        if range.is_empty() {
            return missing;
        }
        let mut blocks = lock(&state.blocks);
        if blocks.verified_bytes == state.version.size {
            return missing;
        }
        for block in range.start / state.block_bytes..range.end.div_ceil(state.block_bytes) {
            let (start, end) = (block * state.block_bytes, (block + 1).saturating_mul(state.block_bytes));
            let is_here = state.sum(&mut blocks, block).is_some();
            if !is_here && !elsewhere(&(start..end.min(state.version.size))) {
                match missing.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => missing.push(start..end),
                }
            }
        }
        missing
    }

    /// Returns `true` if the whole range is cached.
    pub(crate) fn is_here(&self, range: &Range<u64>) -> bool {
        let (state, range) = (&*self.0, range.start..range.end.min(self.0.version.size));
        let mut blocks = lock(&state.blocks);
        let mut of_range = range.start / state.block_bytes..range.end.div_ceil(state.block_bytes);
        range.is_empty()
            || blocks.verified_bytes == state.version.size
            || of_range.all(|block| state.sum(&mut blocks, block).is_some())
    }

    /// Reads verified blocks from the page cache, without blocking where the file system supports that.
    /// Returns `None` if a block is not verified or not in the page cache.
    pub(crate) fn read_at_once(&self, offset: u64, into: &Sink) -> Result<Option<usize>> {
        let state = &*self.0;
        let is_verified = {
            let mut blocks = lock(&state.blocks);
            blocks.verified_bytes == state.version.size
                || state.blocks_of(offset, into.len()).all(|block| state.is_verified(&mut blocks, block))
        };
        if !is_verified {
            return Ok(None);
        }
        read_now(&*state.file()?, offset, into)
    }

    /// Reads cached blocks, waiting for the disk. Returns 0 if a block is damaged; that block counts as
    /// missing.
    pub(crate) fn read(&self, offset: u64, into: &Sink) -> Result<usize> {
        let state = &*self.0;
        let file = state.file()?;
        for block in state.blocks_of(offset, into.len()) {
            let is_verified = state.is_verified(&mut lock(&state.blocks), block);
            if !is_verified && !state.verify(&file, block) {
                tracing::warn!(path = %state.path.display(), block, "damaged block: fetching it again");
                return Ok(0);
            }
        }
        read_waiting(&file, offset, into)
    }

    /// Stores data, which must begin at the start of a block, and end at the end of one or of the file.
    pub(crate) fn write(&self, offset: u64, bytes: &mut Buffer) -> Result<()> {
        let state = &*self.0;
        let bytes = bytes.as_slice().ok_or(Error::NoMemory)?;
        let file = state.file()?;
        file.write_all_at(bytes, offset).map_err(not_kept)?;
        let first = offset / state.block_bytes;
        let blocks = bytes.chunks(state.block_bytes as usize).enumerate();
        self.keep(blocks.map(|(index, block)| (first + index as u64, block.len() as u64, checksum(block))));
        Ok(())
    }

    /// Records blocks, given by number, length and checksum, as cached and verified. Returns the number of
    /// new bytes.
    fn keep(&self, kept: impl Iterator<Item = (u64, u64, u32)>) -> u64 {
        let (state, mut added) = (&*self.0, 0);
        {
            let mut blocks = lock(&state.blocks);
            for (number, len, sum) in kept {
                let is_new = state.sum(&mut blocks, number).is_none();
                added += if is_new { len } else { 0 };
                let (chunk, at) = state.chunk(&mut blocks, number);
                chunk.sums[at] = sum;
                chunk.is_dirty = true;
                let was_verified = std::mem::replace(&mut chunk.verified[at], true);
                blocks.verified_bytes += if was_verified { 0 } else { len };
            }
            blocks.kept_bytes += added;
        }
        state.shared.wrote(&self.0, added);
        added
    }

    /// Stores missing blocks of a range that are zero, as holes where possible. Returns their length.
    pub(crate) fn fill_zeros(
        &self,
        range: &Range<u64>,
        are_zeros: impl Fn(&Range<u64>) -> bool,
    ) -> Result<u64> {
        let state = &*self.0;
        let len = range.end.saturating_sub(range.start) as usize;
        let zeros: Vec<u64> = {
            let mut blocks = lock(&state.blocks);
            let mut is_new = |block: &u64| state.sum(&mut blocks, *block).is_none();
            let wanted = state.blocks_of(range.start, len);
            wanted.filter(|block| is_new(block) && are_zeros(&state.bytes_of(*block))).collect()
        };
        if zeros.is_empty() {
            return Ok(0);
        }
        let file = state.file()?;
        // The file is extended, as a read beyond its end would be short.
        if file.metadata().map_err(Error::io)?.len() < state.version.size {
            file.set_len(state.version.size).map_err(not_kept)?;
        }
        for run in zeros.chunk_by(|one, next| one + 1 == *next) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            // The range is cleared, as an earlier process may have left data in it without a checksum.
            clear(&file, state.bytes_of(*first).start..state.bytes_of(*last).end)?;
        }
        let whole = checksum(&vec![0; state.block_bytes as usize]);
        Ok(self.keep(zeros.into_iter().map(|block| {
            let bytes = state.bytes_of(block);
            let len = bytes.end - bytes.start;
            let sum = if len == state.block_bytes { whole } else { checksum(&vec![0; len as usize]) };
            (block, len, sum)
        })))
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0.blocks).kept_bytes == 0
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.0.block_bytes
    }

    /// Drops the blocks that overlap a range.
    pub(crate) fn forget(&self, range: &Range<u64>) {
        let state = &*self.0;
        let mut lost_bytes = 0;
        {
            let mut blocks = lock(&state.blocks);
            for block in state.blocks_of(range.start, (range.end - range.start) as usize) {
                let start = block * state.block_bytes;
                let len = state.block_bytes.min(state.version.size.saturating_sub(start));
                let (chunk, at) = state.chunk(&mut blocks, block);
                let was_here = std::mem::take(&mut chunk.sums[at]) != 0;
                let was_verified = std::mem::take(&mut chunk.verified[at]);
                chunk.is_dirty = true;
                blocks.verified_bytes -= if was_verified { len } else { 0 };
                lost_bytes += if was_here { len } else { 0 };
            }
            blocks.kept_bytes = blocks.kept_bytes.saturating_sub(lost_bytes);
        }
        lock(&state.shared.eviction).shrink(state.id, state.generation, lost_bytes);
    }

    /// Returns the blocks that lie wholly within a range. The file's last block may be partial.
    pub(crate) fn whole_blocks(&self, range: &Range<u64>) -> Range<u64> {
        let (size, block_bytes) = (self.0.version.size, self.0.block_bytes);
        let start = range.start.div_ceil(block_bytes).saturating_mul(block_bytes);
        let end = if range.end >= size { size } else { range.end - range.end % block_bytes };
        start..end.max(start)
    }

    /// Returns `true` if two ranges overlap the same block.
    pub(crate) fn share_blocks(&self, one: &Range<u64>, other: &Range<u64>) -> bool {
        let block_bytes = self.0.block_bytes;
        one.start / block_bytes < other.end.div_ceil(block_bytes)
            && other.start / block_bytes < one.end.div_ceil(block_bytes)
    }

    /// Marks the data as too recent to be reused after a restart. Returns `true` if that is new.
    pub(crate) fn set_recent(&self) -> bool {
        !self.0.is_recent.swap(true, Ordering::Relaxed)
    }

    /// Marks the data as never to be recorded in the database: the file is removed at their last use.
    pub(crate) fn set_for_this_life(&self) {
        self.0.is_for_this_life.store(true, Ordering::Relaxed);
    }

    /// Marks the data as outdated or evicted: the file is removed at their last use.
    pub(crate) fn doom(&self) {
        self.0.doom();
    }

    /// Returns the parts of a range that can be lent; `None` if there are none or too much is held, or if the
    /// data may not be reused after a restart.
    pub(crate) fn lend(&self, range: Range<u64>) -> Result<Option<Lendable>> {
        let state = &*self.0;
        let Some(hold) = self.hold() else { return Ok(None) };
        let reader = self.reader().map_err(Error::io)?;
        let extents = self.verified(&range)?;
        self.touch();
        // Data not to be reused after a restart are not lent either. They are marked before they are written.
        let is_lent = state.lasts() && !extents.is_empty();
        Ok(is_lent.then_some(Lendable { generation: state.generation, extents, reader, hold }))
    }

    /// Returns the cached, valid parts of a range. Unverified blocks are verified, up to a limit.
    fn verified(&self, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
        let (state, mut extents, mut left_bytes) = (&*self.0, Vec::<Range<u64>>::new(), VERIFIED_BYTES_MAX);
        let (file, len) = (state.file()?, range.end.saturating_sub(range.start).min(LENT_BYTES_MAX));
        for block in state.blocks_of(range.start, len as usize) {
            let (is_here, is_verified) = {
                let mut blocks = lock(&state.blocks);
                let is_here = state.sum(&mut blocks, block).is_some();
                (is_here, is_here && state.is_verified(&mut blocks, block))
            };
            if is_here && !is_verified {
                let Some(left) = left_bytes.checked_sub(state.block_bytes) else { break };
                left_bytes = left;
            }
            if !is_here || !(is_verified || state.verify(&file, block)) {
                continue;
            }
            let start = block * state.block_bytes;
            let end = (start + state.block_bytes).min(state.version.size);
            let is_full = extents.len() == LENT_EXTENTS_MAX;
            match extents.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ if is_full => break,
                _ => extents.push(start..end),
            }
        }
        Ok(extents)
    }

    /// Holds the data against eviction. Returns `None` if they are not stored any more, or too much is held.
    pub(crate) fn hold(&self) -> Option<Hold> {
        let State { id, generation, shared, .. } = &*self.0;
        let is_held = lock(&shared.eviction).hold(*id, *generation, shared.held_bytes_max());
        is_held.then(|| Hold(self.0.clone()))
    }

    /// Returns `true` if the whole file is cached and verified.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.version.size > 0 && lock(&self.0.blocks).verified_bytes == self.0.version.size
    }

    /// Opens a read-only descriptor of the file, for readers that bypass the cache.
    pub(crate) fn reader(&self) -> io::Result<OwnedFd> {
        File::open(&self.0.path).map(OwnedFd::from)
    }

    /// Returns the number of this version of the object's data, which is never reused.
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation
    }

    pub(super) fn id(&self) -> ObjectId {
        self.0.id
    }

    pub(super) fn downgrade(&self) -> Weak<State> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn touch(&self) {
        lock(&self.0.shared.eviction).touch(self.0.id);
    }

    /// Verifies all cached blocks. Returns their number, and the number of damaged ones, which are dropped.
    pub(super) fn verify_all(&self) -> io::Result<(u64, u64)> {
        let state = &*self.0;
        let file = state.file().map_err(io::Error::other)?;
        let (mut here, mut bad) = (0, 0);
        for block in 0..state.version.size.div_ceil(state.block_bytes) {
            if state.sum(&mut lock(&state.blocks), block).is_some() {
                here += 1;
                bad += u64::from(!state.verify(&file, block));
            }
        }
        Ok((here, bad))
    }
}

impl State {
    pub(super) fn new(
        shared: &Arc<Shared>,
        id: ObjectId,
        row: &DataRow,
        path: PathBuf,
        is_old: bool,
    ) -> Self {
        let kept_bytes = if is_old { row.kept_bytes } else { 0 };
        Self {
            id,
            generation: row.generation,
            version: row.version,
            block_bytes: row.block_bytes.into(),
            path,
            file: Mutex::default(),
            blocks: Mutex::new(Blocks { chunks: HashMap::new(), kept_bytes, verified_bytes: 0, is_old }),
            is_doomed: AtomicBool::new(false),
            is_recent: AtomicBool::new(false),
            is_for_this_life: AtomicBool::new(false),
            shared: shared.clone(),
        }
    }

    /// Returns the row, and the chunks changed since the last call.
    pub(super) fn rows(&self) -> (Vec<u8>, Vec<(u64, Vec<u8>)>) {
        let mut blocks = lock(&self.blocks);
        let dirty = blocks.chunks.iter_mut().filter(|(_, chunk)| chunk.is_dirty).map(|(index, chunk)| {
            chunk.is_dirty = false;
            (*index, encoded(&chunk.sums))
        });
        let dirty = dirty.collect();
        let row = DataRow {
            generation: self.generation,
            version: self.version,
            block_bytes: self.block_bytes as u32,
            kept_bytes: blocks.kept_bytes,
        };
        (row.encoded(), dirty)
    }

    /// Records that rows were not written, so all chunks in memory must be written again.
    pub(super) fn unwritten(&self) {
        lock(&self.blocks).chunks.values_mut().for_each(|chunk| chunk.is_dirty = true);
    }

    /// Marks the data as doomed, and removes them from the table of stored data, though their row may still
    /// exist.
    pub(super) fn doom(&self) {
        self.is_doomed.store(true, Ordering::Relaxed);
        lock(&self.shared.eviction).remove(self.id, self.generation);
    }

    pub(super) fn is_doomed(&self) -> bool {
        self.is_doomed.load(Ordering::Relaxed)
    }

    /// Returns `true` if the data may be reused after a restart.
    pub(super) fn lasts(&self) -> bool {
        let is_out = [&self.is_doomed, &self.is_recent, &self.is_for_this_life];
        !is_out.iter().any(|flag| flag.load(Ordering::Relaxed))
    }

    /// Records that another change of the file would show in its times now. Returns `true` if the data may be
    /// reused after a restart.
    pub(super) fn ripen(&self) -> bool {
        self.is_recent.store(false, Ordering::Relaxed);
        self.lasts()
    }

    /// Closes the file until its next use.
    pub(super) fn close(&self) {
        *lock(&self.file) = None;
    }

    fn file(&self) -> Result<Arc<File>> {
        let mut opened = lock(&self.file);
        if let Some(file) = &*opened {
            return Ok(file.clone());
        }
        let open = || private::file(&self.path);
        let file = open().or_else(|error| match self.path.parent() {
            Some(folder) if error.kind() == io::ErrorKind::NotFound => {
                let made = DirBuilder::new().mode(0o700).create(folder);
                made.or_else(|error| if folder.is_dir() { Ok(()) } else { Err(error) }).and_then(|()| open())
            }
            _ => Err(error),
        });
        let file = Arc::new(file.map_err(not_kept)?);
        *opened = Some(file.clone());
        drop(opened);
        self.shared.opened(self.id);
        Ok(file)
    }

    fn blocks_of(&self, offset: u64, len: usize) -> Range<u64> {
        let end = offset.saturating_add(len as u64).min(self.version.size);
        offset / self.block_bytes..end.div_ceil(self.block_bytes)
    }

    /// Returns the range of a block; the last one ends with the file.
    fn bytes_of(&self, block: u64) -> Range<u64> {
        let at = |block: u64| block.saturating_mul(self.block_bytes).min(self.version.size);
        at(block)..at(block + 1)
    }

    /// Returns the checksum of a block, if it is cached.
    fn sum(&self, blocks: &mut Blocks, block: u64) -> Option<u32> {
        if !blocks.is_old && !blocks.chunks.contains_key(&(block / CHUNK_BLOCKS)) {
            return None;
        }
        let (chunk, at) = self.chunk(blocks, block);
        chunk.sums.get(at).copied().filter(|sum| *sum != 0)
    }

    fn is_verified(&self, blocks: &mut Blocks, block: u64) -> bool {
        let (chunk, at) = self.chunk(blocks, block);
        chunk.verified.get(at).copied().unwrap_or(false)
    }

    /// Returns the chunk of a block, loaded from the database if it is stored, and the block's index in it.
    fn chunk<'a>(&self, blocks: &'a mut Blocks, block: u64) -> (&'a mut Chunk, usize) {
        let index = block / CHUNK_BLOCKS;
        let is_old = blocks.is_old;
        let chunk = blocks.chunks.entry(index).or_insert_with(|| {
            let of_file = self.version.size.div_ceil(self.block_bytes) - index * CHUNK_BLOCKS;
            let len = of_file.min(CHUNK_BLOCKS) as usize;
            let kept = if is_old { self.shared.sums(self.id, self.generation, index) } else { None };
            let sums = kept.and_then(|row| decoded(&row, len)).unwrap_or_else(|| vec![0; len]);
            Chunk { sums, verified: vec![false; len], is_dirty: false }
        });
        (chunk, (block % CHUNK_BLOCKS) as usize)
    }

    /// Compares a block with its checksum, and drops it on a mismatch.
    fn verify(&self, file: &File, block: u64) -> bool {
        let start = block * self.block_bytes;
        let len = self.block_bytes.min(self.version.size.saturating_sub(start)) as usize;
        let mut bytes = vec![0; len];
        let read = file.read_exact_at(&mut bytes, start);
        let mut blocks = lock(&self.blocks);
        let (chunk, at) = self.chunk(&mut blocks, block);
        let holds = read.is_ok() && chunk.sums[at] == checksum(&bytes);
        let was_verified = std::mem::replace(&mut chunk.verified[at], holds);
        let was_here = chunk.sums[at] != 0;
        if !holds {
            chunk.sums[at] = 0;
            chunk.is_dirty = true;
        }
        match (was_verified, holds) {
            (false, true) => blocks.verified_bytes += len as u64,
            (true, false) => blocks.verified_bytes -= len as u64,
            _ => {}
        }
        if was_here && !holds {
            blocks.kept_bytes = blocks.kept_bytes.saturating_sub(len as u64);
            drop(blocks);
            lock(&self.shared.eviction).shrink(self.id, self.generation, len as u64);
        }
        holds
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        lock(&self.0.shared.eviction).release(self.0.id, self.0.generation);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if !self.lasts() {
            let _ = std::fs::remove_file(&self.path);
            lock(&self.shared.eviction).remove(self.id, self.generation);
            self.shared.queue.remove_data(self.id, self.generation);
        }
    }
}
