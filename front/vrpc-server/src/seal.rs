//! Proof that a persistent handle was given out here.
//!
//! The file system's own handle proves nothing: anybody can make up one, of any file of the file system, and a file of which the
//! kernel knows no name cannot be told to be outside of the export. So handles leave with a proof, and come back with it.

use std::hash::Hasher;
use std::hint::black_box;
use std::sync::Arc;

use siphasher::sip128::{Hasher128, SipHasher24};
use tombolo_core::fs::{PersistentHandle, Volume};
use tombolo_sys::random;
use tombolo_wire_vrpc::HANDLE_BYTES_MAX;

/// Length of a proof, behind the handle's own bytes.
const PROOF_BYTES: usize = 16;

/// Seals the handles of one export, for as long as the server lives.
#[derive(Clone)]
pub(crate) struct Seal {
    /// None where the system has no randomness: there are no handles then.
    key: Option<[u8; 16]>,
    export: Arc<str>,
}

impl Default for Seal {
    /// With a new key.
    fn default() -> Self {
        let mut key = [0; 16];
        let key = random::fill(&mut key).is_ok().then_some(key);
        Self { key, export: "".into() }
    }
}

impl Seal {
    /// The same key, for one export: handles of another one mean nothing there.
    pub(crate) fn for_export(&self, name: &str) -> Self {
        Self { key: self.key, export: name.into() }
    }

    /// The handle with its proof; none if it is too long for one.
    pub(crate) fn sealed(&self, handle: &PersistentHandle, volume: Volume) -> Option<PersistentHandle> {
        let proof = self.proof(handle.kind, &handle.bytes, volume)?;
        let mut bytes = handle.bytes.clone();
        bytes.extend_from_slice(&proof);
        (bytes.len() <= HANDLE_BYTES_MAX).then_some(PersistentHandle { kind: handle.kind, bytes })
    }

    /// The handle that a peer sent back; none if it was not given out here, for this export of this file system.
    pub(crate) fn opened(&self, kind: i32, bytes: &[u8], volume: Volume) -> Option<PersistentHandle> {
        let (bytes, proof) = bytes.split_last_chunk::<PROOF_BYTES>()?;
        let expected = self.proof(kind, bytes, volume)?;
        // In a time that does not tell how far they are the same.
        let differing =
            expected.iter().zip(proof).fold(0, |all, (one, other)| black_box(all | (one ^ other)));
        (black_box(differing) == 0).then(|| PersistentHandle { kind, bytes: bytes.into() })
    }

    /// SipHash-2-4 of 128 bits.
    fn proof(&self, kind: i32, bytes: &[u8], volume: Volume) -> Option<[u8; PROOF_BYTES]> {
        let mut hasher = SipHasher24::new_with_key(self.key.as_ref()?);
        hasher.write(&kind.to_le_bytes());
        hasher.write(&volume.0);
        hasher.write(&(bytes.len() as u64).to_le_bytes());
        hasher.write(bytes);
        hasher.write(self.export.as_bytes());
        Some(hasher.finish128().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: Volume = Volume([7; 16]);

    fn handle(len: u8) -> PersistentHandle {
        PersistentHandle { kind: 1, bytes: (0..len).collect() }
    }

    #[test]
    fn only_what_was_given_out_for_this_export_is_opened() {
        let server = Seal::default();
        let seal = server.for_export("src");
        let sealed = seal.sealed(&handle(24), VOLUME).expect("sealed");
        let opened = |seal: &Seal, kind, bytes: &[u8], volume| seal.opened(kind, bytes, volume);
        assert_eq!(opened(&seal, 1, &sealed.bytes, VOLUME), Some(handle(24)));
        for bit in 0..sealed.bytes.len() * 8 {
            let mut changed = sealed.bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&seal, 1, &changed, VOLUME), None, "bit {bit}");
        }
        for len in 0..sealed.bytes.len() {
            assert_eq!(opened(&seal, 1, &sealed.bytes[..len], VOLUME), None);
        }
        assert_eq!(opened(&seal, 2, &sealed.bytes, VOLUME), None);
        assert_eq!(opened(&seal, 1, &sealed.bytes, Volume([8; 16])), None);
        assert_eq!(opened(&server.for_export("other"), 1, &sealed.bytes, VOLUME), None);
        assert_eq!(opened(&Seal::default().for_export("src"), 1, &sealed.bytes, VOLUME), None);
        assert_eq!(seal.sealed(&handle(120), VOLUME), None);
    }
}
