//! Close-to-open for a file whose size has just changed.
//!
//! A kernel reads a file up to the size in the attributes that it keeps, and the reply to OPEN cannot tell it another.
//! So an open of a file that changed while those may still be kept is answered with ESTALE: the kernel then looks the
//! name up again, which brings it the attributes, and opens once more; the program notices nothing.

use super::body::has_data;
use super::coherence::{Coherence, TICK};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tombolo_core::fs::{Attr, NodeId, OpenFlags, Timestamp, WeakAttr};

/// What a kernel was last told about files that had just changed.
#[derive(Debug, Default)]
pub(super) struct SecondLook {
    /// What each looked like then, and when that was.
    told: Mutex<HashMap<NodeId, (WeakAttr, Instant)>>,
}

/// Beyond so many files all are forgotten, which costs each of them one more look.
const FILES_MAX: usize = 8192;

impl SecondLook {
    /// The kernel looked `node` up and is told these attributes.
    pub(super) fn tell(&self, coherence: Coherence, node: NodeId, attr: &Attr) {
        if has_data(attr.file_type) && is_fresh(coherence, attr) {
            self.remember(node, WeakAttr::from(attr));
        }
    }

    /// Must the kernel look at `node` again before it opens it? `attr` is as of the open.
    ///
    /// Not if it has just done so, lest a file that changes all the time could not be opened.
    pub(super) fn is_due(
        &self,
        coherence: Coherence,
        node: NodeId,
        how: OpenFlags,
        attr: Option<&Attr>,
    ) -> bool {
        let Some(attr) = attr else { return false };
        let reads = how.contains(OpenFlags::READ) && !how.contains(OpenFlags::TRUNCATE);
        if !reads || !is_fresh(coherence, attr) {
            return false;
        }
        let seen = WeakAttr::from(attr);
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).get(&node).copied();
        if told.is_some_and(|(what, when)| what == seen || when.elapsed() < TICK) {
            return false;
        }
        // What was opened by other means than a name is not looked up; it opens at the second attempt all the same.
        self.remember(node, seen);
        true
    }

    fn remember(&self, node: NodeId, attr: WeakAttr) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= FILES_MAX {
            told.clear();
        }
        told.insert(node, (attr, Instant::now()));
    }
}

/// Can the kernel still keep attributes from before the last change?
fn is_fresh(coherence: Coherence, attr: &Attr) -> bool {
    coherence == Coherence::Auto && !is_older_than(attr, coherence.lifetimes().attr + TICK)
}

/// Did the file last change longer ago than that? Not if it will only change in the future.
fn is_older_than(attr: &Attr, age: Duration) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let Timestamp { secs, nanos } = attr.mtime.max(attr.ctime);
    let Ok(secs) = u64::try_from(secs) else { return true };
    let then = Duration::new(secs, nanos.min(999_999_999));
    now.checked_sub(then).is_some_and(|passed| passed > age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_wire_fuse::attr::from_wire;
    use tombolo_wire_fuse::layout::attr::FuseAttr;

    fn file(age_s: u64, size: u64) -> Attr {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mtime = now - age_s;
        from_wire(&FuseAttr { mode: 0o100_644, mtime, ctime: mtime, size, ..Default::default() }).unwrap()
    }

    fn is_due(looks: &SecondLook, attr: &Attr) -> bool {
        looks.is_due(Coherence::Auto, NodeId(5), OpenFlags::READ, Some(attr))
    }

    #[test]
    fn a_fresh_change_is_looked_at_once() {
        let looks = SecondLook::default();
        assert!(is_due(&looks, &file(0, 7)));
        assert!(!is_due(&looks, &file(0, 7)), "the kernel knows");
        std::thread::sleep(TICK * 2);
        assert!(is_due(&looks, &file(0, 8)), "changed again");
        assert!(!is_due(&looks, &file(0, 9)), "no open is sent back twice in a row");
    }

    #[test]
    fn what_was_just_looked_up_is_opened_at_once() {
        let looks = SecondLook::default();
        looks.tell(Coherence::Auto, NodeId(5), &file(0, 7));
        assert!(!is_due(&looks, &file(0, 7)));
    }

    #[test]
    fn what_the_kernel_cannot_have_wrong_is_opened_at_once() {
        let looks = SecondLook::default();
        assert!(!is_due(&looks, &file(10, 7)), "attributes from before the change are no longer kept");
        let fresh = file(0, 7);
        for (coherence, how) in [
            (Coherence::Strict, OpenFlags::READ),
            (Coherence::Always, OpenFlags::READ),
            (Coherence::Auto, OpenFlags::WRITE),
            (Coherence::Auto, OpenFlags::READ | OpenFlags::TRUNCATE),
        ] {
            assert!(!looks.is_due(coherence, NodeId(5), how, Some(&fresh)), "{coherence:?} {how:?}");
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let looks = SecondLook::default();
        for number in 0..2 * FILES_MAX as u64 {
            looks.is_due(Coherence::Auto, NodeId(number), OpenFlags::READ, Some(&file(0, 1)));
        }
        assert!(looks.told.lock().unwrap().len() <= FILES_MAX);
    }
}
