//! The mark of a part, which is an incomplete copy of a file: the length of its valid beginning.
//!
//! The mark is in the part's access time: in its seconds a digest of the source's size and modification time,
//! in its nanoseconds the number of MiB from the beginning that are complete and stable. Writing a file does
//! not change its access time, setting that time is stable once answered (RFC 1813 §4.7), and the mark needs
//! neither an extra file nor an attribute that NFS lacks. A reader of the part may change the time: then the
//! mark does not match and the copy starts over. A file system that stores whole seconds has the same effect.
//! One with a granularity in between rounds the mark down, and some data are copied twice.

use tombolo_core::fs::{Attr, SetAttr, SetTime, Timestamp};

use super::part;

/// Unit in which a mark counts the complete bytes.
const UNIT_BYTES: u64 = 1 << 20;

/// Maximum count of units: that of nanoseconds in a timestamp.
const UNITS_MAX: u64 = 999_999_999;

/// Returns the mark for `complete_bytes` of stable data, and the number of bytes that it actually records.
pub(super) fn of(source: &Attr, complete_bytes: u64) -> (SetAttr, u64) {
    let units = (complete_bytes / UNIT_BYTES).min(UNITS_MAX);
    let time = Timestamp { secs: digest(source), nanos: units as u32 };
    (SetAttr { atime: Some(SetTime::At(time)), ..SetAttr::default() }, units * UNIT_BYTES)
}

/// Returns how many bytes of a part are a valid prefix of this source; 0 if the mark is not of this source,
/// or exceeds one of the two files.
pub(super) fn read(source: &Attr, part: &Attr) -> u64 {
    let complete = u64::from(part.atime.nanos) * UNIT_BYTES;
    let fits = part.atime.secs == digest(source) && complete <= part.size.min(source.size);
    if fits { complete } else { 0 }
}

/// Hashes the source's size and modification time by FNV-1a, folded to the 31 bits that every file system
/// stores of a time.
fn digest(source: &Attr) -> i64 {
    let words = [source.size, source.mtime.secs as u64, u64::from(source.mtime.nanos)];
    let hash = part::digest(words.map(u64::to_le_bytes).as_flattened());
    ((hash ^ (hash >> 33)) & 0x7fff_ffff) as i64
}

#[cfg(test)]
mod tests {
    use tombolo_back_memory::Memory;
    use tombolo_core::Identity;
    use tombolo_core::fs::Mode;

    use super::*;
    use crate::tree::{Tree, User};

    fn attr(size: u64, mtime: i64) -> Attr {
        let user = User { identity: Identity::ROOT, umask: Mode::new(0), realm: String::new() };
        let tree = Tree::attach(&Memory::default(), user).expect("a tree");
        let root = tree.root().attr_now().wait().expect("attributes");
        let time = Timestamp { secs: mtime, nanos: 5 };
        Attr { size, atime: time, mtime: time, ..root }
    }

    fn marked(source: &Attr, complete: u64, size: u64) -> Attr {
        let (set, _) = of(source, complete);
        let Some(SetTime::At(atime)) = set.atime else { panic!("no time") };
        Attr { atime, size, ..*source }
    }

    #[test]
    fn mark_never_exceeds_the_part() {
        let source = attr(10 << 20, 77);
        assert_eq!(read(&source, &marked(&source, (7 << 20) + 9, 8 << 20)), 7 << 20);
        assert_eq!(
            read(&source, &marked(&source, 7 << 20, (7 << 20) - 1)),
            0,
            "the part is shorter than its mark"
        );
        assert_eq!(read(&source, &source), 0, "an unmarked file");
        assert_eq!(of(&source, u64::MAX).1, UNITS_MAX << 20);
    }

    #[test]
    fn a_mark_is_of_one_version_of_the_source() {
        let source = attr(10 << 20, 77);
        let part = marked(&source, 7 << 20, 9 << 20);
        assert_eq!(read(&attr(10 << 20, 78), &part), 0);
        assert_eq!(read(&attr((10 << 20) + 1, 77), &part), 0);
    }
}
