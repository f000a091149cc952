//! A pool of reusable buffers.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_mem::Buffer;

/// Sizes of pooled buffers in bytes: most files of most trees fit in the first; the last is that of a piece
/// of a copied file.
const SIZES: [usize; 3] = [16 << 10, 128 << 10, 1 << 20];

/// Number of returned buffers examined for remaining references before a new one is allocated.
const TRIES: usize = 8;

/// Buffers of a few sizes. A returned buffer may be lent again once nothing refers to its memory: a file
/// system may retain written data until its server has stored them.
#[derive(Clone, Debug)]
pub(crate) struct BufferPool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    size_classes: [Mutex<VecDeque<Buffer>>; SIZES.len()],
    /// Maximum number of unused buffers retained, for each size.
    retained_max: [usize; SIZES.len()],
}

impl BufferPool {
    /// Creates a pool that retains at most about `retained_bytes` of unused buffers of each size.
    pub fn new(retained_bytes: usize) -> Self {
        Self(Arc::new(Shared {
            size_classes: Default::default(),
            retained_max: SIZES.map(|size| retained_bytes / size + 1),
        }))
    }

    /// Lends a buffer of at least `len` bytes with unspecified contents.
    pub fn lend(&self, len: usize) -> Lease {
        let size_class = SIZES.iter().position(|&size| size >= len);
        let buffer = size_class.and_then(|size_class| self.free_one(size_class));
        let size = size_class.and_then(|size_class| SIZES.get(size_class)).copied().unwrap_or(len);
        Lease {
            buffer: buffer.unwrap_or_else(|| Buffer::new(size)),
            home: size_class.map(|size_class| (self.clone(), size_class)),
        }
    }

    /// Takes a returned buffer without remaining references; `None` if none is found among the oldest.
    fn free_one(&self, size_class: usize) -> Option<Buffer> {
        let mut buffers = self.size_class(size_class)?;
        for _ in 0..TRIES.min(buffers.len()) {
            let mut buffer = buffers.pop_front()?;
            if buffer.as_mut_slice().is_some() {
                return Some(buffer);
            }
            buffers.push_back(buffer);
        }
        None
    }

    fn size_class(&self, size_class: usize) -> Option<MutexGuard<'_, VecDeque<Buffer>>> {
        Some(self.0.size_classes.get(size_class)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A lent buffer, which returns to its pool when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    buffer: Buffer,
    /// The pool and the index of the size class; `None` for a buffer larger than all classes.
    home: Option<(BufferPool, usize)>,
}

impl Lease {
    /// Returns the bytes, if nothing else refers to them.
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
        let Some((pool, size_class)) = self.home.take() else { return };
        let most = pool.0.retained_max.get(size_class).copied().unwrap_or(0);
        let Some(mut buffers) = pool.size_class(size_class) else { return };
        if buffers.len() < most {
            buffers.push_back(std::mem::replace(&mut self.buffer, Buffer::new(0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_only_without_other_references() {
        let buffers = BufferPool::new(1 << 20);
        let first = buffers.lend(100);
        let held = first.source(0..5);
        let address =
            |lease: &Lease| lease.source(0..1).segments().next().map(|segment| segment.ptr as usize);
        let at = address(&first);
        drop(first);
        let other = buffers.lend(100);
        assert_ne!(address(&other), at);
        drop(held);
        assert_eq!(address(&buffers.lend(100)), at);
        assert_eq!(buffers.lend(3 << 20).len(), 3 << 20);
    }
}
