//! Close-to-open for a file whose size has just changed.
//!
//! A kernel reads a file up to the size in its cached attributes, and the reply to OPEN cannot update them.
//! An open of a file that changed while its former attributes may still be cached is therefore answered with
//! ESTALE: the kernel looks the name up again, which updates the attributes, and opens once more, unnoticed
//! by the program. A second ESTALE would reach the program. The thread's next open of the node that it found
//! is therefore not answered with ESTALE, whatever has happened to the file since: close-to-open does not
//! cover a close after the open began.
//!
//! Threads outside of the mount's pid namespace all have the number 0 (`fuse_get_req` of Linux) and cannot be
//! told apart; their opens are never retried.

use tombolo_core::lock;

use super::body::has_data;
use super::coherence::{Coherence, TICK};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tombolo_core::fs::{Attr, NodeId, OpenFlags, Timestamp, WeakAttr};

/// Attributes last sent for recently changed files, and threads that are retrying an open.
#[derive(Debug, Default)]
pub(super) struct OpenRetry {
    /// `true` from the first retry on; until then the table of threads need not be searched.
    any: AtomicBool,
    table: Mutex<RetryTable>,
}

#[derive(Debug, Default)]
struct RetryTable {
    /// Attributes of each recently changed file as last sent in reply to a look-up.
    sent_attrs: HashMap<NodeId, WeakAttr>,
    /// Threads whose open was answered with ESTALE.
    retrying: HashMap<u32, Retrying>,
}

/// An open answered with ESTALE.
#[derive(Clone, Copy, Debug)]
struct Retrying {
    /// The node that the thread's last look-up found; at first the node of the open.
    found: NodeId,
    since: Instant,
}

/// One attempt to open a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) node: NodeId,
    pub(super) how: OpenFlags,
    /// The opening thread's number from the request.
    pub(super) thread: u32,
    /// `true` if this is the second attempt.
    is_retry: bool,
}

/// Maximum number of files and of threads. A full map is cleared: a file's next open may then be retried once
/// more, and a thread's second attempt may fail with ESTALE.
const ENTRIES_MAX: usize = 8192;

/// Maximum delay of a second attempt. After this time the thread is assumed to have been killed, or to have
/// failed to look up the file. The limit is generous, because look-ups on a slow server precede the second
/// attempt, and an unrecognised one may fail.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of all threads outside of the mount's pid namespace.
const UNKNOWN_THREAD: u32 = 0;

impl OpenRetry {
    /// Records attributes sent to a thread that looked up `node`.
    pub(super) fn record(&self, coherence: Coherence, thread: u32, node: NodeId, attr: &Attr) {
        if !has_data(attr.file_type) {
            return;
        }
        let fresh = is_fresh(coherence, attr);
        if !fresh && !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut table = lock(&self.table);
        if let Some(back) = table.retrying.get_mut(&thread) {
            back.found = node;
        }
        if fresh {
            insert(&mut table.sent_attrs, node, WeakAttr::from(attr));
        }
    }

    /// Begins an attempt of a thread to open `node`, before the file system opens it. Ends the thread's
    /// retry, if there is one, whatever the outcome of the open.
    pub(super) fn attempt(&self, thread: u32, node: NodeId, how: OpenFlags) -> Attempt {
        let any = self.any.load(Ordering::Acquire);
        let back = if any { lock(&self.table).retrying.remove(&thread) } else { None };
        let is_retry = back.is_some_and(|back| back.found == node && back.since.elapsed() < RETRY_TIMEOUT);
        Attempt { node, how, thread, is_retry }
    }

    /// Returns `true` if the kernel must look the node up again before it opens the file. `attr` are the
    /// attributes as of the open.
    pub(super) fn is_due(&self, coherence: Coherence, attempt: Attempt, attr: Option<&Attr>) -> bool {
        let Some(attr) = attr else { return false };
        let Attempt { node, how, thread, is_retry } = attempt;
        let reads = how.contains(OpenFlags::READ) && !how.contains(OpenFlags::TRUNCATE);
        if is_retry || thread == UNKNOWN_THREAD || !reads || !is_fresh(coherence, attr) {
            return false;
        }
        let mut table = lock(&self.table);
        if table.sent_attrs.get(&node) == Some(&WeakAttr::from(attr)) {
            return false;
        }
        self.any.store(true, Ordering::Release);
        // The kernel repeats an open that is not by name without a look-up, and therefore of the same node.
        insert(&mut table.retrying, thread, Retrying { found: node, since: Instant::now() });
        true
    }
}

fn insert<K: std::hash::Hash + Eq, V>(map: &mut HashMap<K, V>, key: K, value: V) {
    if map.len() >= ENTRIES_MAX {
        map.clear();
    }
    map.insert(key, value);
}

/// Returns `true` if the kernel may still cache attributes from before the last change.
fn is_fresh(coherence: Coherence, attr: &Attr) -> bool {
    coherence == Coherence::Auto && !is_older_than(attr, coherence.lifetimes().attr + TICK)
}

/// Returns `true` if the file last changed longer ago than `age`; `false` for stamps in the future.
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

    fn is_retried(retries: &OpenRetry, thread: u32, node: NodeId, attr: &Attr) -> bool {
        let attempt = retries.attempt(thread, node, OpenFlags::READ);
        retries.is_due(Coherence::Auto, attempt, Some(attr))
    }

    #[test]
    fn open_is_retried_once_however_the_file_changes() {
        let retries = OpenRetry::default();
        for size in 0..3 {
            assert!(is_retried(&retries, THREAD, NODE, &file(0, 10 * size)));
            retries.record(Coherence::Auto, THREAD, NODE, &file(0, 10 * size + 1));
            std::thread::sleep(TICK * 2);
            assert!(!is_retried(&retries, THREAD, NODE, &file(0, 10 * size + 2)), "its second attempt");
        }
    }

    #[test]
    fn another_file_found_by_the_open_retry_is_opened() {
        let retries = OpenRetry::default();
        assert!(is_retried(&retries, THREAD, NODE, &file(0, 7)));
        for age_s in [10, 0] {
            retries.record(Coherence::Auto, THREAD, NodeId(6), &file(age_s, 1));
        }
        assert!(!is_retried(&retries, THREAD, NodeId(6), &file(0, 2)));
        assert!(is_retried(&retries, THREAD, NodeId(6), &file(0, 3)), "a new attempt");
    }

    #[test]
    fn a_nameless_open_succeeds_at_the_second_attempt() {
        let retries = OpenRetry::default();
        assert!(is_retried(&retries, THREAD, NODE, &file(0, 7)));
        assert!(!is_retried(&retries, THREAD, NODE, &file(0, 8)));
    }

    #[test]
    fn open_retries_are_per_thread() {
        let retries = OpenRetry::default();
        assert!(is_retried(&retries, THREAD, NODE, &file(0, 7)));
        assert!(is_retried(&retries, THREAD + 1, NODE, &file(0, 7)), "this one was told nothing yet");
        retries.record(Coherence::Auto, THREAD, NODE, &file(0, 7));
        assert!(!is_retried(&retries, THREAD + 2, NODE, &file(0, 7)), "the kernel knows now");
        assert!(is_retried(&retries, THREAD + 2, NODE, &file(0, 8)), "changed again");
        assert!(!is_retried(&retries, THREAD, NODE, &file(0, 8)));
        assert!(!is_retried(&retries, THREAD + 1, NODE, &file(0, 8)));
    }

    #[test]
    fn indistinguishable_threads_are_not_retried() {
        let retries = OpenRetry::default();
        for size in 0..3 {
            assert!(!is_retried(&retries, UNKNOWN_THREAD, NODE, &file(0, size)));
        }
        assert!(is_retried(&retries, THREAD, NODE, &file(0, 7)), "this one can");
    }

    #[test]
    fn abandoned_open_retry_expires() {
        let retries = OpenRetry::default();
        assert!(is_retried(&retries, THREAD, NODE, &file(0, 7)));
        lock(&retries.table).retrying.get_mut(&THREAD).unwrap().since -= RETRY_TIMEOUT;
        assert!(is_retried(&retries, THREAD, NODE, &file(0, 8)));
    }

    #[test]
    fn a_node_just_looked_up_is_opened_at_once() {
        let retries = OpenRetry::default();
        retries.record(Coherence::Auto, THREAD, NODE, &file(0, 7));
        assert!(!is_retried(&retries, THREAD, NODE, &file(0, 7)));
    }

    #[test]
    fn a_node_without_cached_attributes_is_opened_at_once() {
        let retries = OpenRetry::default();
        assert!(
            !is_retried(&retries, THREAD, NODE, &file(10, 7)),
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
            retries.record(Coherence::Auto, number, node, &file(0, 1));
            is_retried(&retries, number, node, &file(0, 2));
        }
        let table = lock(&retries.table);
        assert!(table.sent_attrs.len() <= ENTRIES_MAX && table.retrying.len() <= ENTRIES_MAX);
    }
}
