//! Contents of a regular file: allocated pages, and holes between them.

use std::collections::BTreeMap;

use tombolo_core::fs::ReadDone;
use tombolo_core::{Error, Result};
use tombolo_mem::{Sink, Source};

/// The unit of allocation, in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Maximum size of a file in bytes: the range of a signed 64-bit offset.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

type Page = Box<[u8; PAGE_BYTES as usize]>;

/// A sparse file. Bytes beyond the size, in the last page or in preallocated ones, are always zero.
#[derive(Debug, Default)]
pub(crate) struct Content {
    size: u64,
    pages: BTreeMap<u64, Page>,
}

/// The part of a byte range that lies in one page: the bytes from `start` to `end` of the page numbered
/// `page`.
struct Piece {
    page: u64,
    start: usize,
    end: usize,
    /// Offset of the piece within the range.
    at: usize,
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    pub(crate) fn read(&self, offset: u64, into: &Sink) -> ReadDone {
        let left = self.size.saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        for piece in pieces(offset, count as u64) {
            match self.pages.get(&piece.page) {
                Some(page) => into.write_at(piece.at, &page[piece.start..piece.end]),
                None => into.zero(piece.at, piece.end - piece.start),
            };
        }
        ReadDone { count, eof: count as u64 == left }
    }

    /// Writes as much as there is space for; fails if that is nothing.
    pub(crate) fn write(&mut self, offset: u64, from: &Source, space: &mut Space) -> Result<usize> {
        let len_max = SIZE_MAX.saturating_sub(offset);
        let len = (from.len() as u64).min(len_max);
        if len == 0 && !from.is_empty() {
            return Err(Error::FileTooLarge);
        }
        let mut count = 0;
        for piece in pieces(offset, len) {
            let page = match self.page(piece.page, space) {
                Ok(page) => page,
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            };
            count += from.read_at(piece.at, &mut page[piece.start..piece.end]);
        }
        if count > 0 {
            self.size = self.size.max(offset + count as u64);
        }
        Ok(count)
    }

    pub(crate) fn set_size(&mut self, size: u64, space: &mut Space) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Error::FileTooLarge);
        }
        self.drop_pages(size.div_ceil(PAGE_BYTES), u64::MAX, space);
        if let Some(page) = self.pages.get_mut(&(size / PAGE_BYTES)) {
            page[(size % PAGE_BYTES) as usize..].fill(0);
        }
        self.size = size;
        Ok(())
    }

    /// Allocates the range, so that writes into it cannot run out of space. Unless `keep_size`, a file that
    /// ends before the range's end grows to it.
    pub(crate) fn allocate(
        &mut self,
        offset: u64,
        len: u64,
        keep_size: bool,
        space: &mut Space,
    ) -> Result<()> {
        let end = end_of(offset, len)?;
        let wanted = offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        let missing = (wanted.end - wanted.start) - self.pages.range(wanted.clone()).count() as u64;
        if missing > space.free_pages() {
            return Err(Error::NoSpace);
        }
        for page in wanted {
            self.page(page, space)?;
        }
        if !keep_size {
            self.size = self.size.max(end);
        }
        Ok(())
    }

    /// Frees the pages that lie entirely in the range, and zeroes the remainder of the range.
    pub(crate) fn punch(&mut self, offset: u64, len: u64, space: &mut Space) -> Result<()> {
        let end = end_of(offset, len)?;
        self.drop_pages(offset.div_ceil(PAGE_BYTES), end / PAGE_BYTES, space);
        self.clear(offset, end);
        Ok(())
    }

    /// Allocates the range and zeroes its bytes.
    pub(crate) fn zero(&mut self, offset: u64, len: u64, keep_size: bool, space: &mut Space) -> Result<()> {
        self.allocate(offset, len, keep_size, space)?;
        self.clear(offset, end_of(offset, len)?);
        Ok(())
    }

    /// Removes whole pages and moves the following ones down (fallocate(2), `FALLOC_FL_COLLAPSE_RANGE`).
    pub(crate) fn collapse(&mut self, offset: u64, len: u64, space: &mut Space) -> Result<()> {
        let end = end_of(offset, len)?;
        if !on_pages(offset, len) || end >= self.size {
            return Err(Error::InvalidArgument);
        }
        self.drop_pages(offset / PAGE_BYTES, end / PAGE_BYTES, space);
        let moved = self.pages.split_off(&(end / PAGE_BYTES));
        self.pages.extend(moved.into_iter().map(|(index, page)| (index - len / PAGE_BYTES, page)));
        self.size -= len;
        Ok(())
    }

    /// Inserts a hole of whole pages, moving the following ones up (fallocate(2), `FALLOC_FL_INSERT_RANGE`).
    pub(crate) fn insert(&mut self, offset: u64, len: u64) -> Result<()> {
        if !on_pages(offset, len) || offset >= self.size {
            return Err(Error::InvalidArgument);
        }
        let size = self.size.checked_add(len).filter(|&size| size <= SIZE_MAX).ok_or(Error::FileTooLarge)?;
        let moved = self.pages.split_off(&(offset / PAGE_BYTES));
        self.pages.extend(moved.into_iter().map(|(index, page)| (index + len / PAGE_BYTES, page)));
        self.size = size;
        Ok(())
    }

    /// Returns the first byte of data at or after `offset`; [`Error::NoDevice`] (ENXIO) if there is none.
    pub(crate) fn seek_data(&self, offset: u64) -> Result<u64> {
        if offset >= self.size {
            return Err(Error::NoDevice);
        }
        let (&page, _) = self.pages.range(offset / PAGE_BYTES..).next().ok_or(Error::NoDevice)?;
        Some((page * PAGE_BYTES).max(offset)).filter(|&data| data < self.size).ok_or(Error::NoDevice)
    }

    /// Returns the first byte of a hole at or after `offset`; the end of the file is one. [`Error::NoDevice`]
    /// (ENXIO) from the end on.
    pub(crate) fn seek_hole(&self, offset: u64) -> Result<u64> {
        if offset >= self.size {
            return Err(Error::NoDevice);
        }
        let mut page = offset / PAGE_BYTES;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        Ok((page * PAGE_BYTES).clamp(offset, self.size))
    }

    /// Frees all pages, when the file is deleted.
    pub(crate) fn free(&mut self, space: &mut Space) {
        self.drop_pages(0, u64::MAX, space);
        self.size = 0;
    }

    fn page(&mut self, index: u64, space: &mut Space) -> Result<&mut Page> {
        match self.pages.entry(index) {
            std::collections::btree_map::Entry::Occupied(page) => Ok(page.into_mut()),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                space.take()?;
                Ok(vacant.insert(Box::new([0; PAGE_BYTES as usize])))
            }
        }
    }

    /// Zeroes the bytes from `offset` up to `end`; holes stay holes.
    pub(crate) fn clear(&mut self, offset: u64, end: u64) {
        let (first, last) = (offset / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        for (&index, page) in self.pages.range_mut(first..last.max(first)) {
            let base = index * PAGE_BYTES;
            let start = offset.saturating_sub(base) as usize;
            let end = (end - base).min(PAGE_BYTES) as usize;
            page[start..end].fill(0);
        }
    }

    /// Frees the pages numbered from `first` up to `end`.
    fn drop_pages(&mut self, first: u64, end: u64, space: &mut Space) {
        if first >= end {
            return;
        }
        let mut from_first = self.pages.split_off(&first);
        let mut following = from_first.split_off(&end);
        space.give_back(from_first.len() as u64);
        self.pages.append(&mut following);
    }
}

fn end_of(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|&end| end <= SIZE_MAX).ok_or(Error::FileTooLarge)
}

fn on_pages(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(PAGE_BYTES) && len.is_multiple_of(PAGE_BYTES)
}

/// Splits the `len` bytes from `offset` on at page boundaries.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let end = offset + len;
    let mut next = offset;
    std::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let page = next / PAGE_BYTES;
        let base = page * PAGE_BYTES;
        let stop = end.min(base + PAGE_BYTES);
        let piece = Piece {
            page,
            start: (next - base) as usize,
            end: (stop - base) as usize,
            at: (next - offset) as usize,
        };
        next = stop;
        Some(piece)
    })
}

/// Counter of pages in use, with a limit.
#[derive(Debug)]
pub(crate) struct Space {
    limit_pages: u64,
    used_pages: u64,
}

impl Space {
    pub(crate) fn new(limit_pages: u64) -> Self {
        Self { limit_pages, used_pages: 0 }
    }

    /// Counts one more page as used; fails at the limit.
    pub(crate) fn take(&mut self) -> Result<()> {
        if self.used_pages >= self.limit_pages {
            return Err(Error::NoSpace);
        }
        self.used_pages += 1;
        Ok(())
    }

    pub(crate) fn give_back(&mut self, pages: u64) {
        self.used_pages = self.used_pages.saturating_sub(pages);
    }

    pub(crate) fn limit_pages(&self) -> u64 {
        self.limit_pages
    }

    pub(crate) fn free_pages(&self) -> u64 {
        self.limit_pages - self.used_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_mem::Buffer;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut buffer = Buffer::new(content.size() as usize);
        let done = content.read(0, &buffer.sink(0..buffer.len()));
        assert!(done.eof && done.count as u64 == content.size());
        buffer.as_slice().unwrap().to_vec()
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 251) as u8 + 1).collect()
    }

    #[test]
    fn range_operations_match_plain_vector() {
        let page = PAGE_BYTES as usize;
        let mut space = Space::new(100);
        let mut content = Content::default();
        let mut model = pattern(5 * page + 100);
        content.write(0, &Source::from(model.clone()), &mut space).unwrap();

        content.collapse(PAGE_BYTES, 2 * PAGE_BYTES, &mut space).unwrap();
        model.drain(page..3 * page);
        assert_eq!(bytes(&content), model);

        content.insert(PAGE_BYTES, PAGE_BYTES).unwrap();
        model.splice(page..page, std::iter::repeat_n(0, page));
        assert_eq!(bytes(&content), model);
        assert_eq!(content.seek_hole(0).unwrap(), PAGE_BYTES);
        assert_eq!(content.seek_data(PAGE_BYTES).unwrap(), 2 * PAGE_BYTES);

        content.punch(10, 2 * PAGE_BYTES + 20, &mut space).unwrap();
        model[10..2 * page + 30].fill(0);
        assert_eq!(bytes(&content), model);

        content.set_size(2 * PAGE_BYTES + 40, &mut space).unwrap();
        content.set_size(3 * PAGE_BYTES, &mut space).unwrap();
        model.truncate(2 * page + 40);
        model.resize(3 * page, 0);
        assert_eq!(bytes(&content), model);

        content.free(&mut space);
        assert_eq!(space.free_pages(), 100);
    }

    #[test]
    fn full_content_takes_short_write_then_nothing() {
        let mut space = Space::new(2);
        let mut content = Content::default();
        assert_eq!(content.write(0, &Source::from(pattern(10_000)), &mut space).unwrap(), 8192);
        assert!(matches!(content.write(8192, &Source::from(pattern(1)), &mut space), Err(Error::NoSpace)));
        assert!(matches!(content.allocate(0, 3 * PAGE_BYTES, false, &mut space), Err(Error::NoSpace)));
        assert_eq!(content.size(), 8192);
    }
}
