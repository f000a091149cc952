//! Close-to-open for a file whose size has just changed.
//!
//! A kernel reads a file up to the size in the attributes that it caches, and the reply to OPEN cannot tell
//! it another. So an open of a file that changed while those may still be cached is answered with ESTALE: the
//! kernel then looks the name up again, which brings it the attributes, and opens once more; the program
//! notices nothing. That is the last time: a second ESTALE would reach the program. So the thread's next open
//! of what it found is answered whatever has become of the file since: what others closed after the look-up
//! is no matter of an open that began before it.
//!
//! Threads that the mount's pid namespace does not know all have the number 0 (`fuse_get_req` of Linux) and
//! cannot be told apart, so they are not sent back.

use super::body::has_data;
use super::coherence::{Coherence, TICK};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tombolo_core::fs::{Attr, NodeId, OpenFlags, Timestamp, WeakAttr};

/// What a kernel was last told about files that had just changed, and what it is to open next.
#[derive(Debug, Default)]
pub(super) struct OpenRetry {
    /// Where no thread was ever sent back, none has to be looked up.
    any: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// What each file looked like when the kernel was last told.
    told: HashMap<NodeId, WeakAttr>,
    /// The threads that were sent back.
    sent_back: HashMap<u32, SentBack>,
}

/// A thread was sent back.
#[derive(Clone, Copy, Debug)]
struct SentBack {
    /// The file that it found last.
    found: NodeId,
    since: Instant,
}

/// One attempt to open a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) node: NodeId,
    pub(super) how: OpenFlags,
    /// The thread that opens, as the request has it.
    pub(super) thread: u32,
    /// Was it sent back before?
    again: bool,
}

/// Beyond so many files or threads all are forgotten, which costs each of them one more retry.
const ENTRIES_MAX: usize = 8192;

/// A second attempt does not come later than this: the thread was killed, or found nothing any more, and
/// opens something else now. Long, for a slow server's look-ups come in between, and an attempt that is not
/// known again may fail.
const AGAIN_WITHIN: Duration = Duration::from_secs(30);

/// All threads that the pid namespace of the mount does not know.
const UNKNOWN_THREAD: u32 = 0;

impl OpenRetry {
    /// A thread looked `node` up and is told these attributes.
    pub(super) fn tell(&self, coherence: Coherence, thread: u32, node: NodeId, attr: &Attr) {
        if !has_data(attr.file_type) {
            return;
        }
        let fresh = is_fresh(coherence, attr);
        if !fresh && !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut table = self.table();
        if let Some(back) = table.sent_back.get_mut(&thread) {
            back.found = node;
        }
        if fresh {
            insert(&mut table.told, node, WeakAttr::from(attr));
        }
    }

    /// A thread opens `node`; before the file system is asked.
    pub(super) fn attempt(&self, thread: u32, node: NodeId, how: OpenFlags) -> Attempt {
        let any = self.any.load(Ordering::Acquire);
        let back = if any { self.table().sent_back.remove(&thread) } else { None };
        let again = back.is_some_and(|back| back.found == node && back.since.elapsed() < AGAIN_WITHIN);
        Attempt { node, how, thread, again }
    }

    /// Must the kernel look at the node again before it opens it? `attr` is as of the open.
    pub(super) fn is_due(&self, coherence: Coherence, attempt: Attempt, attr: Option<&Attr>) -> bool {
        let Some(attr) = attr else { return false };
        let Attempt { node, how, thread, again } = attempt;
        let reads = how.contains(OpenFlags::READ) && !how.contains(OpenFlags::TRUNCATE);
        if again || thread == UNKNOWN_THREAD || !reads || !is_fresh(coherence, attr) {
            return false;
        }
        let mut table = self.table();
        if table.told.get(&node) == Some(&WeakAttr::from(attr)) {
            return false;
        }
        self.any.store(true, Ordering::Release);
        // What is opened by other means than a name is not looked up; it is this node again then.
        insert(&mut table.sent_back, thread, SentBack { found: node, since: Instant::now() });
        true
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn insert<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>, key: K, value: V) {
    if map.len() >= ENTRIES_MAX {
        map.clear();
    }
    map.insert(key, value);
}

/// Can the kernel still cache attributes from before the last change?
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

    const THREAD: u32 = 100;
    const NODE: NodeId = NodeId(5);

    fn file(age_s: u64, size: u64) -> Attr {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mtime = now - age_s;
        from_wire(&FuseAttr { mode: 0o100_644, mtime, ctime: mtime, size, ..Default::default() }).unwrap()
    }

    fn is_sent_back(retries: &OpenRetry, thread: u32, node: NodeId, attr: &Attr) -> bool {
        let attempt = retries.attempt(thread, node, OpenFlags::READ);
        retries.is_due(Coherence::Auto, attempt, Some(attr))
    }

    #[test]
    fn an_open_is_sent_back_once_however_the_file_changes() {
        let retries = OpenRetry::default();
        for size in 0..3 {
            assert!(is_sent_back(&retries, THREAD, NODE, &file(0, 10 * size)));
            retries.tell(Coherence::Auto, THREAD, NODE, &file(0, 10 * size + 1));
            std::thread::sleep(TICK * 2);
            assert!(!is_sent_back(&retries, THREAD, NODE, &file(0, 10 * size + 2)), "its second attempt");
        }
    }

    #[test]
    fn another_file_found_by_the_open_retry_is_opened() {
        let retries = OpenRetry::default();
        assert!(is_sent_back(&retries, THREAD, NODE, &file(0, 7)));
        for age_s in [10, 0] {
            retries.tell(Coherence::Auto, THREAD, NodeId(6), &file(age_s, 1));
        }
        assert!(!is_sent_back(&retries, THREAD, NodeId(6), &file(0, 2)));
        assert!(is_sent_back(&retries, THREAD, NodeId(6), &file(0, 3)), "a new attempt");
    }

    #[test]
    fn a_nameless_open_succeeds_at_the_second_attempt() {
        let retries = OpenRetry::default();
        assert!(is_sent_back(&retries, THREAD, NODE, &file(0, 7)));
        assert!(!is_sent_back(&retries, THREAD, NODE, &file(0, 8)));
    }

    #[test]
    fn one_thread_s_second_attempt_is_none_of_another_s() {
        let retries = OpenRetry::default();
        assert!(is_sent_back(&retries, THREAD, NODE, &file(0, 7)));
        assert!(is_sent_back(&retries, THREAD + 1, NODE, &file(0, 7)), "this one was told nothing yet");
        retries.tell(Coherence::Auto, THREAD, NODE, &file(0, 7));
        assert!(!is_sent_back(&retries, THREAD + 2, NODE, &file(0, 7)), "the kernel knows now");
        assert!(is_sent_back(&retries, THREAD + 2, NODE, &file(0, 8)), "changed again");
        assert!(!is_sent_back(&retries, THREAD, NODE, &file(0, 8)));
        assert!(!is_sent_back(&retries, THREAD + 1, NODE, &file(0, 8)));
    }

    #[test]
    fn threads_that_cannot_be_told_apart_are_not_sent_back() {
        let retries = OpenRetry::default();
        for size in 0..3 {
            assert!(!is_sent_back(&retries, UNKNOWN_THREAD, NODE, &file(0, size)));
        }
        assert!(is_sent_back(&retries, THREAD, NODE, &file(0, 7)), "this one can");
    }

    #[test]
    fn a_second_attempt_that_never_came_spares_no_later_open() {
        let retries = OpenRetry::default();
        assert!(is_sent_back(&retries, THREAD, NODE, &file(0, 7)));
        retries.table().sent_back.get_mut(&THREAD).unwrap().since -= AGAIN_WITHIN;
        assert!(is_sent_back(&retries, THREAD, NODE, &file(0, 8)));
    }

    #[test]
    fn a_node_just_looked_up_is_opened_at_once() {
        let retries = OpenRetry::default();
        retries.tell(Coherence::Auto, THREAD, NODE, &file(0, 7));
        assert!(!is_sent_back(&retries, THREAD, NODE, &file(0, 7)));
    }

    #[test]
    fn a_node_without_cached_attributes_is_opened_at_once() {
        let retries = OpenRetry::default();
        assert!(
            !is_sent_back(&retries, THREAD, NODE, &file(10, 7)),
            "attributes from before the change are no longer cached"
        );
        for (coherence, how) in [
            (Coherence::Strict, OpenFlags::READ),
            (Coherence::Always, OpenFlags::READ),
            (Coherence::Auto, OpenFlags::WRITE),
            (Coherence::Auto, OpenFlags::READ | OpenFlags::TRUNCATE),
        ] {
            let attempt = retries.attempt(THREAD, NODE, how);
            assert!(!retries.is_due(coherence, attempt, Some(&file(0, 7))), "{coherence:?} {how:?}");
        }
    }

    #[test]
    fn the_tables_are_bounded() {
        let retries = OpenRetry::default();
        for number in 0..2 * ENTRIES_MAX as u32 {
            let node = NodeId(number.into());
            retries.tell(Coherence::Auto, number, node, &file(0, 1));
            is_sent_back(&retries, number, node, &file(0, 2));
        }
        let table = retries.table();
        assert!(table.told.len() <= ENTRIES_MAX && table.sent_back.len() <= ENTRIES_MAX);
    }
}
