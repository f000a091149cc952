use crate::area::Area;

/// Some bytes of an end, ours until it is dropped. Does not keep the end's memory mapped.
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

    /// Where it begins, in bytes from where the area's range counts from.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in bytes, as asked for.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.area.give_back(self.offset, self.len);
    }
}
