//! Memory for the requests of one mount ([`BufferPool`]), reused from one request to the next.
//!
//! A file system may retain the data of an answered WRITE, to forward it without a copy. The WRITE's buffer
//! is then not written to until the file system releases it; another buffer replaces it meanwhile. The number
//! of retained buffers is bounded: at the limit a file system may not retain data, and copies it.

use tombolo_core::lock;

use super::device::DATA_OFFSET;
use crate::session::Slot;
use std::sync::{Arc, Mutex};
use tombolo_mem::Buffer;
use tombolo_wire_fuse::layout::header::MIN_READ_BUFFER;

/// Unused slots and buffers, and buffers that a file system retains.
#[derive(Debug)]
pub(super) struct BufferPool {
    /// Capacity of each buffer for file data.
    data_bytes: usize,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "slots are passed on as boxes, without moving their contents")]
struct Memory {
    slots: Vec<Box<Slot>>,
    buffers: Vec<Buffer>,
    /// Lent buffers that were still in use when they were returned.
    retained: Vec<Buffer>,
    /// Number of buffers that the file system may use after the reply: those lent and not yet returned, and
    /// those in `retained`.
    lent: usize,
}

/// Maximum number of spare slots and of spare buffers; more are freed.
const SPARE_MAX: usize = 16;
/// Maximum number of buffers that a file system may retain at a time: 64 MiB if WRITEs have at most 1 MiB.
const LENT_MAX: usize = 64;

impl BufferPool {
    /// Creates a pool for requests with up to `max_write_bytes` of data.
    pub(super) fn new(max_write_bytes: u32) -> Arc<BufferPool> {
        let data_bytes = (max_write_bytes as usize).max(MIN_READ_BUFFER);
        Arc::new(BufferPool { data_bytes, memory: Mutex::default() })
    }

    pub(super) fn take(&self) -> (Box<Slot>, Buffer) {
        let (slot, buffer) = {
            let mut memory = lock(&self.memory);
            (memory.slots.pop(), memory.spare())
        };
        (slot.unwrap_or_default(), buffer.unwrap_or_else(|| self.fresh()))
    }

    /// Returns a request's memory to the pool. With `lent` the file system may still use the buffer.
    pub(super) fn put(&self, slot: Box<Slot>, buffer: Buffer, lent: bool) {
        let mut memory = lock(&self.memory);
        if memory.slots.len() < SPARE_MAX {
            memory.slots.push(slot);
        }
        match lent {
            true => memory.end_loan(buffer),
            false => memory.keep(buffer),
        }
    }

    /// Lends the file system the caller's buffer, which it may then use after the reply; returns `false` at
    /// the limit. The caller must return a lent buffer by [`BufferPool::put`] with `lent`,
    /// [`BufferPool::exchange`] or [`BufferPool::give_up`].
    pub(super) fn lend(&self) -> bool {
        let mut memory = lock(&self.memory);
        if memory.lent >= LENT_MAX {
            memory.sweep();
        }
        let may = memory.lent < LENT_MAX;
        memory.lent += usize::from(may);
        may
    }

    /// Exchanges a lent buffer for a free one, usually the same if the file system does not retain it.
    pub(super) fn exchange(&self, lent: Buffer) -> Buffer {
        let spare = {
            let mut memory = lock(&self.memory);
            memory.end_loan(lent);
            memory.spare()
        };
        spare.unwrap_or_else(|| self.fresh())
    }

    /// Takes back a lent buffer whose exchange is dropped.
    pub(super) fn give_up(&self, lent: Buffer) {
        lock(&self.memory).end_loan(lent);
    }

    fn fresh(&self) -> Buffer {
        Buffer::new(DATA_OFFSET + self.data_bytes)
    }
}

impl Memory {
    fn spare(&mut self) -> Option<Buffer> {
        if self.buffers.is_empty() {
            self.sweep();
        }
        self.buffers.pop()
    }

    fn keep(&mut self, buffer: Buffer) {
        if self.buffers.len() < SPARE_MAX {
            self.buffers.push(buffer);
        }
    }

    /// Ends the loan of a buffer, which may still be in use.
    fn end_loan(&mut self, mut buffer: Buffer) {
        if is_free(&mut buffer) {
            self.lent -= 1;
            self.keep(buffer);
        } else {
            self.retained.push(buffer);
        }
    }

    /// Reclaims retained buffers that the file system has released.
    fn sweep(&mut self) {
        let mut index = 0;
        while let Some(buffer) = self.retained.get_mut(index) {
            if is_free(buffer) {
                let buffer = self.retained.swap_remove(index);
                self.lent -= 1;
                self.keep(buffer);
            } else {
                index += 1;
            }
        }
    }
}

fn is_free(buffer: &mut Buffer) -> bool {
    buffer.as_slice().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retained_buffer_is_not_reused() {
        let buffers = BufferPool::new(8192);
        let (_, buffer) = buffers.take();
        assert!(buffers.lend());
        let held = buffer.source(0..10);
        let mut next = buffers.exchange(buffer);
        next.as_mut_slice().expect("free").fill(0xff);
        assert_eq!(held.to_vec(10), [0; 10]);
        drop(held);
        assert!(lock(&buffers.memory).spare().is_some(), "let go, it is a spare again");
        assert_eq!(lock(&buffers.memory).lent, 0);
    }

    #[test]
    fn unretained_buffer_is_reused_at_once() {
        let buffers = BufferPool::new(8192);
        let (_, mut buffer) = buffers.take();
        buffer.as_mut_slice().expect("free")[0] = 7;
        assert!(buffers.lend());
        let mut again = buffers.exchange(buffer);
        assert_eq!(again.as_slice().expect("free")[0], 7, "the same memory");
    }

    #[test]
    fn retained_buffers_are_bounded() {
        let buffers = BufferPool::new(8192);
        let mut held = Vec::new();
        while buffers.lend() {
            let (slot, buffer) = buffers.take();
            held.push(buffer.source(0..10));
            buffers.put(slot, buffer, true);
        }
        assert_eq!(held.len(), LENT_MAX);
        held.truncate(LENT_MAX - 10);
        assert_eq!((0..LENT_MAX).filter(|_| buffers.lend()).count(), 10);
        assert!(lock(&buffers.memory).buffers.len() <= SPARE_MAX);
    }
}
