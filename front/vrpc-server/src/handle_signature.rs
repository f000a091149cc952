//! Signatures of persistent handles.
//!
//! The file system's own handle proves nothing: any client can forge a handle of any file of the file system,
//! and the server cannot always tell that a file is outside of the export, since the kernel may know no name
//! of it. Handles are therefore signed when sent and verified when received.

use std::hash::Hasher;
use std::hint::black_box;
use std::sync::Arc;

use siphasher::sip128::{Hasher128, SipHasher24};
use tombolo_core::fs::{PersistentHandle, Volume};
use tombolo_host_runtime::signing_keys::{Key, KeyId, Keys};
use tombolo_wire_vrpc::HANDLE_BYTES_MAX;

/// Length of a signature, the last bytes of a handle; the key's id precedes it.
const PROOF_BYTES: usize = 16;

/// Domain separation from other signatures with the same keys.
const SIGNATURE_DOMAIN: &[u8] = b"tombolo vrpc handle";

/// Signer of the handles of one export.
#[derive(Clone)]
pub(crate) struct HandleSigner {
    /// `None` if the system has no randomness; then no handles are issued.
    keys: Option<Arc<Keys>>,
    export: Arc<str>,
}

impl Default for HandleSigner {
    /// Creates a signer with a random key, valid for the server's lifetime.
    fn default() -> Self {
        Self { keys: Keys::random().ok().map(Arc::new), export: "".into() }
    }
}

impl HandleSigner {
    /// Creates a signer that uses the newest key and verifies with all valid keys.
    pub(crate) fn with(keys: Arc<Keys>) -> Self {
        Self { keys: Some(keys), export: "".into() }
    }

    /// Returns a signer for one export, which does not accept handles of others.
    pub(crate) fn for_export(&self, name: &str) -> Self {
        Self { keys: self.keys.clone(), export: name.into() }
    }

    /// Returns the handle with a signature appended; `None` without keys, or if it becomes too long.
    pub(crate) fn sign(&self, handle: &PersistentHandle, volume: Volume) -> Option<PersistentHandle> {
        let (id, key) = self.keys.as_ref()?.newest();
        let proof = self.proof((id, key), handle.kind, &handle.bytes, volume);
        let mut bytes = handle.bytes.clone();
        bytes.push(id.0);
        bytes.extend_from_slice(&proof);
        (bytes.len() <= HANDLE_BYTES_MAX).then_some(PersistentHandle { kind: handle.kind, bytes })
    }

    /// Verifies a peer's handle; `None` if not issued for this export and file system, or if its key is
    /// retired.
    pub(crate) fn verify(&self, kind: i32, bytes: &[u8], volume: Volume) -> Option<PersistentHandle> {
        let (bytes, proof) = bytes.split_last_chunk::<PROOF_BYTES>()?;
        let (&id, bytes) = bytes.split_last()?;
        let id = KeyId(id);
        let expected = self.proof((id, self.keys.as_ref()?.find(id)?), kind, bytes, volume);
        // Constant-time comparison.
        let differing =
            expected.iter().zip(proof).fold(0, |all, (one, other)| black_box(all | (one ^ other)));
        (black_box(differing) == 0).then(|| PersistentHandle { kind, bytes: bytes.into() })
    }

    /// Computes SipHash-2-4 (128 bits) of a handle, its volume, the key's id and the export's name.
    fn proof(&self, (id, key): (KeyId, &Key), kind: i32, bytes: &[u8], volume: Volume) -> [u8; PROOF_BYTES] {
        let mut hasher = SipHasher24::new_with_key(key.as_bytes());
        hasher.write(SIGNATURE_DOMAIN);
        hasher.write(&[id.0]);
        hasher.write(&kind.to_le_bytes());
        hasher.write(&volume.0);
        hasher.write(&(bytes.len() as u64).to_le_bytes());
        hasher.write(bytes);
        hasher.write(self.export.as_bytes());
        hasher.finish128().as_bytes()
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
    fn only_handles_signed_for_this_export_are_verified() {
        let server = HandleSigner::default();
        let signer = server.for_export("src");
        let sealed = signer.sign(&handle(24), VOLUME).expect("sealed");
        let opened = |signer: &HandleSigner, kind, bytes: &[u8], volume| signer.verify(kind, bytes, volume);
        assert_eq!(opened(&signer, 1, &sealed.bytes, VOLUME), Some(handle(24)));
        for bit in 0..sealed.bytes.len() * 8 {
            let mut changed = sealed.bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&signer, 1, &changed, VOLUME), None, "bit {bit}");
        }
        for len in 0..sealed.bytes.len() {
            assert_eq!(opened(&signer, 1, &sealed.bytes[..len], VOLUME), None);
        }
        assert_eq!(opened(&signer, 2, &sealed.bytes, VOLUME), None);
        assert_eq!(opened(&signer, 1, &sealed.bytes, Volume([8; 16])), None);
        assert_eq!(opened(&server.for_export("other"), 1, &sealed.bytes, VOLUME), None);
        assert_eq!(opened(&HandleSigner::default().for_export("src"), 1, &sealed.bytes, VOLUME), None);
        assert_eq!(signer.sign(&handle(111), VOLUME).map(|handle| handle.bytes.len()), Some(128));
        assert_eq!(signer.sign(&handle(112), VOLUME), None);
    }

    fn with(keys: &str) -> HandleSigner {
        HandleSigner::with(Arc::new(Keys::parse(&format!("version 1\n{keys}")).expect("keys")))
            .for_export("src")
    }

    #[test]
    fn older_keys_are_good_until_they_are_retired() {
        let (one, two) =
            ("key 1 000102030405060708090a0b0c0d0e0f\n", "key 2 ffeeddccbbaa99887766554433221100\n");
        let given = with(one).sign(&handle(24), VOLUME).expect("sealed");
        let opened = |keys: &str, given: &PersistentHandle| with(keys).verify(1, &given.bytes, VOLUME);
        assert_eq!(opened(one, &given), Some(handle(24)), "another server with the same key");
        assert_eq!(opened(&[two, one].concat(), &given), Some(handle(24)));
        assert_eq!(opened(&[two, "retired 1\n"].concat(), &given), None);
        let newer = with(&[two, one].concat()).sign(&handle(24), VOLUME).expect("sealed");
        assert_eq!((newer.bytes[24], opened(one, &newer)), (2, None), "the newest key seals");
        // The format, computed independently.
        let hex: String = given.bytes[24..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "01bfce24605b8a1e763848c8f024b02398");
    }
}
