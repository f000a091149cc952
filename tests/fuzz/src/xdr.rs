//! Values of XDR.

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder};

pub(crate) fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes
}

/// Decodes a value at the beginning of a message, encodes it again, and compares the length with that read.
pub(crate) fn decoded<'a, T: Decode<'a> + Encode>(message: &'a [u8]) -> Option<T> {
    let mut xdr = Decoder::new(message);
    let value = T::decode(&mut xdr).ok()?;
    assert_eq!(encoded(&value).len(), xdr.position());
    Some(value)
}
