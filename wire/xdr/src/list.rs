//! Linked lists (RFC 4506 §4.19): a boolean precedes each item.

use std::marker::PhantomData;

use crate::{Decode, Decoder, Encode, Encoder, Result};

/// The items of a linked list, in the message.
///
/// Decoding validates all items, so that iterating cannot fail; nothing is stored. To encode a list item by
/// item, put `true` before each item and `false` behind the last.
#[derive(Debug)]
pub struct List<'a, T> {
    bytes: &'a [u8],
    item: PhantomData<fn() -> T>,
}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<'_, T> {}

impl<T> PartialEq for List<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<T> Eq for List<'_, T> {}

impl<'a, T: Decode<'a>> Decode<'a> for List<'a, T> {
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        let before = xdr.rest();
        while xdr.value::<Option<T>>()?.is_some() {}
        let len = before.len() - xdr.rest().len();
        Ok(Self { bytes: before.get(..len).unwrap_or_default(), item: PhantomData })
    }
}

impl<T> Encode for List<'_, T> {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.raw(self.bytes);
    }
}

impl<'a, T: Decode<'a>> IntoIterator for List<'a, T> {
    type Item = T;
    type IntoIter = Items<'a, T>;

    fn into_iter(self) -> Items<'a, T> {
        Items { xdr: Decoder::new(self.bytes), item: PhantomData }
    }
}

/// An iterator over a [`List`].
#[derive(Debug)]
pub struct Items<'a, T> {
    xdr: Decoder<'a>,
    item: PhantomData<fn() -> T>,
}

impl<'a, T: Decode<'a>> Iterator for Items<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        // Ends at the first invalid item, which cannot occur: the same bytes were validated before.
        self.xdr.value().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, encoded};

    #[test]
    fn list_ends_at_its_terminator() {
        let bytes = [0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 9, 9, 9, 9];
        let mut xdr = Decoder::new(&bytes);
        let list: List<'_, u32> = xdr.value().unwrap();
        assert_eq!(list.into_iter().collect::<Vec<_>>(), [7, 8]);
        assert_eq!(xdr.rest(), [9; 4]);
        assert_eq!(encoded(&list), bytes[..20]);
    }

    #[test]
    fn an_endless_list_is_refused() {
        let cut = List::<'_, u32>::decode(&mut Decoder::new(&[0, 0, 0, 1, 0, 0, 0, 7]));
        assert_eq!(cut, Err(Error::Short { missing_bytes: 4 }));
        assert_eq!(List::<'_, u32>::decode(&mut Decoder::new(&[0, 0, 0, 2])), Err(Error::BadBool(2)));
    }
}
