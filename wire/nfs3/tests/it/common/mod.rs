//! Checks of every message: truncation, mutation, and comparison with a foreign codec.

use nfs3_types::xdr_codec::{Pack, Unpack};
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Error, List};

pub fn encoded<T: Encode>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes
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
