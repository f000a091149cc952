//! Arbitrary bytes as a guest's memory with a descriptor table at its beginning: the walk must end, stay
//! inside that memory and within its limits, and its results must be usable.

use tombolo_host_vhost::{ChainLimits, DescriptorTable, GuestMemory, MemorySlot};
use tombolo_mem::Region;

const SPAN: usize = 2048;
const LIMITS: ChainLimits = ChainLimits { descriptors_max: 40, bytes_max: 3000 };

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((&[head, choices], content)) = bytes.split_first_chunk::<2>() else { return };
    // Two adjacent spans from address 0, so that small numbers are valid addresses.
    let slots = (0..2).map(|i| {
        let mut span = content.get(i * SPAN..).unwrap_or_default().to_vec();
        span.resize(SPAN, 0);
        let address = (i * SPAN) as u64;
        MemorySlot { guest_address: address, user_address: address, region: Region::from(span) }
    });
    let memory = GuestMemory::new(slots.collect()).expect("two spans that do not overlap");
    let size = 1 << (choices & 7);
    let table = DescriptorTable::new(memory.slots()[0].region.clone(), 0, size, choices & 8 != 0);
    let Ok((source, sink)) = table.walk(&memory, u16::from(head), LIMITS) else { return };
    assert!(source.len() + sink.len() <= LIMITS.bytes_max as usize);
    assert!(source.len() + sink.len() > 0);
    assert!(source.segments().len() + sink.segments().len() <= 2 * usize::from(LIMITS.descriptors_max));
    let copied = source.copy_to_sink(&sink);
    assert_eq!(copied, source.len().min(sink.len()));
    assert_eq!(sink.zero(0, usize::MAX), sink.len());
    assert_eq!(source.to_vec(usize::MAX).len(), source.len());
}
