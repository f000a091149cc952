//! What a proxy has recorded, as the steps of a trace.

use tombolo_wire_image::{ImageFile, STEPS_MAX, Step};

/// The steps that are of these files of a directory of this name, in order. Lines have an offset, a length and a path; others are left out, as are
/// those that come when a sidecar can say no more.
pub fn steps(text: &[u8], dir: &[u8], files: &[ImageFile]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(step) = step(line, dir, files) else { continue };
        let is_full = steps.len() == STEPS_MAX;
        match steps.last_mut() {
            // It goes on where the one before ends, or in its last block.
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
    // What is at the top of a tree may be of any directory.
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

#[cfg(test)]
mod tests {
    use tombolo_core::fs::Timestamp;
    use tombolo_wire_image::{Advice, ZeroMap};

    use super::*;

    #[test]
    fn lines_become_steps_and_what_is_of_others_is_left_out() {
        let file = |name: &str| ImageFile {
            name: name.into(),
            size: 100_000,
            mtime: Timestamp::default(),
            block_bytes: 4096,
            advice: Advice::OnDemand,
            zeros: ZeroMap::default(),
            table: None,
        };
        let files = [file("disk"), file("memory")];
        let text = b"0 4096 vm/memory\n4096 100 vm/memory\n4200 8192 vm/memory\n98304 9999 a/vm/disk\n0 1 other/disk\n\
            200000 1 vm/disk\nno line\n5 0 vm/disk\n0 1 memory\n0 1 vm/nothere";
        let step = |file, start, count| Step { file, start, count };
        assert_eq!(steps(text, b"vm", &files), [step(1, 0, 4), step(0, 24, 1), step(1, 0, 1)]);
    }
}
