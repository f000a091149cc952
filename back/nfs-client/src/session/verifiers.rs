//! Verifiers of CREATE, by which a server recognises a retried request (RFC 1813 §3.3.8).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Generator of verifiers that are unique among all clients, apart from chance collisions.
#[derive(Debug)]
pub(super) struct Verifiers {
    next: AtomicU64,
    /// `false` once the server has refused an exclusive CREATE as unsupported.
    supported: AtomicBool,
}

impl Verifiers {
    pub(super) fn new() -> Self {
        // Its keys are random, so the start is.
        let start = RandomState::new().build_hasher().finish();
        Self { next: AtomicU64::new(start), supported: AtomicBool::new(true) }
    }

    /// Returns an unused verifier; `None` if the server supports none: the caller then creates GUARDED.
    pub(super) fn next(&self) -> Option<[u8; 8]> {
        let is_supported = self.supported.load(Ordering::Relaxed);
        is_supported.then(|| self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes())
    }

    /// Records that the server supports no verifiers.
    pub(super) fn set_unsupported(&self) {
        self.supported.store(false, Ordering::Relaxed);
    }
}
