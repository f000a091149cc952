//! Data memory of a request.

use smallvec::SmallVec;
use tombolo_host_runtime::buffer_pool::{BUFFER_MAX_BYTES, Buffers, Lease};
use tombolo_mem::{Sink, Source};

/// Buffers that together hold the data of one request.
pub(crate) struct Memory {
    leases: SmallVec<[Lease; 1]>,
    len_bytes: usize,
}

impl Memory {
    /// Takes buffers for `len_bytes`; `None` while the client, or all clients together, use too much memory.
    pub(crate) fn take(buffers: &Buffers, len_bytes: usize) -> Option<Self> {
        let mut leases = SmallVec::new();
        let mut missing = len_bytes;
        while missing > 0 {
            let part = missing.min(BUFFER_MAX_BYTES);
            leases.push(buffers.take(part)?);
            missing -= part;
        }
        Some(Self { leases, len_bytes })
    }

    pub(crate) fn sink(&self) -> Sink {
        let mut all = Sink::new();
        for (lease, part) in self.parts() {
            all.append(lease.sink(0..part));
        }
        all
    }

    pub(crate) fn source(&self) -> Source {
        let mut all = Source::new();
        for (lease, part) in self.parts() {
            all.append(lease.source(0..part));
        }
        all
    }

    fn parts(&self) -> impl Iterator<Item = (&Lease, usize)> {
        let part = |index: usize| (self.len_bytes - index * BUFFER_MAX_BYTES).min(BUFFER_MAX_BYTES);
        self.leases.iter().enumerate().map(move |(index, lease)| (lease, part(index)))
    }
}
