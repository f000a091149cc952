//! Walk along a descriptor chain, with all checks of the guest's descriptors.

use super::device::ChainLimits;
use super::fault::QueueFault;
use super::memory::GuestMemory;
use tombolo_mem::{Region, Sink, Source};

/// Length in bytes of a descriptor (virtio 1.2, 2.7.5): address, length, flags, next.
pub(crate) const DESCRIPTOR_LEN: usize = 16;

const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;
const FLAG_INDIRECT: u16 = 4;

/// A queue's descriptor table (virtio 1.2, 2.7.5), in memory that the guest may change concurrently: a walk
/// copies each descriptor out before it checks and uses the copy.
#[derive(Debug, Clone)]
pub struct DescriptorTable {
    region: Region,
    offset: usize,
    size: u16,
    /// `true` if the driver may use indirect tables.
    indirect: bool,
}

impl DescriptorTable {
    /// Creates the table of `size` descriptors at `offset` in the region.
    pub fn new(region: Region, offset: usize, size: u16, indirect: bool) -> DescriptorTable {
        DescriptorTable { region, offset, size, indirect }
    }

    /// Walks the chain that begins at `head` and collects its readable and writable buffers. At most
    /// [`INLINE_SEGMENTS`](tombolo_mem::INLINE_SEGMENTS) spans each way, all in one memory slot, take no
    /// allocation. The limits and the table's size bound the number of steps, whatever the guest has written.
    pub fn walk(
        &self,
        memory: &GuestMemory,
        head: u16,
        limits: ChainLimits,
    ) -> Result<(Source, Sink), QueueFault> {
        self.walk_with(memory, head, limits, |_, _| {})
    }

    /// Walks a chain as [`walk`](Self::walk) does, and calls `writable` with guest address and length of each
    /// writable buffer.
    #[inline]
    pub(crate) fn walk_with(
        &self,
        memory: &GuestMemory,
        head: u16,
        limits: ChainLimits,
        writable: impl FnMut(u64, u32),
    ) -> Result<(Source, Sink), QueueFault> {
        let (source, sink) = (Source::new(), Sink::new());
        let mut walk = Walk { memory, limits, bytes: 0, count: 0, source, sink, writable };
        let mut index = head;
        for _ in 0..self.size {
            let descriptor = self.read(index)?;
            if descriptor.has(FLAG_INDIRECT) {
                if !self.indirect {
                    return Err(QueueFault::IndirectUnexpected);
                }
                // No descriptor may follow an indirect table (2.7.5.3.1).
                if descriptor.has(FLAG_NEXT) {
                    return Err(QueueFault::IndirectMisplaced);
                }
                walk.indirect(descriptor)?;
                return Ok((walk.source, walk.sink));
            }
            walk.add(index, descriptor)?;
            if !descriptor.has(FLAG_NEXT) {
                return Ok((walk.source, walk.sink));
            }
            index = descriptor.next;
        }
        Err(QueueFault::Loop { size: self.size })
    }

    fn read(&self, index: u16) -> Result<Descriptor, QueueFault> {
        if index >= self.size {
            return Err(QueueFault::DescriptorIndex { index, size: self.size });
        }
        let mut bytes = [0; DESCRIPTOR_LEN];
        self.region.read_at(self.offset + usize::from(index) * DESCRIPTOR_LEN, &mut bytes)?;
        Ok(Descriptor::decode(bytes))
    }
}

#[derive(Debug, Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn decode(bytes: [u8; DESCRIPTOR_LEN]) -> Descriptor {
        let word = u128::from_le_bytes(bytes);
        Descriptor {
            address: word as u64,
            len: (word >> 64) as u32,
            flags: (word >> 96) as u16,
            next: (word >> 112) as u16,
        }
    }

    fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

struct Walk<'a, W> {
    memory: &'a GuestMemory,
    limits: ChainLimits,
    bytes: u32,
    count: u16,
    source: Source,
    sink: Sink,
    writable: W,
}

impl<W: FnMut(u64, u32)> Walk<'_, W> {
    /// Adds one buffer of the chain, after checking it against the limits and the guest's memory.
    fn add(&mut self, index: u16, descriptor: Descriptor) -> Result<(), QueueFault> {
        if descriptor.len == 0 {
            return Err(QueueFault::Empty { index });
        }
        if self.count >= self.limits.descriptors_max {
            return Err(QueueFault::TooManyDescriptors { max: self.limits.descriptors_max });
        }
        self.count += 1;
        let bytes = self.bytes.checked_add(descriptor.len).filter(|bytes| *bytes <= self.limits.bytes_max);
        self.bytes = bytes.ok_or_else(|| self.too_long(descriptor))?;
        if descriptor.has(FLAG_WRITE) {
            self.memory.writable(descriptor.address, descriptor.len, &mut self.sink)?;
            (self.writable)(descriptor.address, descriptor.len);
            Ok(())
        } else if self.sink.is_empty() {
            self.memory.readable(descriptor.address, descriptor.len, &mut self.source)
        } else {
            Err(QueueFault::ReadableAfterWritable { index })
        }
    }

    /// Adds all buffers of an indirect table (2.7.5.3).
    fn indirect(&mut self, table: Descriptor) -> Result<(), QueueFault> {
        let length_fault = QueueFault::IndirectLength { len: table.len };
        if table.len == 0 || !table.len.is_multiple_of(DESCRIPTOR_LEN as u32) {
            return Err(length_fault);
        }
        let size = u16::try_from(table.len / DESCRIPTOR_LEN as u32).map_err(|_| length_fault)?;
        let mut entries = Source::new();
        self.memory.readable(table.address, table.len, &mut entries)?;
        let mut index = 0;
        for _ in 0..size {
            if index >= size {
                return Err(QueueFault::DescriptorIndex { index, size });
            }
            let mut bytes = [0; DESCRIPTOR_LEN];
            entries.read_at(usize::from(index) * DESCRIPTOR_LEN, &mut bytes);
            let descriptor = Descriptor::decode(bytes);
            if descriptor.has(FLAG_INDIRECT) {
                return Err(QueueFault::IndirectMisplaced);
            }
            self.add(index, descriptor)?;
            if !descriptor.has(FLAG_NEXT) {
                return Ok(());
            }
            index = descriptor.next;
        }
        Err(QueueFault::Loop { size })
    }

    /// Returns the fault for a buffer with which the chain exceeds its limit of bytes: `OutsideMemory` if the
    /// buffer is also outside of the guest's memory.
    fn too_long(&self, descriptor: Descriptor) -> QueueFault {
        match self.memory.readable(descriptor.address, descriptor.len, &mut Source::new()) {
            Ok(()) => QueueFault::TooManyBytes { max: self.limits.bytes_max },
            Err(fault) => fault,
        }
    }
}
