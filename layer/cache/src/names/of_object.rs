//! Names of an object, without memory for objects that have none, such as files.

use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;

use super::Names;

/// Names, allocated on first use.
#[derive(Debug, Default)]
pub(crate) struct NamesOfObject(Option<Box<Names>>);

/// The names of an object for which none were allocated.
static NONE: LazyLock<Names> = LazyLock::new(Names::default);

impl NamesOfObject {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |names| names.heap_bytes())
    }
}

impl From<Names> for NamesOfObject {
    fn from(names: Names) -> Self {
        Self(Some(Box::new(names)))
    }
}

impl Deref for NamesOfObject {
    type Target = Names;

    fn deref(&self) -> &Names {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for NamesOfObject {
    fn deref_mut(&mut self) -> &mut Names {
        self.0.get_or_insert_default()
    }
}
