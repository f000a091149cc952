//! Record of the first read of each block of a disk, in order: a trace for prefetching the disk the next
//! time.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::ops;
use std::sync::{Arc, Mutex};

use tombolo_core::block::BlockDevice;
use tombolo_core::{Answer, Ctx, lock};
use tombolo_mem::Sink;

/// Granularity of the trace: a page of memory.
const BLOCK_BYTES: u64 = 4 << 10;

/// Maximum number of blocks recorded: 16 GiB.
const BLOCKS_MAX: usize = 1 << 22;

/// Wraps `inner`, and writes a line to `out` for each part of the disk that is read for the first time:
/// offset and length in bytes, and `name`. Each line is one write, so several disks may append to one file,
/// in the order of their reads. After a write error, or 16 GiB, recording stops; reads continue.
pub fn over(inner: Arc<dyn BlockDevice>, out: Arc<File>, name: &str) -> Arc<dyn BlockDevice> {
    let state = State { out: Some(out), read: HashSet::new() };
    Arc::new(RecordedDisk { inner, name: name.into(), state: Mutex::new(state) })
}

struct RecordedDisk {
    inner: Arc<dyn BlockDevice>,
    name: String,
    state: Mutex<State>,
}

struct State {
    out: Option<Arc<File>>,
    read: HashSet<u64>,
}

impl RecordedDisk {
    fn note(&self, offset: u64, len: usize) {
        let end = offset.saturating_add(len as u64).min(self.inner.geometry().size_bytes);
        let mut state = lock(&self.state);
        let State { out, read } = &mut *state;
        let Some(mut file) = out.as_deref().filter(|_| read.len() < BLOCKS_MAX) else { return };
        let mut run = 0..0;
        let mut write = |run: &ops::Range<u64>| -> std::io::Result<()> {
            let bytes =
                run.start * BLOCK_BYTES..(run.end * BLOCK_BYTES).min(self.inner.geometry().size_bytes);
            if bytes.is_empty() {
                return Ok(());
            }
            file.write_all(format!("{} {} {}\n", bytes.start, bytes.end - bytes.start, self.name).as_bytes())
        };
        let mut written = Ok(());
        for block in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            if !read.insert(block) {
                continue;
            }
            if run.end != block {
                written = written.and_then(|()| write(&run));
                run.start = block;
            }
            run.end = block + 1;
        }
        if written.and_then(|()| write(&run)).is_err() {
            *out = None;
        }
    }
}

impl BlockDevice for RecordedDisk {
    tombolo_core::forward_disk!(to self.inner; profile geometry write flush discard write_zeroes extents submit resize);

    fn read(&self, cx: &Ctx, offset: u64, into: Sink) -> Answer<()> {
        self.note(offset, into.len());
        self.inner.read(cx, offset, into)
    }
}
