//! What clones of an image touch first of its memory, as its sidecar says: the kernel reads these pages
//! before the guest touches them, many at a time. Without this file each is read when it is touched, while
//! the guest waits.

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

use tombolo_sys::page_cache::{self, Kept};
use tombolo_wire_image::Sidecar;

use super::config::MEMORY;
use super::home::Home;
use super::rehearsal::RECORD;
use crate::failure::{Failure, Outcome};

/// In the directory of a VM that has not run yet: lines of an offset and a length, in bytes, in the order in
/// which they are read.
const TRACE: &str = "trace";

/// One request to the kernel, which takes no larger ones. Of an image far away a cache brings nothing ahead
/// of one that is as small.
const PIECE_BYTES: u64 = 128 << 10;
const FAR_PIECE_BYTES: u64 = 16 << 10;

/// So many pieces there are at most, and so many bytes in them: a sidecar may speak of more than there is
/// anywhere.
const PIECES_MAX: usize = 1 << 16;
const BYTES_MAX: u64 = 1 << 30;

/// So many are under way: a guest that touches what one of them brings waits for those before it, and for no
/// others.
const UNDER_WAY: usize = 64;

/// For a piece that was asked for. On a line that is cut it does not come, and guests wait for what they
/// touch only.
const PATIENCE: Duration = Duration::from_secs(10);

const LOOK_EVERY: Duration = Duration::from_micros(500);

/// Writes down for the VM's first start what of the image's memory is touched first. Not of one of which it
/// is recorded what it touches. What `is_far` is read in the order in which it comes, and all else in the
/// fewest pieces.
pub fn write_down(home: &Home, sidecar: &Sidecar, is_far: bool) -> Outcome {
    if home.file(RECORD).exists() {
        return Ok(());
    }
    let mut touched: Vec<_> = ranges(sidecar).collect();
    if !is_far {
        touched = joined(touched);
    }
    let piece_bytes = if is_far { FAR_PIECE_BYTES } else { PIECE_BYTES };
    let pieces = touched.into_iter().flat_map(|range| {
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
    fs::write(&file, lines).map_err(|error| Failure::cannot(format_args!("write {}", file.display()), &error))
}

/// What is being read. Dropping it ends that: the file is closed then, for which the server of the memory
/// waits when it ends.
pub struct Ahead {
    is_over: Arc<AtomicBool>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Begins to read what was written down, once.
pub fn begin(home: &Home, memory: PathBuf) -> Option<Ahead> {
    let file = home.file(TRACE);
    let lines = fs::read_to_string(&file).ok()?;
    let _ = fs::remove_file(file);
    let ahead = Ahead { is_over: Arc::default() };
    let is_over = ahead.is_over.clone();
    let read = move || {
        if let Err(error) = read(&lines, &memory, &is_over) {
            tracing::debug!(%error, "its memory is read when it is touched");
        }
    };
    let _ = thread::Builder::new().name("ahead".into()).spawn(read);
    Some(ahead)
}

fn read(lines: &str, memory: &Path, is_over: &AtomicBool) -> io::Result<()> {
    let memory = File::open(memory)?;
    let Some(len) = NonZero::new(memory.metadata()?.len()) else { return Ok(()) };
    let kept = Kept::of(memory.as_fd(), len)?;
    let pieces: Vec<(u64, NonZero<u64>)> = lines.lines().filter_map(piece).collect();
    for (index, (offset, len)) in pieces.iter().enumerate() {
        let behind = index.checked_sub(UNDER_WAY).and_then(|index| pieces.get(index));
        if let Some((offset, _)) = behind {
            comes(&kept, *offset, is_over)?;
        }
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        page_cache::will_need(memory.as_fd(), *offset, *len)?;
    }
    Ok(())
}

/// Waits for a page, in a way that can be left: a read could not.
fn comes(kept: &Kept, offset: u64, is_over: &AtomicBool) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    while !kept.is_here(offset)? && !is_over.load(Ordering::Relaxed) {
        if Instant::now() > end {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn piece(line: &str) -> Option<(u64, NonZero<u64>)> {
    let (offset, len) = line.split_once(' ')?;
    Some((offset.parse().ok()?, len.parse().ok()?))
}

/// What the trace has of the memory.
fn ranges(sidecar: &Sidecar) -> impl Iterator<Item = Range<u64>> {
    sidecar.trace.iter().filter_map(|step| {
        let file = sidecar.files.get(step.file as usize).filter(|file| file.name == MEMORY.as_bytes())?;
        Some(file.bytes_of(step.start..step.start.saturating_add(step.count)))
    })
}

/// The same in the order of the file.
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
    fn a_page_that_does_not_come_is_waited_for_until_all_ends() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 20).expect("a hole, of which nothing was read");
        let ahead = Ahead { is_over: Arc::default() };
        let is_over = ahead.is_over.clone();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let kept = Kept::of(file.as_fd(), NonZero::new(1 << 20).expect("not zero")).expect("mapped");
                comes(&kept, 4096, &is_over)
            });
            drop(ahead);
            let waited = waits.join().expect("no panic");
            assert!(waited.is_ok(), "as long as for one that does not come at all: {waited:?}");
        });
    }
}
