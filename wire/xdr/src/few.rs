//! Arrays of few items (RFC 4506 §4.13).

use std::fmt;
use std::ops::Deref;

use crate::{Decode, Decoder, Encode, Encoder, Result};

/// Up to `N` items, stored inline. Decoding fails beyond them.
#[derive(Clone, Copy)]
pub struct Few<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    /// Returns these items; `None` if there are more than `N`.
    #[must_use]
    pub fn new(items: &[T]) -> Option<Self> {
        let mut few = Self { len: items.len(), ..Self::default() };
        few.items.get_mut(..items.len())?.copy_from_slice(items);
        Some(few)
    }
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self { items: [T::default(); N], len: 0 }
    }
}

impl<T, const N: usize> Deref for Few<T, N> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.items.get(..self.len).unwrap_or_default()
    }
}

impl<T: PartialEq, const N: usize> PartialEq for Few<T, N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq, const N: usize> Eq for Few<T, N> {}

impl<T: fmt::Debug, const N: usize> fmt::Debug for Few<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<'a, T: Copy + Default + Decode<'a>, const N: usize> Decode<'a> for Few<T, N> {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        let mut few = Self { len: xdr.length(N)?, ..Self::default() };
        for item in few.items.iter_mut().take(few.len) {
            *item = xdr.value()?;
        }
        Ok(few)
    }
}

impl<T: Encode, const N: usize> Encode for Few<T, N> {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.u32(self.len as u32);
        self.iter().for_each(|item| item.encode(xdr));
    }
}
