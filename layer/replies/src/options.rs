//! Limits of the outcomes that the layer keeps.

use std::time::Duration;

/// Limits of the outcomes kept by the layer, for each kind of operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Limits of operations that must not run twice: those that create, remove or move names, appends,
    /// changes of size, guarded changes of attributes, and conditional changes of extended attributes.
    pub durable: Limits,
    /// Limits of all other changes, mostly writes, whose outcomes are in memory only. They are separate,
    /// so that a stream of writes does not evict the durable outcomes.
    pub fleeting: Limits,
}

/// Limits of number and age of outcomes. A duplicate of an operation beyond these limits is performed as a
/// new request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries of all clients. At the limit an old answered one is evicted; if there is
    /// none, a new request is performed without an entry, so that its duplicates are performed too.
    pub entries: usize,
    /// Maximum number of entries of one client. Enforced at once for a client whose requests have
    /// [`KeyProperties::FEW_UNDER_WAY`](tombolo_core::KeyProperties::FEW_UNDER_WAY), of a link or of a kept
    /// virtio-fs device; other clients may exceed it until the total is reached.
    pub entries_per_client: usize,
    /// Maximum time since the reply, or since a restart that restored the outcome, after which it is dropped.
    pub age: Duration,
}

impl Default for Limits {
    /// Returns 16,384 entries in all, 1,024 per client when all are in use, for two minutes: a Linux client
    /// repeats a call after one minute over TCP, and has at most some hundred in flight.
    fn default() -> Self {
        Self { entries: 16_384, entries_per_client: 1024, age: Duration::from_secs(120) }
    }
}
