//! Compact entries of a listing.

use tombolo_core::fs::FileType;

use super::Target;
use crate::store::ObjectId;

/// Names with their targets, in the order of the listing.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    object: ObjectId,
    /// Offset of the name's bytes: 40 bits. The name ends where the next entry's begins.
    start: u32,
    start_high: u8,
    file_type: FileType,
}

const _: () = assert!(size_of::<Entry>() == 16);

impl Listed {
    pub(crate) fn push(&mut self, name: &[u8], target: Target) {
        let start = self.bytes.len();
        let Ok(high) = u8::try_from(start >> 32) else { return };
        let Target { object, file_type } = target;
        self.entries.push(Entry { object, start: start as u32, start_high: high, file_type });
        self.bytes.extend_from_slice(name);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn names_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Target)> {
        self.from(0)
    }

    /// Iterates over the entries after the first `count`.
    pub(crate) fn from(&self, count: usize) -> impl Iterator<Item = (&[u8], Target)> {
        let entries = self.entries.get(count..).unwrap_or_default();
        let ends = entries.iter().skip(1).map(Entry::start).chain([self.bytes.len()]);
        entries.iter().zip(ends).map(|(entry, end)| {
            let Entry { object, file_type, .. } = *entry;
            (self.bytes.get(entry.start()..end).unwrap_or_default(), Target { object, file_type })
        })
    }
}

impl Entry {
    fn start(&self) -> usize {
        usize::from(self.start_high) << 32 | self.start as usize
    }
}
