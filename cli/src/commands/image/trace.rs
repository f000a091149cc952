//! Conversion of recorded reads into the steps of a trace: ranges of blocks of the image's files, in the
//! order in which proxies prefetch them.

use std::collections::HashSet;
use std::mem;
use std::ops::Range;

use tombolo_wire_image::{ImageFile, STEPS_MAX, Step};

/// Parses the steps for these files of the directory named `dir`, in order. Lines have an offset, a length
/// and a path; others are ignored, as are those beyond a sidecar's limit.
pub fn steps(text: &[u8], dir: &[u8], files: &[ImageFile]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(step) = step(line, dir, files) else { continue };
        let is_full = steps.len() == STEPS_MAX;
        match steps.last_mut() {
            // The read begins in the last step, or directly behind it.
            Some(last)
                if last.file == step.file && (last.start..=last.start + last.count).contains(&step.start) =>
            {
                last.count = last.count.max(step.start + step.count - last.start);
            }
            _ if is_full => break,
            _ => steps.push(step),
        }
    }
    steps
}

fn step(line: &[u8], dir: &[u8], files: &[ImageFile]) -> Option<Step> {
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let mut number = || -> Option<u64> { str::from_utf8(words.next()?).ok()?.parse().ok() };
    let (offset, len) = (number()?, number().filter(|len| *len > 0)?);
    let mut parts = words.next()?.rsplit(|byte| *byte == b'/');
    let name = parts.next()?;
    // A name without a parent may belong to any directory.
    if parts.next().is_some_and(|above| above != dir) {
        return None;
    }
    let index = files.iter().position(|file| file.name == name)?;
    let file = files.get(index)?;
    let block_bytes = u64::from(file.block_bytes);
    let end = offset.saturating_add(len).min(file.size).div_ceil(block_bytes);
    let start = offset / block_bytes;
    let count = end.checked_sub(start).filter(|count| *count > 0)?;
    Some(Step { file: index.try_into().ok()?, start, count })
}

/// Merges the reads of several starts, each block once. Steps are ordered by their relative position in their
/// start.
pub fn of_any(starts: &[Vec<Step>]) -> Vec<Step> {
    let mut all: Vec<(f64, Step)> = Vec::new();
    for start in starts {
        let count = start.len() as f64;
        all.extend(start.iter().enumerate().map(|(index, step)| (index as f64 / count, *step)));
    }
    // Equal positions keep the order of the starts.
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut seen = HashSet::new();
    let mut steps: Vec<Step> = Vec::new();
    for (_, Step { file, start, count }) in all {
        for block in (start..start + count).filter(|block| seen.insert((file, *block))) {
            match steps.last_mut() {
                Some(last) if last.file == file && last.start + last.count == block => last.count += 1,
                _ => steps.push(Step { file, start: block, count: 1 }),
            }
        }
    }
    steps
}

/// Amount of data that is reordered to save steps: over 80 Mbit/s it arrives within 26 ms.
const WINDOW_BYTES: u64 = 256 << 10;

/// Merges steps: steps within a window are sorted by file position and joined where nothing or only zero
/// blocks are between them. Other zero blocks are left out.
pub fn gathered(steps: &[Step], files: &[ImageFile]) -> Vec<Step> {
    let (mut gathered, mut window, mut bytes) = (Vec::new(), Vec::new(), 0);
    for step in steps {
        let Some(file) = files.get(step.file as usize) else { continue };
        for data in data_of(file, step.start..step.start + step.count) {
            bytes += (data.end - data.start) * u64::from(file.block_bytes);
            window.push((step.file, data));
        }
        if bytes >= WINDOW_BYTES {
            gathered.extend(joined(mem::take(&mut window), files));
            bytes = 0;
        }
    }
    gathered.extend(joined(window, files));
    gathered.truncate(STEPS_MAX);
    gathered
}

/// Returns the ranges of these blocks that are not zeroes.
fn data_of(file: &ImageFile, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut next = blocks.start;
    let zeros = file.zeros.within(blocks.clone()).map(|zeros| (zeros.start, zeros.end));
    let parts =
        zeros.chain([(blocks.end, blocks.end)]).map(move |(end, after)| mem::replace(&mut next, after)..end);
    parts.filter(|data| !data.is_empty())
}

fn joined(mut window: Vec<(u32, Range<u64>)>, files: &[ImageFile]) -> Vec<Step> {
    let mut order: Vec<u32> = Vec::new();
    for (file, _) in &window {
        if !order.contains(file) {
            order.push(*file);
        }
    }
    let place = |file: u32| order.iter().position(|other| *other == file);
    window.sort_by_key(|(file, blocks)| (place(*file), blocks.start));
    let mut steps: Vec<Step> = Vec::new();
    for (file, blocks) in window {
        // Steps are joined across zero blocks, which are not fetched.
        let is_next = |last: &Step| {
            let gap = last.start + last.count..blocks.start;
            let is_zeros =
                || files.get(file as usize).is_some_and(|file| data_of(file, gap.clone()).next().is_none());
            last.file == file && (gap.is_empty() || is_zeros())
        };
        match steps.last_mut().filter(|last| is_next(last)) {
            Some(last) => last.count = last.count.max(blocks.end - last.start),
            None => steps.push(Step { file, start: blocks.start, count: blocks.end - blocks.start }),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use tombolo_core::fs::Timestamp;
    use tombolo_wire_image::{Advice, ZeroMap};

    use super::*;

    fn files(size: u64, zeros: &ZeroMap) -> [ImageFile; 2] {
        ["disk", "memory"].map(|name| ImageFile {
            name: name.into(),
            size,
            mtime: Timestamp::default(),
            block_bytes: 4096,
            advice: Advice::OnDemand,
            zeros: zeros.clone(),
            table: None,
        })
    }

    #[test]
    fn trace_lines_become_steps_of_own_files() {
        let files = files(100_000, &ZeroMap::default());
        let text = b"0 4096 vm/memory\n4096 100 vm/memory\n4200 8192 vm/memory\n98304 9999 a/vm/disk\n0 1 other/disk\n\
            200000 1 vm/disk\nno line\n5 0 vm/disk\n0 1 memory\n0 1 vm/nothere";
        let step = |file, start, count| Step { file, start, count };
        assert_eq!(steps(text, b"vm", &files), [step(1, 0, 4), step(0, 24, 1), step(1, 0, 1)]);
    }

    #[test]
    fn merged_traces_read_each_block_once_in_order() {
        let step = |file, start, count| Step { file, start, count };
        let one = vec![step(0, 0, 2), step(1, 7, 1), step(1, 9, 1), step(0, 20, 4)];
        let other = vec![step(0, 1, 3), step(1, 9, 2)];
        let expected = [step(0, 0, 4), step(1, 7, 1), step(1, 9, 2), step(0, 20, 4)];
        assert_eq!(of_any(&[one.clone(), other]), expected);
        assert_eq!(of_any(std::slice::from_ref(&one)), one);
    }

    #[test]
    fn trace_is_gathered_into_few_steps_without_zeroes() {
        let mut zeros = ZeroMap::default();
        assert!(zeros.add(10..20) && zeros.add(40..90));
        let files = files(4096 * 10_000, &zeros);
        let step = |file, start, count| Step { file, start, count };
        let read = [
            step(1, 9, 1),
            step(0, 300, 1),
            step(1, 7, 1),
            step(1, 12, 3),
            step(1, 20, 1),
            step(1, 95, 3),
            step(1, 39, 5),
        ];
        // Blocks 10 to 19 and 40 to 89 are zeroes.
        let expected = [step(1, 7, 1), step(1, 9, 12), step(1, 39, 1), step(1, 95, 3), step(0, 300, 1)];
        assert_eq!(gathered(&read, &files), expected);
        // Later reads stay later.
        let read = [step(1, 200, 64), step(1, 100, 1), step(0, 100, 64), step(1, 101, 1)];
        assert_eq!(
            gathered(&read, &files),
            [step(1, 200, 64), step(1, 100, 1), step(0, 100, 64), step(1, 101, 1)]
        );
    }
}
