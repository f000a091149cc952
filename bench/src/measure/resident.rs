//! Memory and descriptors of a process, from /proc (proc(5)).

use std::fs;
use std::ops::Range;
use std::path::Path;

use crate::error::{Doing, Result};

/// Resident memory and open descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub memory_bytes: f64,
    /// Part of it that is shared.
    pub shared_bytes: f64,
    pub descriptors: f64,
}

impl Held {
    /// Reads the state of a process, by its number or as `self`.
    pub fn by(process: &str) -> Result<Self> {
        let status = read(process, "status")?;
        let path = format!("/proc/{process}/fd");
        let descriptors = fs::read_dir(&path).doing_to("list", Path::new(&path))?.count() as f64;
        let field =
            |name| status.lines().find_map(|line| bytes(line.strip_prefix(name)?)).unwrap_or_default();
        let (memory_bytes, shared_bytes) = (field("VmRSS:") as f64, field("RssShmem:") as f64);
        Ok(Self { memory_bytes, shared_bytes, descriptors })
    }
}

/// A mapping of a process, and the part that it has accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<u64>,
    pub resident_bytes: u64,
}

/// Returns the mappings of files whose names contain one of these.
pub fn mappings(process: &str, files: &[&str]) -> Result<Vec<Mapping>> {
    Ok(mapped(&read(process, "smaps")?, files))
}

fn mapped(smaps: &str, files: &[&str]) -> Vec<Mapping> {
    let (mut found, mut inside): (Vec<Mapping>, _) = (Vec::new(), false);
    for line in smaps.lines() {
        if let Some(range) = range(line) {
            inside = files.iter().any(|file| line.contains(file));
            found.extend(inside.then_some(Mapping { range, resident_bytes: 0 }));
        } else if let (true, Some(rest), Some(last)) = (inside, line.strip_prefix("Rss:"), found.last_mut()) {
            last.resident_bytes = bytes(rest).unwrap_or_default();
        }
    }
    found
}

/// Returns the range of the first line of a mapping.
fn range(line: &str) -> Option<Range<u64>> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
}

/// Parses a number of KiB.
fn bytes(text: &str) -> Option<u64> {
    Some(text.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn read(process: &str, name: &str) -> Result<String> {
    let path = format!("/proc/{process}/{name}");
    fs::read_to_string(&path).doing_to("read", Path::new(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mappings_of_the_files_count() {
        let smaps = "7f00-7f10 rw-s 00000000 00:01 5 /memfd:tombolo-client (deleted)\nSize: 64 kB\nRss: 12 kB\n\
                     7f10-7f20 r--s 00000000 00:01 6 /memfd:tombolo-server (deleted)\nRss: 4 kB\nShared_Clean: 4 kB\n\
                     7f20-7f30 rw-p 00000000 00:00 0 [heap]\nRss: 64 kB\n";
        let found = mapped(smaps, &["/memfd:tombolo-client", "/memfd:tombolo-server"]);
        let found: Vec<_> = found.into_iter().map(|part| (part.range, part.resident_bytes)).collect();
        assert_eq!(found, [(0x7f00..0x7f10, 12 << 10), (0x7f10..0x7f20, 4 << 10)]);
        assert!(Held::by("self").unwrap().memory_bytes > 0.0);
    }
}
