//! The bytes of a signed handle (`docs/formats/handles.md`).

use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use thiserror::Error;
use tombolo_core::fs::PersistentHandle;
use tombolo_wire_nfs3::HANDLE_BYTES_MAX;

/// The only version so far.
pub(super) const VERSION: u8 = 1;

pub(super) const VERSION_AT: usize = 0;
pub(super) const KEY_AT: usize = 1;
pub(super) const EXPORT_AT: usize = 2;
pub(super) const KIND_AT: usize = 4;
pub(super) const MAC_AT: usize = 6;
pub(super) const BYTES_AT: usize = 18;

/// Length of the proof.
pub(super) const MAC_LEN: usize = BYTES_AT - MAC_AT;

/// The longest name of a file that fits, in bytes.
pub const FILE_BYTES_MAX: usize = HANDLE_BYTES_MAX - BYTES_AT;

const _: () = {
    assert!(KEY_AT == VERSION_AT + size_of::<u8>());
    assert!(EXPORT_AT == KEY_AT + size_of::<u8>());
    assert!(KIND_AT == EXPORT_AT + size_of::<ExportId>());
    assert!(MAC_AT == KIND_AT + size_of::<u16>());
    assert!(MAC_LEN == 12 && BYTES_AT == 18);
    assert!(HANDLE_BYTES_MAX == 64 && FILE_BYTES_MAX == 46);
};

/// Which export a handle is for: a digest of its name, so that a server with the same key and the same name agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExportId(pub(super) [u8; 2]);

/// Two exports of one server whose names have the same digest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("exports {0:?} and {1:?} would have the same file handles: rename one")]
pub struct ExportCollision(pub String, pub String);

impl ExportId {
    /// The id of an export with this name: the low 16 bits of its SipHash-2-4 with a key of zeros.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(name.as_bytes());
        Self((hasher.finish() as u16).to_be_bytes())
    }

    /// Makes sure that no two of the names have one id.
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

/// A handle's fields, as they were found: nothing is checked but that they are there.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    pub version: u8,
    pub key: u8,
    pub export: ExportId,
    pub kind: u16,
    pub mac: [u8; MAC_LEN],
    pub file: &'a [u8],
}

impl<'a> Fields<'a> {
    /// `None` if it is too short or too long to be one.
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
        // Handles that clients hold depend on these bytes.
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
}
