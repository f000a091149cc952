//! Buffers that are used again.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_mem::Buffer;

/// Most files of most trees fit the first; the last is the largest piece that is read or written.
const SIZES: [usize; 3] = [16 << 10, 128 << 10, 1 << 20];

/// So many buffers are asked whether somebody still holds them before a new one is made.
const TRIES: usize = 8;

/// Buffers of a few sizes. One that came back is lent again once nobody holds its memory: a file system may keep what was
/// written to it until its server has it for good.
#[derive(Clone, Debug)]
pub(crate) struct Stock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    shelves: [Mutex<VecDeque<Buffer>>; SIZES.len()],
    /// Of each size so many are kept.
    kept_max: [usize; SIZES.len()],
}

impl Stock {
    /// Keeps at most about so many bytes of each size that nobody uses.
    pub fn new(kept_bytes: usize) -> Self {
        Self(Arc::new(Shared {
            shelves: Default::default(),
            kept_max: SIZES.map(|size| kept_bytes / size + 1),
        }))
    }

    /// A buffer of at least `len` bytes, what is in it being anything.
    pub fn lend(&self, len: usize) -> Lease {
        let shelf = SIZES.iter().position(|&size| size >= len);
        let buffer = shelf.and_then(|shelf| self.free_one(shelf));
        let size = shelf.and_then(|shelf| SIZES.get(shelf)).copied().unwrap_or(len);
        Lease {
            buffer: buffer.unwrap_or_else(|| Buffer::new(size)),
            home: shelf.map(|shelf| (self.clone(), shelf)),
        }
    }

    fn free_one(&self, shelf: usize) -> Option<Buffer> {
        let mut buffers = self.shelf(shelf)?;
        for _ in 0..TRIES.min(buffers.len()) {
            let mut buffer = buffers.pop_front()?;
            if buffer.as_mut_slice().is_some() {
                return Some(buffer);
            }
            buffers.push_back(buffer);
        }
        None
    }

    fn shelf(&self, shelf: usize) -> Option<MutexGuard<'_, VecDeque<Buffer>>> {
        Some(self.0.shelves.get(shelf)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A buffer that goes back to its stock when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    buffer: Buffer,
    home: Option<(Stock, usize)>,
}

impl Lease {
    /// The bytes, if nobody else holds them.
    pub fn as_slice(&mut self) -> Option<&[u8]> {
        self.buffer.as_slice()
    }
}

impl Deref for Lease {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((stock, shelf)) = self.home.take() else { return };
        let most = stock.0.kept_max.get(shelf).copied().unwrap_or(0);
        let Some(mut buffers) = stock.shelf(shelf) else { return };
        if buffers.len() < most {
            buffers.push_back(std::mem::replace(&mut self.buffer, Buffer::new(0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_only_when_nobody_holds_it() {
        let stock = Stock::new(1 << 20);
        let first = stock.lend(100);
        let held = first.source(0..5);
        let address =
            |lease: &Lease| lease.source(0..1).segments().next().map(|segment| segment.ptr as usize);
        let at = address(&first);
        drop(first);
        let other = stock.lend(100);
        assert_ne!(address(&other), at);
        drop(held);
        assert_eq!(address(&stock.lend(100)), at);
        assert_eq!(stock.lend(3 << 20).len(), 3 << 20);
    }
}
