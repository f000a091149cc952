//! Replies to READDIR and READDIRPLUS: entries packed into a bounded buffer.

use crate::layout::attr::EntryOut;
use crate::layout::dir::{Dirent, DirentPlus};
use zerocopy::IntoBytes;

/// Size of a READDIR entry without its name, in bytes.
pub const DIRENT_BYTES: usize = size_of::<Dirent>();
/// Size of a READDIRPLUS entry without its name, in bytes.
pub const DIRENT_PLUS_BYTES: usize = size_of::<DirentPlus>();
/// Alignment of entries, in bytes (`FUSE_REC_ALIGN`).
pub const DIRENT_ALIGN: usize = 8;

/// An encoder of consecutive entries. A reply has entries of one operation only, by [`push`](Self::push) or
/// [`push_plus`](Self::push_plus).
#[derive(Debug)]
pub struct DirentWriter<'b> {
    buffer: &'b mut [u8],
    len: usize,
}

impl<'b> DirentWriter<'b> {
    /// Returns an encoder into `buffer`, which must have the size that the request allows.
    #[must_use]
    pub fn new(buffer: &'b mut [u8]) -> Self {
        DirentWriter { buffer, len: 0 }
    }

    /// Adds an entry of READDIR. Returns `false`, adding nothing, if it does not fit.
    #[must_use]
    pub fn push(&mut self, name: &[u8], ino: u64, cookie: u64, kind: DirentKind) -> bool {
        match dirent(name, ino, cookie, kind) {
            Some(head) => self.put(head.as_bytes(), name),
            None => false,
        }
    }

    /// Adds an entry of READDIRPLUS. `entry` is the result of a LOOKUP of the name; `None` for `.` and `..`,
    /// and for a vanished entry. Returns `false`, adding nothing, if it does not fit.
    #[must_use]
    pub fn push_plus(
        &mut self,
        name: &[u8],
        ino: u64,
        cookie: u64,
        kind: DirentKind,
        entry: Option<EntryOut>,
    ) -> bool {
        match dirent(name, ino, cookie, kind) {
            Some(dirent) => {
                let head = DirentPlus { entry: entry.unwrap_or_default(), dirent };
                self.put(head.as_bytes(), name)
            }
            None => false,
        }
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if nothing has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn put(&mut self, head: &[u8], name: &[u8]) -> bool {
        let used = head.len() + name.len();
        let padded = used.next_multiple_of(DIRENT_ALIGN);
        let Some(place) = self.buffer.get_mut(self.len..).and_then(|rest| rest.get_mut(..padded)) else {
            return false;
        };
        let (head_place, rest) = place.split_at_mut(head.len());
        let (name_place, padding) = rest.split_at_mut(name.len());
        head_place.copy_from_slice(head);
        name_place.copy_from_slice(name);
        padding.fill(0);
        self.len += padded;
        true
    }
}

fn dirent(name: &[u8], ino: u64, cookie: u64, kind: DirentKind) -> Option<Dirent> {
    let namelen = u32::try_from(name.len()).ok()?;
    Some(Dirent { ino, off: cookie, namelen, kind: kind.0 })
}

/// The type of an entry (`DT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirentKind(u32);

impl DirentKind {
    /// Unknown; the reader must look the name up.
    pub const UNKNOWN: DirentKind = DirentKind(0);

    /// Converts from the type bits of a mode.
    #[must_use]
    pub fn from_mode(mode: u32) -> DirentKind {
        DirentKind((mode & crate::flags::S_IFMT) >> 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn entries_are_padded_and_the_padding_is_zero() {
        let mut buffer = [0xff; 64];
        let mut writer = DirentWriter::new(&mut buffer);
        assert!(writer.push(b"abc", 5, 1, DirentKind::from_mode(0o040_755)));
        assert!(writer.push(b"12345678", 6, 2, DirentKind::UNKNOWN));
        assert_eq!(writer.len(), 32 + 32);
        assert!(!writer.push(b"x", 7, 3, DirentKind::UNKNOWN));
        let (first, rest) = Dirent::read_from_prefix(&buffer).unwrap();
        assert_eq!(first, Dirent { ino: 5, off: 1, namelen: 3, kind: 4 });
        assert_eq!(rest.get(..8).unwrap(), b"abc\0\0\0\0\0");
    }

    #[test]
    fn an_entry_that_does_not_fit_leaves_no_trace() {
        let mut buffer = [0; 159];
        let mut writer = DirentWriter::new(&mut buffer);
        assert!(!writer.push_plus(b"x", 1, 1, DirentKind::UNKNOWN, None));
        assert!(writer.is_empty());
        assert!(buffer.iter().all(|&byte| byte == 0));
    }
}
