//! The write verifier: how clients learn that unstable writes may be lost (RFC 1813 §3.3.7, §3.3.21).

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Changes at every start, and whenever data that was taken but not yet stable could not be written. A client that sees
/// it change sends its unstable data again.
#[derive(Debug)]
pub(crate) struct WriteVerifier(AtomicU64);

impl WriteVerifier {
    /// A verifier that no earlier run of a server has used: the time under a random key, for clocks are set back.
    pub fn new() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(AtomicU64::new(RandomState::new().hash_one(since_1970)))
    }

    /// The present one.
    pub fn bytes(&self) -> [u8; 8] {
        self.0.load(Ordering::Acquire).to_be_bytes()
    }

    /// Data was lost.
    pub fn change(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_and_every_loss_makes_another_verifier() {
        let first = WriteVerifier::new();
        let before = first.bytes();
        assert_eq!(before, first.bytes());
        first.change();
        assert_ne!(before, first.bytes());
        assert_ne!(before, WriteVerifier::new().bytes());
    }
}
