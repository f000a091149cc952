//! Bytes retained until they are on the server's stable storage.

use smallvec::{SmallVec, smallvec};
use tombolo_host_runtime::buffer_pool::{Buffers, Lease};
use tombolo_mem::Source;

use super::allowance::Charge;

/// Maximum number of segments of writes that are joined to one WRITE, well below the limit of one sendmsg(2)
/// (1024, `IOV_MAX`), which a WRITE shares with its header and other calls.
const SEGMENTS_MAX: usize = 256;

/// The bytes of one or more adjacent writes of a file.
#[derive(Debug)]
pub(super) struct Memory {
    source: Source,
    /// Pooled buffers that the source refers to.
    leases: SmallVec<[Lease; 1]>,
    /// Unused bytes at the end of the last lease.
    slack_bytes: usize,
    charge: Charge,
}

impl Memory {
    /// Retains memory that does not change: the writer's own, if retainable, or a private copy.
    pub(super) fn keep(source: Source, charge: Charge) -> Self {
        Self { source, leases: SmallVec::new(), slack_bytes: 0, charge }
    }

    /// Copies data that the writer may change into a buffer, with `spare_bytes` more at the end if one of
    /// that length is available.
    pub(super) fn copy(from: &Source, spare_bytes: usize, buffers: &Buffers, mut charge: Charge) -> Self {
        let len = from.len();
        let lease = buffers.take(len.saturating_add(spare_bytes)).or_else(|| buffers.take(len));
        let Some(lease) = lease else {
            // The data are longer than any pooled buffer: the number of buffers has no limit.
            return Self::keep(Source::from(from.to_vec(len)), charge);
        };
        let slack_bytes = lease.len() - len;
        charge.grow(slack_bytes);
        from.copy_to_sink(&lease.sink(0..len));
        Self { source: lease.source(0..len), leases: smallvec![lease], slack_bytes, charge }
    }

    pub(super) fn len(&self) -> usize {
        self.source.len()
    }

    /// Returns the `len` bytes from offset `at`.
    pub(super) fn source(&self, at: usize, len: usize) -> Source {
        let mut source = self.source.clone();
        source.advance(at);
        source.truncate(len);
        source
    }

    /// Appends a copy of the next bytes of the file. They were charged with their buffer, and extend its
    /// segment. Returns `false` if no buffer at the end has space for them.
    pub(super) fn append_copy(&mut self, from: &Source) -> bool {
        let Some(lease) = self.leases.last().filter(|_| from.len() <= self.slack_bytes) else { return false };
        let start = lease.len() - self.slack_bytes;
        let place = start..start + from.len();
        from.copy_to_sink(&lease.sink(place.clone()));
        self.slack_bytes -= from.len();
        self.source.append(lease.source(place));
        true
    }

    /// Returns `true` if `more` can be appended without exceeding the limit on segments.
    pub(super) fn has_segments_for(&self, more: &Memory) -> bool {
        self.source.segments().len() + more.source.segments().len() <= SEGMENTS_MAX
    }

    /// Appends memory with the next bytes of the file.
    pub(super) fn append(&mut self, more: Memory) {
        let Memory { source, mut leases, slack_bytes, charge } = more;
        self.source.append(source);
        if !leases.is_empty() {
            self.leases.append(&mut leases);
            self.slack_bytes = slack_bytes;
        } else {
            // The last span is not of a pooled buffer now.
            self.slack_bytes = 0;
        }
        self.charge.absorb(charge);
    }
}

#[cfg(test)]
mod tests {
    use tombolo_host_runtime::buffer_pool::BufferLimits;

    use super::super::allowance::Allowance;
    use super::*;

    #[test]
    fn append_copies_bytes_of_a_reusable_buffer() {
        let allowance = Allowance::new(1 << 20);
        let buffers = Buffers::new(BufferLimits::default());
        let mut from = tombolo_mem::Buffer::new(8);
        from.as_mut_slice().expect("not lent").copy_from_slice(b"abcdefgh");
        let charge = allowance.take(8).expect("within the budget");
        let mut memory = Memory::copy(&from.source(0..8), 100, &buffers, charge);
        assert!(memory.append_copy(&from.source(0..4)));
        assert_eq!(memory.source.segments().len(), 1, "small writes do not grow the list");
        from.as_mut_slice().expect("only lent for the copy").fill(b'x');
        assert_eq!(memory.source(6, 6).to_vec(9), b"ghabcd");
        assert!(!memory.append_copy(&Source::from(vec![0; 1 << 20])), "more than the buffer has");

        let kept =
            Memory::keep(Source::from(b"kept".to_vec()), allowance.take(4).expect("within the budget"));
        assert!(memory.has_segments_for(&kept));
        memory.append(kept);
        assert_eq!(memory.source(8, 8).to_vec(9), b"abcdkept");
        assert!(!memory.append_copy(&Source::from(b"!".to_vec())), "it would not come last");
        assert!(allowance.used_bytes() >= 2048, "the whole buffer counts");
        drop(memory);
        assert_eq!(allowance.used_bytes(), 0);
    }
}
