//! Which files unchecked CREATEs found, for duplicates of these requests: by then something else may have the name.
//!
//! What a CREATE makes, the layer below remembers (`layer/replies`); what it only finds is looked up here. Kept in memory, for as long as
//! answers are, so a duplicate that comes after a restart looks the name up again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tombolo_core::{Ctx, RequestKey};

/// A request, and the user of it: an answer is never given to somebody else.
type Key = (RequestKey, u32, u32);

/// So many are kept at most, and for so long.
const COUNT_MAX: usize = 4096;
const AGE_MAX: Duration = Duration::from_secs(120);

/// Files that were found, by request.
#[derive(Debug, Default)]
pub(crate) struct Found(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    handles: HashMap<Key, Box<[u8]>>,
    /// The oldest is at the front.
    order: VecDeque<(Instant, Key)>,
}

impl Found {
    /// Keeps the handle of what this request found.
    pub fn keep(&self, cx: &Ctx, handle: &[u8]) {
        self.keep_at(cx, handle, Instant::now());
    }

    /// The handle of what this request found when it came first.
    pub fn handle(&self, cx: &Ctx) -> Option<Box<[u8]>> {
        self.lock().handles.get(&key(cx)?).cloned()
    }

    fn keep_at(&self, cx: &Ctx, handle: &[u8], now: Instant) {
        let Some(key) = key(cx) else { return };
        let mut kept = self.lock();
        while let Some(&(since, oldest)) = kept.order.front()
            && (kept.order.len() >= COUNT_MAX || now.saturating_duration_since(since) > AGE_MAX)
        {
            kept.order.pop_front();
            kept.handles.remove(&oldest);
        }
        if kept.handles.insert(key, handle.into()).is_none() {
            kept.order.push_back((now, key));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// None for a request that is never sent twice.
fn key(cx: &Ctx) -> Option<Key> {
    (cx.key != RequestKey::None).then_some((cx.key, cx.identity.uid, cx.identity.gid))
}

#[cfg(test)]
mod tests {
    use tombolo_core::{Identity, SessionId};

    use super::*;

    fn request(xid: u32) -> Ctx {
        let key = RequestKey::Rpc { client: 1, xid, procedure: 8, checksum: 0 };
        Ctx { key, identity: Identity::ROOT, ..Ctx::root(SessionId(1)) }
    }

    #[test]
    fn cached_permissions_are_bounded_and_expire() {
        let (found, start) = (Found::default(), Instant::now());
        found.keep_at(&Ctx::root(SessionId(1)), b"none", start);
        for xid in 0..2 * COUNT_MAX as u32 {
            found.keep_at(&request(xid), &xid.to_be_bytes(), start);
        }
        assert!(found.handle(&request(0)).is_none());
        let last = 2 * COUNT_MAX as u32 - 1;
        assert_eq!(found.handle(&request(last)).as_deref(), Some(&last.to_be_bytes()[..]));
        let counts = |kept: MutexGuard<'_, Kept>| (kept.handles.len(), kept.order.len());
        assert_eq!(counts(found.lock()), (COUNT_MAX, COUNT_MAX));
        found.keep_at(&request(1), b"later", start + 2 * AGE_MAX);
        assert!(found.handle(&request(last)).is_none());
        assert_eq!(counts(found.lock()), (1, 1));
    }
}
