use super::{GUEST_BASE, USER_BASE, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::hint;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use tombolo_mem::{OutOfBounds, Region, Sink, Source};

/// A buffer in the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestBuffer {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A part of a chain, as in one descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Guest-physical address.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// `true` if the device writes it; otherwise it reads it.
    pub writable: bool,
}

/// A completed chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Its number, as returned by [`DriverQueue::submit`].
    pub head: u16,
    /// Number of bytes that the device claims to have written.
    pub written: u32,
}

impl GuestBuffer {
    /// Returns it as a part that the device reads.
    pub fn readable(self) -> Part {
        Part { address: self.address, len: self.len, writable: false }
    }

    /// Returns it as a part that the device writes.
    pub fn writable(self) -> Part {
        Part { address: self.address, len: self.len, writable: true }
    }

    /// Returns its first `len` bytes.
    pub fn first(self, len: u32) -> GuestBuffer {
        GuestBuffer { address: self.address, len: len.min(self.len) }
    }
}

/// The driver's side of one split virtqueue.
#[derive(Debug)]
pub struct DriverQueue {
    region: Region,
    layout: Layout,
    options: Options,
    eventfds: EventFds,
    /// Range of unused memory for buffers.
    arena: (usize, usize),
    free: Vec<u16>,
    /// For each head: its next descriptor, and the number of descriptors.
    next: Vec<u16>,
    count: Vec<u16>,
    available: u16,
    /// Available index at the last decision whether to ring.
    announced: u16,
    used: u16,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    pub(super) event_index: bool,
    pub(super) indirect: bool,
    pub(super) wait: Wait,
}

#[derive(Debug)]
pub(super) struct EventFds {
    pub(super) kick: OwnedFd,
    pub(super) call: OwnedFd,
    pub(super) error: OwnedFd,
}

/// Offsets of a queue's parts in the guest's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) size: u16,
    pub(super) table: usize,
    pub(super) available: usize,
    pub(super) used: usize,
    indirect: usize,
    end: usize,
}

const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;
const FLAG_INDIRECT: u16 = 4;
/// Number of descriptors in each head's indirect table.
const INDIRECT_MAX: usize = 16;

impl Layout {
    pub(super) fn new(start: usize, size: u16) -> Layout {
        let n = usize::from(size);
        let table = start;
        let available = table + n * 16;
        let used = (available + 4 + n * 2 + 2).next_multiple_of(4);
        let indirect = (used + 4 + n * 8 + 2).next_multiple_of(16);
        let end = (indirect + n * INDIRECT_MAX * 16).next_multiple_of(4096);
        Layout { size, table, available, used, indirect, end }
    }
}

impl DriverQueue {
    pub(super) fn new(
        region: Region,
        layout: Layout,
        end: usize,
        base: u16,
        eventfds: EventFds,
        options: Options,
    ) -> io::Result<DriverQueue> {
        let n = usize::from(layout.size);
        let mut queue = DriverQueue {
            region,
            layout,
            options,
            eventfds,
            arena: (layout.end, end),
            free: (0..layout.size).rev().collect(),
            next: vec![0; n],
            count: vec![0; n],
            available: base,
            announced: base,
            used: base,
        };
        // For a queue that was in use before, both rings restart.
        queue.set_available_index(base).map_err(io::Error::other)?;
        queue.store(queue.layout.used + 2, base).map_err(io::Error::other)?;
        if options.wait == Wait::Poll {
            queue.refuse_interrupts().map_err(io::Error::other)?;
        }
        Ok(queue)
    }

    /// Returns the queue's size.
    pub fn size(&self) -> u16 {
        self.layout.size
    }

    /// Allocates `len` bytes of guest memory for a buffer, aligned to 8 bytes, and from 4 KiB on to a page.
    /// Buffers are never freed: reuse them.
    pub fn alloc(&mut self, len: u32) -> Option<GuestBuffer> {
        let align = if len >= 4096 { 4096 } else { 8 };
        let start = self.arena.0.next_multiple_of(align);
        let end = start.checked_add(len as usize).filter(|end| *end <= self.arena.1)?;
        self.arena.0 = end;
        Some(GuestBuffer { address: GUEST_BASE + start as u64, len })
    }

    /// Writes to a buffer from its beginning, and returns the number of bytes that fit.
    pub fn write(&self, buffer: GuestBuffer, bytes: &[u8]) -> usize {
        self.sink(buffer).write_at(0, bytes)
    }

    /// Reads a buffer from its beginning, and returns the number of bytes.
    pub fn read(&self, buffer: GuestBuffer, out: &mut [u8]) -> usize {
        let mut source = Source::new();
        match source.push(&self.region, self.offset(buffer), buffer.len as usize) {
            Ok(()) => source.read_at(0, out),
            Err(_) => 0,
        }
    }

    /// Returns a buffer's memory.
    pub fn sink(&self, buffer: GuestBuffer) -> Sink {
        let mut sink = Sink::new();
        // The sink of another driver's buffer is empty.
        let _ = sink.push(&self.region, self.offset(buffer), buffer.len as usize);
        sink
    }

    /// Submits a chain to the device, and rings if the device requests it. Returns the chain's number, or
    /// `None` if there are not enough free descriptors.
    pub fn submit(&mut self, parts: &[Part]) -> Option<u16> {
        let head = self.add(parts)?;
        self.kick();
        Some(head)
    }

    /// Adds a chain without ringing; [`kick`](Self::kick) rings for many at once.
    pub fn add(&mut self, parts: &[Part]) -> Option<u16> {
        let indirect = self.options.indirect && parts.len() > 1 && parts.len() <= INDIRECT_MAX;
        let count = if indirect { 1 } else { parts.len() };
        if count == 0 || count > self.free.len() {
            return None;
        }
        let head = if indirect { self.add_indirect(parts)? } else { self.add_direct(parts)? };
        if let Some(slot) = self.count.get_mut(usize::from(head)) {
            *slot = count as u16;
        }
        self.offer(head).ok()?;
        Some(head)
    }

    /// Returns a completed chain, if there is one.
    pub fn try_used(&mut self) -> Option<Used> {
        let index = self.load(self.layout.used + 2, Ordering::Acquire).ok()?;
        if index == self.used {
            return None;
        }
        let slot = usize::from(self.used & (self.layout.size - 1));
        let mut entry = [0; 8];
        self.region.read_at(self.layout.used + 4 + slot * 8, &mut entry).ok()?;
        let entry = u64::from_le_bytes(entry);
        self.used = self.used.wrapping_add(1);
        let used = Used { head: entry as u16, written: (entry >> 32) as u32 };
        self.release(used.head);
        Some(used)
    }

    /// Waits for a completed chain; fails with `TimedOut`.
    pub fn wait_used(&mut self, timeout: Duration) -> io::Result<Used> {
        let deadline = Instant::now() + timeout;
        loop {
            for _ in 0..LOOKS {
                if let Some(used) = self.try_used() {
                    return Ok(used);
                }
                if self.options.wait == Wait::Event {
                    break;
                }
                hint::spin_loop();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.options.wait == Wait::Poll {
                // The server may need this core. A short sleep yields it without losing this thread's turn.
                std::thread::sleep(Duration::from_micros(1));
            }
            if self.options.wait == Wait::Event && !self.ask_for_interrupt().map_err(io::Error::other)? {
                wait_for(&self.eventfds.call, left)?;
            }
        }
    }

    /// Rings if the device has requested it since the last call.
    pub fn kick(&mut self) {
        fence(Ordering::SeqCst);
        let n = usize::from(self.layout.size);
        let (old, new) = (self.announced, self.available);
        self.announced = new;
        let wanted = if self.options.event_index {
            let event = self.load(self.layout.used + 4 + n * 8, Ordering::Relaxed);
            event.is_ok_and(|event| new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old))
        } else {
            self.load(self.layout.used, Ordering::Relaxed).is_ok_and(|flags| flags & 1 == 0)
        };
        if wanted {
            self.kick_always();
        }
    }

    /// Rings unconditionally.
    pub fn kick_always(&self) {
        // A full counter has been rung already.
        let _ = rustix::io::write(&self.eventfds.kick, &1u64.to_ne_bytes());
    }

    /// Returns `true` if the device reports within the time-out that the queue is broken.
    pub fn wait_broken(&self, timeout: Duration) -> bool {
        wait_for(&self.eventfds.error, timeout).unwrap_or(false)
    }

    /// Returns the number of interrupts since the last call, in polling mode.
    pub fn interrupts(&self) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&self.eventfds.call, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// Writes a raw descriptor.
    pub fn set_descriptor(
        &mut self,
        index: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) -> Result<(), OutOfBounds> {
        let at = self.layout.table + usize::from(index) * 16;
        self.region.write_at(at, &encode(address, len, flags, next))
    }

    /// Adds any head on the available ring.
    pub fn offer(&mut self, head: u16) -> Result<(), OutOfBounds> {
        let slot = usize::from(self.available & (self.layout.size - 1));
        self.store(self.layout.available + 4 + slot * 2, head)?;
        self.set_available_index(self.available.wrapping_add(1))
    }

    /// Sets the available index, regardless of chains.
    pub fn set_available_index(&mut self, index: u16) -> Result<(), OutOfBounds> {
        self.available = index;
        self.region.store_u16(self.layout.available + 2, index.to_le(), Ordering::Release)
    }

    /// Returns the available index.
    pub fn available_index(&self) -> u16 {
        self.available
    }

    /// Returns the used index in the device's ring.
    pub fn used_index(&self) -> u16 {
        self.load(self.layout.used + 2, Ordering::Acquire).unwrap_or(self.used)
    }

    /// Returns guest address and length in bytes of the used ring.
    pub fn used_ring(&self) -> GuestBuffer {
        let len = 4 + u32::from(self.layout.size) * 8 + 2;
        GuestBuffer { address: GUEST_BASE + self.layout.used as u64, len }
    }

    /// Returns the addresses of descriptor table, used ring and available ring, in the front end's address
    /// space.
    pub fn ring_addresses(&self) -> [u64; 3] {
        [self.layout.table, self.layout.used, self.layout.available].map(|offset| USER_BASE + offset as u64)
    }

    pub(super) fn eventfds(&self) -> &EventFds {
        &self.eventfds
    }

    fn add_direct(&mut self, parts: &[Part]) -> Option<u16> {
        let mut behind: Option<u16> = None;
        for part in parts.iter().rev() {
            let index = self.free.pop()?;
            let flags = part.flags() | if behind.is_some() { FLAG_NEXT } else { 0 };
            let next = behind.unwrap_or(0);
            self.set_descriptor(index, part.address, part.len, flags, next).ok()?;
            *self.next.get_mut(usize::from(index))? = next;
            behind = Some(index);
        }
        behind
    }

    fn add_indirect(&mut self, parts: &[Part]) -> Option<u16> {
        let index = self.free.pop()?;
        let table = self.layout.indirect + usize::from(index) * INDIRECT_MAX * 16;
        for (i, part) in parts.iter().enumerate() {
            let last = i + 1 == parts.len();
            let (flags, next) =
                if last { (part.flags(), 0) } else { (part.flags() | FLAG_NEXT, i as u16 + 1) };
            self.region.write_at(table + i * 16, &encode(part.address, part.len, flags, next)).ok()?;
        }
        let (address, len) = (GUEST_BASE + table as u64, parts.len() as u32 * 16);
        self.set_descriptor(index, address, len, FLAG_INDIRECT, 0).ok()?;
        Some(index)
    }

    /// Frees a chain's descriptors. A head that was never submitted is ignored.
    fn release(&mut self, head: u16) {
        let count = self.count.get_mut(usize::from(head)).map_or(0, std::mem::take);
        let mut index = head;
        for _ in 0..count {
            self.free.push(index);
            index = self.next.get(usize::from(index)).copied().unwrap_or(0);
        }
    }

    /// Requests an interrupt for the next completed chain; returns `true` if one is completed already.
    fn ask_for_interrupt(&mut self) -> Result<bool, OutOfBounds> {
        let n = usize::from(self.layout.size);
        self.interrupts();
        if self.options.event_index {
            self.store(self.layout.available + 4 + n * 2, self.used)?;
        } else {
            self.store(self.layout.available, 0)?;
        }
        fence(Ordering::SeqCst);
        Ok(self.load(self.layout.used + 2, Ordering::Acquire)? != self.used)
    }

    fn refuse_interrupts(&mut self) -> Result<(), OutOfBounds> {
        let n = usize::from(self.layout.size);
        if self.options.event_index {
            // Right behind the index: reached only after a full cycle of 65,536.
            self.store(self.layout.available + 4 + n * 2, self.used.wrapping_sub(1))
        } else {
            self.store(self.layout.available, 1)
        }
    }

    fn offset(&self, buffer: GuestBuffer) -> usize {
        usize::try_from(buffer.address.wrapping_sub(GUEST_BASE)).unwrap_or(usize::MAX)
    }

    fn load(&self, offset: usize, order: Ordering) -> Result<u16, OutOfBounds> {
        self.region.load_u16(offset, order).map(u16::from_le)
    }

    fn store(&self, offset: usize, value: u16) -> Result<(), OutOfBounds> {
        self.region.store_u16(offset, value.to_le(), Ordering::Relaxed)
    }
}

/// Number of polls of the used ring before yielding the core: some 50 µs.
const LOOKS: u32 = 1024;

impl Part {
    fn flags(&self) -> u16 {
        if self.writable { FLAG_WRITE } else { 0 }
    }
}

fn encode(address: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let word =
        u128::from(address) | u128::from(len) << 64 | u128::from(flags) << 96 | u128::from(next) << 112;
    word.to_le_bytes()
}

fn wait_for(fd: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let timeout =
        Timespec { tv_sec: timeout.as_secs().min(3600) as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
