//! Names that were taken away here, as far as answers that are still on their way have to know of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tombolo_core::fs::{Attr, FileType};

use crate::options::Contract;

/// When a name was last taken away of which it was not known for sure what it led to: a file has a name less, and it may be any. Where
/// nobody else gives files names, any that had more than one.
#[derive(Debug, Default)]
pub(crate) struct UnknownRemoval(Mutex<Option<Instant>>);

impl UnknownRemoval {
    /// Such a name was taken away by now.
    pub(crate) fn happened(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether attributes that were asked for at `asked` may tell of a name too many.
    pub(crate) fn concerns(&self, attr: &Attr, asked: Option<Instant>, contract: Contract) -> bool {
        let has_others = attr.nlink > 1 || !contract.tells_changes();
        let may_have = has_others && attr.file_type != FileType::Directory && contract != Contract::Immutable;
        may_have && *self.0.lock().unwrap_or_else(PoisonError::into_inner) > asked
    }
}

/// The names of one directory that were taken away last, and when that was answered. Takes no memory where none was.
#[derive(Debug, Default)]
pub(crate) struct Removals(Option<Box<Last>>);

#[derive(Debug, Default)]
struct Last {
    last: VecDeque<(Arc<[u8]>, Instant)>,
    /// When the latest was that is not among them any more.
    before: Option<Instant>,
}

/// So many are kept of a directory.
const REMOVALS_MAX: usize = 16;

impl Removals {
    /// A name was taken away.
    pub(crate) fn note(&mut self, name: &[u8]) {
        let Last { last, before } = &mut **self.0.get_or_insert_default();
        if last.len() >= REMOVALS_MAX {
            *before = last.pop_front().map(|(_, time)| time);
        }
        last.push_back((name.into(), Instant::now()));
    }

    /// Whether a name may have been taken away after what was asked for at `asked` had been done.
    pub(crate) fn may_follow(&self, name: &[u8], asked: Instant) -> bool {
        let Some(Last { last, before }) = self.0.as_deref() else { return false };
        *before > Some(asked) || last.iter().any(|(taken, time)| **taken == *name && *time > asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_known_for_as_long_as_answers_may_need_it() {
        let (mut removals, asked) = (Removals::default(), Instant::now());
        removals.note(b"a");
        assert!(removals.may_follow(b"a", asked) && !removals.may_follow(b"b", asked));
        assert!(!removals.may_follow(b"a", Instant::now()));
        (0..REMOVALS_MAX).for_each(|_| removals.note(b"c"));
        assert!(removals.may_follow(b"b", asked), "more than are kept: it may have been any");
    }
}
