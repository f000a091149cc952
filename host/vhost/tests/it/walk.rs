//! The walk along a descriptor chain over random memory: it ends, stays in bounds, and agrees with another
//! implementation (the virtio-queue crate) on valid chains.

use proptest::prelude::*;
use std::sync::atomic::Ordering;
use tombolo_host_vhost::{ChainLimits, DescriptorTable, GuestMemory, MemorySlot};
use tombolo_mem::{Region, Source};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const SIZE: u16 = 8;
/// Two adjacent slots, then a hole.
const SPAN: usize = 4096;
const BASE: u64 = 0x1_0000;
const END: u64 = BASE + 2 * SPAN as u64;
/// Layout: the table, an indirect table, then buffers.
const INDIRECT_AT: u64 = BASE + 1024;
const LIMITS: ChainLimits = ChainLimits { descriptors_max: 12, bytes_max: 8192 };

#[derive(Debug, Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn encode(self) -> Vec<u8> {
        let mut bytes = self.address.to_le_bytes().to_vec();
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(self.flags.to_le_bytes());
        bytes.extend(self.next.to_le_bytes());
        bytes
    }
}

/// Generates mostly plausible descriptors, and some wild ones.
fn descriptor() -> impl Strategy<Value = Descriptor> {
    let address = prop_oneof![
        12 => BASE + 2048..END,
        3 => Just(INDIRECT_AT),
        1 => any::<u64>(),
        1 => END - 8..END + 8,
    ];
    let len =
        prop_oneof![8 => 1..300u32, 3 => (1..9u32).prop_map(|n| n * 16), 1 => Just(0), 1 => any::<u32>()];
    let flags = prop_oneof![6 => Just(1u16), 4 => Just(3), 3 => Just(2), 2 => Just(0), 3 => Just(4), 1 => any::<u16>()];
    let next = prop_oneof![9 => 0..SIZE, 1 => any::<u16>()];
    (address, len, flags, next).prop_map(|(address, len, flags, next)| Descriptor {
        address,
        len,
        flags,
        next,
    })
}

/// Generates the table and an indirect table.
fn tables() -> impl Strategy<Value = (Vec<Descriptor>, Vec<Descriptor>)> {
    let table = prop::collection::vec(descriptor(), usize::from(SIZE));
    (table, prop::collection::vec(descriptor(), 8))
}

/// Returns memory in which every byte outside of the tables depends on its position.
fn contents(table: &[Descriptor], indirect: &[Descriptor]) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..2 * SPAN).map(|i| (i * 31 + i / 251) as u8).collect();
    let encoded: Vec<u8> = table.iter().flat_map(|descriptor| descriptor.encode()).collect();
    bytes[..encoded.len()].copy_from_slice(&encoded);
    let encoded: Vec<u8> = indirect.iter().flat_map(|descriptor| descriptor.encode()).collect();
    let at = (INDIRECT_AT - BASE) as usize;
    bytes[at..at + encoded.len()].copy_from_slice(&encoded);
    bytes
}

struct Ours {
    memory: GuestMemory,
    table: DescriptorTable,
}

impl Ours {
    fn new(bytes: &[u8], indirect: bool) -> Ours {
        let slot = |i: usize| {
            let region = Region::from(bytes[i * SPAN..(i + 1) * SPAN].to_vec());
            MemorySlot { guest_address: BASE + (i * SPAN) as u64, user_address: (i * SPAN) as u64, region }
        };
        let memory = GuestMemory::new(vec![slot(1), slot(0)]).unwrap();
        let table = DescriptorTable::new(memory.slots()[0].region.clone(), 0, SIZE, indirect);
        Ours { memory, table }
    }

    fn bytes(&self) -> Vec<u8> {
        self.memory.slots().iter().flat_map(|slot| Source::from(&slot.region).to_vec(SPAN)).collect()
    }
}

/// Returns the other implementation's result: address, length and direction of each buffer.
fn theirs(memory: &GuestMemoryMmap, head: u16) -> Vec<(u64, u32, bool)> {
    const RINGS: u64 = 0x9_0000;
    let mut queue = Queue::new(SIZE).unwrap();
    queue.try_set_desc_table_address(GuestAddress(BASE)).unwrap();
    queue.try_set_avail_ring_address(GuestAddress(RINGS)).unwrap();
    queue.try_set_used_ring_address(GuestAddress(RINGS + 1024)).unwrap();
    queue.set_ready(true);
    memory.store(1u16.to_le(), GuestAddress(RINGS + 2), Ordering::Release).unwrap();
    memory.store(head.to_le(), GuestAddress(RINGS + 4), Ordering::Release).unwrap();
    let chain = queue.pop_descriptor_chain(memory).unwrap();
    chain.map(|descriptor| (descriptor.addr().0, descriptor.len(), descriptor.is_write_only())).collect()
}

fn their_memory(bytes: &[u8]) -> GuestMemoryMmap {
    let ranges = [(GuestAddress(BASE), 2 * SPAN), (GuestAddress(0x9_0000), SPAN)];
    let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
    memory.write_slice(bytes, GuestAddress(BASE)).unwrap();
    memory
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn walk_agrees_with_another_implementation(
        (table, indirect) in tables(),
        head in 0..SIZE,
    ) {
        let bytes = contents(&table, &indirect);
        let ours = Ours::new(&bytes, true);
        let Ok((source, sink)) = ours.table.walk(&ours.memory, head, LIMITS) else { return Ok(()) };
        let memory = their_memory(&bytes);
        let buffers = theirs(&memory, head);
        let total = |write| buffers.iter().filter(|buffer| buffer.2 == write).map(|buffer| buffer.1 as usize).sum();
        prop_assert_eq!((source.len(), sink.len()), (total(false), total(true)));
        let mut read = Vec::new();
        for (address, len, _) in buffers.iter().filter(|buffer| !buffer.2) {
            let mut part = vec![0; *len as usize];
            memory.read_slice(&mut part, GuestAddress(*address)).unwrap();
            read.extend(part);
        }
        prop_assert_eq!(source.to_vec(usize::MAX), read);
        // Writing through both changes the same bytes.
        let answer: Vec<u8> = (0..sink.len()).map(|i| (i * 7) as u8).collect();
        prop_assert_eq!(sink.write_at(0, &answer), answer.len());
        let mut rest = answer.as_slice();
        for (address, len, _) in buffers.iter().filter(|buffer| buffer.2) {
            let (part, behind) = rest.split_at(*len as usize);
            memory.write_slice(part, GuestAddress(*address)).unwrap();
            rest = behind;
        }
        let mut after = vec![0; 2 * SPAN];
        memory.read_slice(&mut after, GuestAddress(BASE)).unwrap();
        prop_assert_eq!(ours.bytes(), after);
    }

    #[test]
    fn any_table_walk_ends_within_limits(
        (table, indirect) in tables(),
        head in any::<u16>(),
        negotiated in any::<bool>(),
    ) {
        let bytes = contents(&table, &indirect);
        let ours = Ours::new(&bytes, negotiated);
        if let Ok((source, sink)) = ours.table.walk(&ours.memory, head, LIMITS) {
            prop_assert!(source.len() + sink.len() <= LIMITS.bytes_max as usize);
            prop_assert!(source.len() + sink.len() > 0);
        }
        prop_assert_eq!(ours.bytes(), bytes);
    }

    #[test]
    fn an_honest_chain_is_always_found(
        buffers in prop::collection::vec((0..4000u64, 1..60u32), 1..9),
        writable_from in 0..9usize,
        in_table in 0..9usize,
        order in Just((0..SIZE).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let parts: Vec<Descriptor> = buffers.iter().enumerate().map(|(i, (at, len))| {
            let write = if i >= writable_from { 2 } else { 0 };
            Descriptor { address: BASE + 2048 + at, len: *len, flags: write, next: 0 }
        }).collect();
        // The first few directly, the others in an indirect table; scattered over the table.
        let direct = if in_table >= parts.len() { parts.len() } else { in_table.min(7) };
        let mut table = vec![Descriptor { address: 0, len: 0, flags: 7, next: 99 }; usize::from(SIZE)];
        let mut indirect = parts[direct..].to_vec();
        let last = indirect.len().saturating_sub(1);
        for (i, entry) in indirect.iter_mut().enumerate().take(last) {
            entry.flags |= 1;
            entry.next = i as u16 + 1;
        }
        let mut chain = parts[..direct].to_vec();
        if !indirect.is_empty() {
            let len = indirect.len() as u32 * 16;
            chain.push(Descriptor { address: INDIRECT_AT, len, flags: 4, next: 0 });
        }
        let places: Vec<u16> = order.into_iter().take(chain.len()).collect();
        for (i, descriptor) in chain.iter_mut().enumerate() {
            if let Some(next) = places.get(i + 1) {
                descriptor.flags |= 1;
                descriptor.next = *next;
            }
            table[usize::from(places[i])] = *descriptor;
        }
        let bytes = contents(&table, &indirect);
        let ours = Ours::new(&bytes, true);
        let limits = ChainLimits { descriptors_max: 8, bytes_max: 1000 };
        let (source, sink) = ours.table.walk(&ours.memory, places[0], limits).unwrap();
        let readable = parts.len().min(writable_from);
        let expected: Vec<u8> = parts[..readable].iter().flat_map(|part| {
            let at = (part.address - BASE) as usize;
            bytes[at..at + part.len as usize].to_vec()
        }).collect();
        prop_assert_eq!(source.to_vec(usize::MAX), expected);
        let room: u32 = parts[readable..].iter().map(|part| part.len).sum();
        prop_assert_eq!(sink.len(), room as usize);
    }
}
