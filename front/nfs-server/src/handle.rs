//! Signed file handles, which clients cannot forge.
//!
//! A handle identifies a file by its file system's persistent handle (`tombolo_core::fs::PersistentHandle`)
//! and carries a MAC that proves that a server with this key issued it for this export of this file system.
//! It survives restarts for as long as its key is valid. The format is specified in
//! `docs/formats/handles.md`.
//!
//! The keys are in [`tombolo_host_runtime::signing_keys`].

use std::hash::Hasher;
use std::hint::black_box;

use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher24Wide};
use thiserror::Error;
use tombolo_core::fs::{PersistentHandle, Volume};
use tombolo_host_runtime::signing_keys::{Key, KeyId, Keys};
use tombolo_wire_nfs3::HANDLE_BYTES_MAX;

/// Version of the handles' format, the only one so far.
const VERSION: u8 = 1;

const VERSION_AT: usize = 0;
const KEY_AT: usize = 1;
const EXPORT_AT: usize = 2;
const KIND_AT: usize = 4;
const MAC_AT: usize = 6;
const BYTES_AT: usize = 18;

/// Length of the MAC.
const MAC_LEN: usize = BYTES_AT - MAC_AT;

/// Maximum length of a file's persistent handle in bytes.
pub const FILE_BYTES_MAX: usize = HANDLE_BYTES_MAX - BYTES_AT;

const _: () = {
    assert!(KEY_AT == VERSION_AT + size_of::<u8>());
    assert!(EXPORT_AT == KEY_AT + size_of::<u8>());
    assert!(KIND_AT == EXPORT_AT + size_of::<ExportId>());
    assert!(MAC_AT == KIND_AT + size_of::<u16>());
    assert!(MAC_LEN == 12 && BYTES_AT == 18);
    assert!(HANDLE_BYTES_MAX == 64 && FILE_BYTES_MAX == 46);
};

/// Export of a handle: a digest of its name, so that servers with the same key and export name agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExportId([u8; 2]);

/// Two exports of one server whose names have the same digest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("exports {0:?} and {1:?} would have the same file handles: rename one")]
pub struct ExportCollision(pub String, pub String);

impl ExportId {
    /// Returns the id of an export's name: the low 16 bits of its SipHash-2-4 with a key of zeros.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(name.as_bytes());
        Self((hasher.finish() as u16).to_be_bytes())
    }

    /// Checks that no two names have the same id.
    pub fn check<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), ExportCollision> {
        let mut seen: Vec<(Self, &str)> = Vec::new();
        for name in names {
            let id = Self::of(name);
            match seen.iter().find(|(other, _)| *other == id) {
                Some((_, other)) => return Err(ExportCollision((*other).to_owned(), name.to_owned())),
                None => seen.push((id, name)),
            }
        }
        Ok(())
    }
}

/// Fields of a handle, unverified after reading.
#[derive(Clone, Debug)]
struct Fields<'a> {
    pub version: u8,
    pub key: u8,
    pub export: ExportId,
    pub kind: u16,
    pub mac: [u8; MAC_LEN],
    pub file: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Parses a handle, without verifying it; `None` if its length is not that of a handle.
    pub fn read(handle: &'a [u8]) -> Option<Self> {
        let (&[version, key], rest) = handle.split_first_chunk()?;
        let (&export, rest) = rest.split_first_chunk()?;
        let (&kind, rest) = rest.split_first_chunk()?;
        let (&mac, file) = rest.split_first_chunk()?;
        let kind = u16::from_be_bytes(kind);
        let fits = file.len() <= FILE_BYTES_MAX;
        fits.then_some(Self { version, key, export: ExportId(export), kind, mac, file })
    }

    pub fn write(&self) -> Box<[u8]> {
        let mut handle = Vec::with_capacity(BYTES_AT + self.file.len());
        handle.extend_from_slice(&[self.version, self.key]);
        handle.extend_from_slice(&self.export.0);
        handle.extend_from_slice(&self.kind.to_be_bytes());
        handle.extend_from_slice(&self.mac);
        handle.extend_from_slice(self.file);
        handle.into()
    }

    pub fn file(&self) -> PersistentHandle {
        PersistentHandle { kind: self.kind.into(), bytes: self.file.into() }
    }
}

/// Reason for refusing a handle of a call (RFC 1813 §2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// BADHANDLE: never issued for this export; the format, the MAC, the key or the export is wrong.
    #[error("not a handle of this server")]
    Bad,
    /// STALE: the handle was issued, but is no longer valid, because its key is retired or its export no
    /// longer served.
    #[error("stale file handle")]
    Stale,
}

/// Error of signing a persistent handle that does not fit into a file handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("file system has file handles longer than {FILE_BYTES_MAX} bytes, or of a type above {}", u16::MAX)]
pub struct Unsignable;

impl From<Unsignable> for tombolo_core::Error {
    fn from(_: Unsignable) -> Self {
        Self::NotSupported
    }
}

/// Signer that uses the newest key and verifies with all valid keys.
#[derive(Debug)]
pub struct Signer {
    keys: Keys,
}

impl Signer {
    /// Creates a signer with these keys.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self { keys }
    }

    /// Returns `true` if persistent handles like this one can be signed.
    pub fn can_sign(file: &PersistentHandle) -> bool {
        u16::try_from(file.kind).is_ok() && file.bytes.len() <= FILE_BYTES_MAX
    }

    /// Returns the handle for a client: the same bytes each time, until the key changes.
    pub fn sign(
        &self,
        export: ExportId,
        volume: Volume,
        file: &PersistentHandle,
    ) -> Result<Box<[u8]>, Unsignable> {
        let kind = u16::try_from(file.kind).map_err(|_| Unsignable)?;
        if file.bytes.len() > FILE_BYTES_MAX {
            return Err(Unsignable);
        }
        let (KeyId(id), key) = self.keys.newest();
        let mut fields =
            Fields { version: VERSION, key: id, export, kind, mac: [0; MAC_LEN], file: &file.bytes };
        fields.mac = proof(key, &fields, volume);
        Ok(fields.write())
    }

    /// Returns `true` if a valid handle was signed with the newest key.
    pub fn is_current(&self, handle: &[u8]) -> bool {
        Fields::read(handle).is_some_and(|fields| KeyId(fields.key) == self.keys.newest().0)
    }

    /// Returns the export that a handle claims; the caller must reply STALE if there is no such export.
    pub fn export_of(handle: &[u8]) -> Result<ExportId, Refused> {
        Fields::read(handle)
            .filter(|fields| fields.version == VERSION)
            .map(|it| it.export)
            .ok_or(Refused::Bad)
    }

    /// Verifies a handle of `export` on the file system `volume`; returns its file.
    pub fn verify(
        &self,
        handle: &[u8],
        export: ExportId,
        volume: Volume,
    ) -> Result<PersistentHandle, Refused> {
        let fields = Fields::read(handle).filter(|fields| fields.version == VERSION).ok_or(Refused::Bad)?;
        let key = match self.keys.find(KeyId(fields.key)) {
            Some(key) => key,
            None if self.keys.is_retired(KeyId(fields.key)) => return Err(Refused::Stale),
            None => return Err(Refused::Bad),
        };
        let genuine = same(&proof(key, &fields, volume), &fields.mac) && fields.export == export;
        if genuine { Ok(fields.file()) } else { Err(Refused::Bad) }
    }
}

/// Computes SipHash-2-4 (128 bits, truncated to 12 bytes) of all fields but the MAC, and of the volume.
fn proof(key: &Key, fields: &Fields<'_>, volume: Volume) -> [u8; MAC_LEN] {
    let mut hasher = SipHasher24Wide::new_with_key(key.as_bytes());
    hasher.write(&[fields.version, fields.key]);
    hasher.write(&fields.export.0);
    hasher.write(&fields.kind.to_be_bytes());
    hasher.write(&volume.0);
    hasher.write(fields.file);
    let whole = hasher.finish128().as_bytes();
    let mut mac = [0; MAC_LEN];
    mac.iter_mut().zip(whole).for_each(|(to, from)| *to = from);
    mac
}

/// Compares two MACs in constant time; returns `true` if they are equal.
fn same(one: &[u8; MAC_LEN], other: &[u8; MAC_LEN]) -> bool {
    let differing = one.iter().zip(other).fold(0, |all, (one, other)| black_box(all | (one ^ other)));
    black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_where_the_format_has_them() {
        let file: Vec<u8> = (100..146).collect();
        let fields = Fields {
            version: 1,
            key: 2,
            export: ExportId([3, 4]),
            kind: 0x0506,
            mac: *b"abcdefghijkl",
            file: &file,
        };
        let handle = fields.write();
        assert_eq!(handle.len(), 64);
        assert_eq!(handle[..18], *b"\x01\x02\x03\x04\x05\x06abcdefghijkl");
        assert_eq!(handle[18..], file);
        let read = Fields::read(&handle).expect("a handle");
        assert_eq!(read.write(), handle);
        for len in 0..18 {
            assert!(Fields::read(&handle[..len]).is_none(), "{len}");
        }
        assert!(Fields::read(&[1; 65]).is_none());
    }

    #[test]
    fn an_export_s_id_never_changes() {
        assert_eq!(ExportId::of("src"), ExportId::of("src"));
        assert_ne!(ExportId::of("src"), ExportId::of("golden"));
        // Handles stored by clients depend on these bytes.
        assert_eq!(ExportId::of("src").0, [0x9B, 0xAE]);
        assert_eq!(ExportId::of("").0, [0x00, 0xD7]);
    }

    #[test]
    fn export_id_collisions_are_errors() {
        let names: Vec<String> = (0..2000).map(|n| format!("export-{n}")).collect();
        let refused = ExportId::check(names.iter().map(String::as_str)).expect_err("16 bits are few");
        assert_ne!(refused.0, refused.1);
        assert_eq!(ExportId::of(&refused.0), ExportId::of(&refused.1));
        assert!(ExportId::check(["src", "golden"]).is_ok());
    }

    const VOLUME: Volume = Volume([7; 16]);

    fn file(len: u8) -> PersistentHandle {
        PersistentHandle { kind: 0x4001, bytes: (0..len).collect() }
    }

    fn signer(text: &str) -> Signer {
        Signer::new(Keys::parse(text).expect("keys"))
    }

    fn one_key() -> Signer {
        signer("version 1\nkey 1 000102030405060708090a0b0c0d0e0f\n")
    }

    #[test]
    fn signed_handles_verify_and_longer_ones_are_not_signed() {
        let (signer, export) = (one_key(), ExportId::of("src"));
        for len in 0..=46 {
            let handle = signer.sign(export, VOLUME, &file(len)).expect("it fits");
            assert_eq!(handle.len(), 18 + usize::from(len));
            assert_eq!(Signer::export_of(&handle), Ok(export));
            assert_eq!(signer.verify(&handle, export, VOLUME), Ok(file(len)));
        }
        assert_eq!(signer.sign(export, VOLUME, &file(47)), Err(Unsignable));
        assert!(Signer::can_sign(&file(46)) && !Signer::can_sign(&file(47)));
        for kind in [-1, 1 << 16] {
            let strange = PersistentHandle { kind, ..file(8) };
            assert_eq!(signer.sign(export, VOLUME, &strange), Err(Unsignable));
        }
    }

    #[test]
    fn any_changed_handle_bit_is_detected() {
        let (signer, export) = (one_key(), ExportId::of("src"));
        let handle = signer.sign(export, VOLUME, &file(12)).expect("sign");
        for bit in 0..handle.len() * 8 {
            let mut forged = handle.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(signer.verify(&forged, export, VOLUME), Err(Refused::Bad), "bit {bit}");
        }
        for len in 0..handle.len() {
            assert_eq!(signer.verify(&handle[..len], export, VOLUME), Err(Refused::Bad), "{len} bytes");
        }
        let longer = [&handle[..], &[0]].concat();
        assert_eq!(signer.verify(&longer, export, VOLUME), Err(Refused::Bad));
        assert_eq!(signer.verify(&[0xFF; 64], export, VOLUME), Err(Refused::Bad));
    }

    #[test]
    fn handle_is_bound_to_export_and_volume() {
        let (signer, export) = (one_key(), ExportId::of("src"));
        let handle = signer.sign(export, VOLUME, &file(8)).expect("sign");
        assert_eq!(signer.verify(&handle, ExportId::of("golden"), VOLUME), Err(Refused::Bad));
        assert_eq!(signer.verify(&handle, export, Volume([8; 16])), Err(Refused::Bad));
        // The MAC covers the export.
        let mut moved = handle.clone();
        moved[2..4].copy_from_slice(&ExportId::of("golden").0);
        assert_eq!(signer.verify(&moved, ExportId::of("golden"), VOLUME), Err(Refused::Bad));
    }

    #[test]
    fn older_keys_are_good_until_they_are_retired() {
        let export = ExportId::of("src");
        let old = one_key().sign(export, VOLUME, &file(8)).expect("sign");
        let keys = "key 2 ffeeddccbbaa99887766554433221100\n";
        let both = signer(&format!("version 1\n{keys}key 1 000102030405060708090a0b0c0d0e0f\n"));
        assert_eq!(both.verify(&old, export, VOLUME), Ok(file(8)));
        let new = both.sign(export, VOLUME, &file(8)).expect("sign");
        assert_eq!(new[1], 2, "the newest signs");
        assert!(both.is_current(&new) && !both.is_current(&old));
        assert_eq!(one_key().verify(&new, export, VOLUME), Err(Refused::Bad), "another server's key");
        let retired = signer(&format!("version 1\n{keys}retired 1\n"));
        assert_eq!(retired.verify(&old, export, VOLUME), Err(Refused::Stale));
        assert_eq!(retired.verify(&new, export, VOLUME), Ok(file(8)));
    }

    #[test]
    fn another_server_with_the_same_key_agrees() {
        let export = ExportId::of("src");
        let handle = one_key().sign(export, VOLUME, &file(20)).expect("sign");
        assert_eq!(one_key().sign(export, VOLUME, &file(20)).expect("sign"), handle);
        // The format must not change with a new version of a library; these bytes were computed
        // independently.
        let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "01019bae4001da60c4390a70f6e0ec998dd8000102030405060708090a0b0c0d0e0f10111213");
    }
}
