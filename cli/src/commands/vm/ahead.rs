//! Read-ahead of image memory: the kernel reads the pages in the sidecar's trace before the guest accesses
//! them, many at a time. Without it each page is read on access, while the guest waits.

use std::fs::{self, File};
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_sys::page_cache::{self, PageCacheProbe};
use tombolo_wire_image::Sidecar;

use super::config::MEMORY;
use super::home::Home;
use super::rehearsal::RECORD;
use crate::failure::{OrCannot, Outcome};

/// File in the directory of a VM that has not run yet: lines of offset and length in bytes, in reading order.
const TRACE: &str = "trace";

/// Maximum length of a request for pages of a local image.
const PIECE_BYTES: u64 = 128 << 10;
/// Maximum length of a request for pages of a remote image: so small that the cache reads nothing ahead.
const FAR_PIECE_BYTES: u64 = 16 << 10;

/// Limits of the trace, since a foreign sidecar may list more than exists.
const PIECES_MAX: usize = 1 << 16;
const BYTES_MAX: u64 = 1 << 30;

/// Maximum number of outstanding requests. A guest that accesses another page may have to wait for all of
/// them.
const UNDER_WAY: usize = 64;

/// Maximum wait for a request, after which the read-ahead ends.
const WAIT_MAX: Duration = Duration::from_secs(10);

const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// Writes the file of the pages that the VM's first start reads ahead, taken from the sidecar's trace. Does
/// nothing for a VM whose accesses are being recorded. Remote images (`is_far`) are read in trace order,
/// others in file order, in few requests.
pub fn write_down(home: &Home, sidecar: &Sidecar, is_far: bool) -> Outcome {
    if home.file(RECORD).exists() {
        return Ok(());
    }
    let mut accessed: Vec<_> = ranges(sidecar).collect();
    if !is_far {
        accessed = joined(accessed);
    }
    let piece_bytes = if is_far { FAR_PIECE_BYTES } else { PIECE_BYTES };
    let pieces = accessed.into_iter().flat_map(|range| {
        let starts = range.clone().step_by(piece_bytes as usize);
        starts.map(move |start| (start, piece_bytes.min(range.end - start)))
    });
    let mut left = BYTES_MAX;
    let pieces = pieces.take(PIECES_MAX).map_while(|(start, len)| {
        left = left.checked_sub(len)?;
        Some((start, len))
    });
    let lines: String = pieces.map(|(start, len)| format!("{start} {len}\n")).collect();
    let file = home.file(TRACE);
    fs::write(&file, lines).or_cannot(format_args!("write {}", file.display()))
}

/// Read-ahead in progress. Dropping it makes the thread close the memory's file: the open file would keep the
/// memory mounted.
pub struct Ahead {
    is_over: Arc<AtomicBool>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Starts the read-ahead of the trace, and removes the trace. Returns `None` if there is none.
pub fn begin(home: &Home, memory: PathBuf) -> Option<Ahead> {
    let file = home.file(TRACE);
    let lines = fs::read_to_string(&file).ok()?;
    let _ = fs::remove_file(file);
    let ahead = Ahead { is_over: Arc::default() };
    let is_over = ahead.is_over.clone();
    let read = move || {
        if let Err(error) = read(&lines, &memory, &is_over) {
            tracing::debug!(%error, "read-ahead failed: memory is read on demand");
        }
    };
    let _ = thread::Builder::new().name("ahead".into()).spawn(read);
    Some(ahead)
}

fn read(lines: &str, memory: &Path, is_over: &AtomicBool) -> io::Result<()> {
    let memory = File::open(memory)?;
    let Some(len) = NonZero::new(memory.metadata()?.len()) else { return Ok(()) };
    let kept = PageCacheProbe::of(memory.as_fd(), len)?;
    let pieces: Vec<(u64, NonZero<u64>)> = lines.lines().filter_map(piece).collect();
    for (index, (offset, len)) in pieces.iter().enumerate() {
        let behind = index.checked_sub(UNDER_WAY).and_then(|index| pieces.get(index));
        if let Some((offset, _)) = behind {
            wait_for_page(&kept, *offset, is_over)?;
        }
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        page_cache::will_need(memory.as_fd(), *offset, *len)?;
    }
    Ok(())
}

/// Waits until a page is in the page cache or `is_over` is set. Fails after [`WAIT_MAX`].
fn wait_for_page(kept: &PageCacheProbe, offset: u64, is_over: &AtomicBool) -> io::Result<()> {
    let end = Instant::now() + WAIT_MAX;
    while !kept.is_here(offset)? && !is_over.load(Ordering::Relaxed) {
        if Instant::now() > end {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn piece(line: &str) -> Option<(u64, NonZero<u64>)> {
    let (offset, len) = line.split_once(' ')?;
    Some((offset.parse().ok()?, len.parse().ok()?))
}

/// Returns the ranges of the memory file in the sidecar's trace, in bytes and in reading order.
fn ranges(sidecar: &Sidecar) -> impl Iterator<Item = Range<u64>> {
    sidecar.trace.iter().filter_map(|step| {
        let file = sidecar.files.get(step.file as usize).filter(|file| file.name == MEMORY.as_bytes())?;
        Some(file.bytes_of(step.start..step.start.saturating_add(step.count)))
    })
}

/// Returns the ranges merged in file order.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_page_ends_with_read_ahead() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 20).expect("a hole, of which nothing was read");
        let ahead = Ahead { is_over: Arc::default() };
        let is_over = ahead.is_over.clone();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let kept = PageCacheProbe::of(file.as_fd(), NonZero::new(1 << 20).expect("not zero"))
                    .expect("mapped");
                wait_for_page(&kept, 4096, &is_over)
            });
            drop(ahead);
            let waited = waits.join().expect("no panic");
            assert!(waited.is_ok(), "as long as for one that does not come at all: {waited:?}");
        });
    }
}
