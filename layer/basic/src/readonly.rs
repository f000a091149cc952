//! Refusal of all changes with `ReadOnly`.
//!
//! Only changes through the layer are refused: reading may still update access times.

use std::sync::Arc;

use tombolo_core::fs::{Export, Profile};
use tombolo_core::{Answer, Error};

use crate::around::{Around, Call, Layered, Payload};

/// The [`Around`] of this layer, which [`over`] applies.
#[derive(Debug)]
pub struct ReadOnly;

/// Wraps `inner`, refusing changes. Opening for writing and tests of write access are refused too.
pub fn over(inner: Arc<dyn Export>) -> Layered<dyn Export, ReadOnly> {
    Layered::new(inner, Arc::new(ReadOnly))
}

impl Around for ReadOnly {
    #[inline]
    fn around<T: Payload>(&self, call: Call, inner: impl FnOnce() -> Answer<T>) -> Answer<T> {
        if call.mutates { Answer::err(Error::ReadOnly) } else { inner() }
    }

    fn profile(&self, inner: Profile) -> Profile {
        Profile { read_only: true, ..inner }
    }
}
