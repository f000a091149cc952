//! Checks of every message: truncation, mutation, and comparison with a foreign codec.

use nfs3_types::xdr_codec::{Pack, Unpack};
use tombolo_wire_nfs3::{Fattr3, FileType3, NfsTime3, SpecData3};
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Error, List, encoded};

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub fn fattr() -> Fattr3 {
    Fattr3 {
        file_type: FileType3::Directory,
        mode: 0o755,
        nlink: 2,
        uid: 3,
        gid: 4,
        size: (5 << 32) | 6,
        used: 7,
        rdev: SpecData3 { major: 8, minor: 9 },
        fsid: 10,
        fileid: 11,
        atime: NfsTime3 { seconds: 12, nseconds: 13 },
        mtime: NfsTime3 { seconds: 14, nseconds: 15 },
        ctime: NfsTime3 { seconds: 16, nseconds: 17 },
    }
}

/// Returns a list that lives as long as the test.
pub fn list<T: Encode + Decode<'static>>(items: &[T]) -> List<'static, T> {
    let mut bytes = Vec::new();
    let mut xdr = Encoder::new(&mut bytes);
    for item in items {
        xdr.bool(true).value(item);
    }
    xdr.bool(false);
    List::decode(&mut Decoder::new(bytes.leak())).unwrap()
}

/// Asserts that a foreign codec (`nfs3_types`) decodes these bytes completely as an `F`, and re-encodes them.
#[track_caller]
pub fn agrees<F: Pack + Unpack>(bytes: &[u8]) {
    let mut input = bytes;
    let (value, used) = F::unpack(&mut input).unwrap_or_else(|error| panic!("{error:?}: {bytes:?}"));
    let mut packed = Vec::new();
    value.pack(&mut packed).unwrap();
    assert_eq!((used, &packed[..]), (bytes.len(), bytes));
}

/// Asserts that decoding fails on all prefixes, and does not panic with a hostile word in any position.
#[track_caller]
pub fn survives<T>(bytes: &[u8], mut decode: impl FnMut(&[u8]) -> Result<T, Error>) {
    for len in 0..bytes.len() {
        let cut = decode(&bytes[..len]).err();
        assert!(matches!(cut, Some(Error::Short { .. })), "{len} of {} bytes: {cut:?}", bytes.len());
    }
    for word in 0..bytes.len() / 4 {
        for value in [u32::MAX, 1 << 31, 2, 0] {
            let mut hostile = bytes.to_vec();
            hostile[word * 4..][..4].copy_from_slice(&value.to_be_bytes());
            let _ = decode(&hostile);
        }
    }
}

/// Asserts the encoding, and that it alone decodes, to the same results.
#[track_caller]
pub fn reply_is<T: Encode + Decode<'static> + PartialEq + std::fmt::Debug>(reply: &T, bytes: &[u8]) {
    assert_eq!(encoded(reply), bytes, "{reply:?}");
    let decode = |bytes: &[u8]| T::decode(&mut Decoder::new(bytes.to_vec().leak()));
    assert_eq!(decode(bytes).as_ref(), Ok(reply));
    survives(bytes, decode);
}
