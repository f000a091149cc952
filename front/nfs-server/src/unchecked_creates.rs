//! Files found by unchecked CREATEs, for duplicates of the requests: the name may refer to another file then.
//!
//! The reply layer (`layer/replies`) records files that a CREATE makes; files that a CREATE only finds are
//! recorded in this table, in memory, for at least as long as that layer retains a reply by default, unless
//! there are too many. A duplicate after a restart looks the name up again.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tombolo_core::{Ctx, RequestKey, lock};

/// A request and its user: a result is never given to another user.
type Key = (RequestKey, u32, u32);

/// Maximum number of recorded requests, and the age after which the next record displaces them.
const COUNT_MAX: usize = 4096;
const AGE_MAX: Duration = Duration::from_secs(120);

/// Files that were found, by request.
#[derive(Debug, Default)]
pub(crate) struct UncheckedCreates(Mutex<Recorded>);

#[derive(Debug, Default)]
struct Recorded {
    handles: HashMap<Key, Box<[u8]>>,
    /// Keys by time, the oldest first.
    order: VecDeque<(Instant, Key)>,
}

impl UncheckedCreates {
    /// Records the handle that a request found.
    pub fn record(&self, cx: &Ctx, handle: &[u8]) {
        self.record_at(cx, handle, Instant::now());
    }

    /// Returns the handle that the original request found, if it is recorded.
    pub fn handle(&self, cx: &Ctx) -> Option<Box<[u8]>> {
        lock(&self.0).handles.get(&key(cx)?).cloned()
    }

    fn record_at(&self, cx: &Ctx, handle: &[u8], now: Instant) {
        let Some(key) = key(cx) else { return };
        let mut recorded = lock(&self.0);
        while let Some(&(since, oldest)) = recorded.order.front()
            && (recorded.order.len() >= COUNT_MAX || now.saturating_duration_since(since) > AGE_MAX)
        {
            recorded.order.pop_front();
            recorded.handles.remove(&oldest);
        }
        if recorded.handles.insert(key, handle.into()).is_none() {
            recorded.order.push_back((now, key));
        }
    }
}

/// Returns the key of a request; `None` if the request has none.
fn key(cx: &Ctx) -> Option<Key> {
    cx.key.map(|key| (key, cx.identity.uid, cx.identity.gid))
}

#[cfg(test)]
mod tests {
    use tombolo_core::{Identity, SessionId};

    use super::*;
    use crate::caller::request_key;

    fn request(xid: u32) -> Ctx {
        let key = Some(request_key(1, xid, 8, 0));
        Ctx { key, identity: Identity::ROOT, ..Ctx::root(SessionId(1)) }
    }

    #[test]
    fn recorded_creates_are_bounded_and_expire() {
        let (creates, start) = (UncheckedCreates::default(), Instant::now());
        creates.record_at(&Ctx::root(SessionId(1)), b"none", start);
        for xid in 0..2 * COUNT_MAX as u32 {
            creates.record_at(&request(xid), &xid.to_be_bytes(), start);
        }
        assert!(creates.handle(&request(0)).is_none());
        let last = 2 * COUNT_MAX as u32 - 1;
        assert_eq!(creates.handle(&request(last)).as_deref(), Some(&last.to_be_bytes()[..]));
        let counts =
            |recorded: std::sync::MutexGuard<'_, Recorded>| (recorded.handles.len(), recorded.order.len());
        assert_eq!(counts(lock(&creates.0)), (COUNT_MAX, COUNT_MAX));
        creates.record_at(&request(1), b"later", start + 2 * AGE_MAX);
        assert!(creates.handle(&request(last)).is_none());
        assert_eq!(counts(lock(&creates.0)), (1, 1));
    }
}
