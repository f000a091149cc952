use crate::area::Area;

/// An allocated byte range of bulk memory, freed when dropped. Does not keep the memory mapped.
#[derive(Debug)]
pub struct Span {
    area: Area,
    offset: u64,
    len: u64,
}

impl Span {
    pub(super) fn new(area: Area, offset: u64, len: u64) -> Span {
        Span { area, offset, len }
    }

    /// Returns the offset in bytes, within the range of offsets given to [`Area::new`].
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length in bytes, as requested.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `true` if the span is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.area.give_back(self.offset, self.len);
    }
}
