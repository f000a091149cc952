//! The unacknowledged notices of one session.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::hash::{BuildHasherDefault, Hasher};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use super::{Notice, Notices};
use crate::fs::{NameBuf, NodeId};
use crate::{Answer, Ctx, Error, Result, lock};

/// Maximum queue length; on overflow the session receives [`Notice::Everything`].
const NOTICES_MAX: usize = 8192;

/// Upper bound of the numbers after which a client may have the numbering continue: no session reaches it by
/// counting, and the numbers that follow do not overflow.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// The notices of one session: numbered, retained until acknowledged, and coalesced with undelivered ones
/// about the same attributes, data or name. The queue of a session that never subscribes stays empty. Usable
/// from any thread. No method blocks: only the answer of [`next`](Self::next) may be pending.
#[derive(Debug, Default)]
pub struct NoticeQueue(Mutex<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    is_watched: bool,
    has_ended: bool,
    /// Number of the first notice in the queue, or of the next one if it is empty, once subscribed.
    first: u64,
    notices: VecDeque<Notice>,
    /// Number up to which notices have been delivered or discarded; delivered notices are immutable.
    delivered: u64,
    /// Latest notices of each node that has an undelivered one.
    nodes: HashMap<NodeId, Latest, BuildHasherDefault<NodeHasher>>,
    /// Latest undelivered notice of each name.
    names: HashMap<(NodeId, NameBuf), u64>,
    /// Number of the latest [`Notice::Everything`].
    everything: u64,
    wakers: Vec<Waker>,
}

/// Numbers of the latest notices of a node; 0 for none.
#[derive(Debug, Default)]
struct Latest {
    attributes: u64,
    data: u64,
    gone: u64,
}

/// A fast hash of node ids, which the back end assigns, so that no peer can cause collisions.
#[derive(Debug, Default)]
struct NodeHasher(u64);

impl Hasher for NodeHasher {
    fn finish(&self) -> u64 {
        // Only the product's upper bits depend on all of the number; the map uses the lower bits.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl NoticeQueue {
    /// Returns `true` if the session has subscribed.
    pub fn is_watched(&self) -> bool {
        lock(&self.0).is_watched
    }

    /// Queues a notice if the session has subscribed and no undelivered one covers it; wakes waiting calls.
    pub fn push(&self, notice: Notice) {
        let wakers = lock(&self.0).push(notice);
        // Wakers are called outside of the lock, because a waker may run any code.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends the session and wakes all waiting calls.
    pub fn end(&self) {
        let wakers = {
            let mut state = lock(&self.0);
            state.has_ended = true;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Implements [`Changes::next`](super::Changes::next). The answer holds the queue, not the session.
    pub fn next(self: &Arc<Self>, cx: &Ctx, since: u64, limit_bytes: usize) -> Answer<Notices> {
        if let Some(ready) = lock(&self.0).next(since, limit_bytes) {
            return Answer::Done(ready);
        }
        let (queue, interrupt) = (self.clone(), cx.interrupt.clone());
        Answer::later(async move {
            let mut raised = pin!(interrupt.raised());
            poll_fn(|context| {
                if raised.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Err(Error::Interrupted));
                }
                let mut state = lock(&queue.0);
                let ready = state.next(since, limit_bytes);
                if ready.is_none() && !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                    state.wakers.push(context.waker().clone());
                }
                ready.map_or(Poll::Pending, Poll::Ready)
            })
            .await
        })
    }
}

impl QueueState {
    /// Returns the number of the last notice in the queue.
    fn last(&self) -> u64 {
        self.first + self.notices.len() as u64 - 1
    }

    /// Restarts the numbering after `after`, with [`Notice::Everything`].
    fn restart(&mut self, after: u64) {
        self.notices.clear();
        self.nodes.clear();
        self.names.clear();
        // A client may pass any number, including the largest, which has no successor.
        self.first = if after < NUMBER_MAX { after + 1 } else { 1 };
        self.delivered = self.first - 1;
        self.notices.push_back(Notice::Everything);
        self.everything = self.first;
    }

    fn push(&mut self, notice: Notice) -> Vec<Waker> {
        if !self.is_watched || self.has_ended || self.absorb(&notice) {
            return Vec::new();
        }
        if self.notices.len() >= NOTICES_MAX {
            self.restart(self.last());
        } else {
            let number = self.last() + 1;
            match &notice {
                Notice::Attributes(node) => self.nodes.entry(*node).or_default().attributes = number,
                Notice::Data { node, .. } => self.nodes.entry(*node).or_default().data = number,
                Notice::Gone { node, .. } => self.nodes.entry(*node).or_default().gone = number,
                Notice::Name { dir, name } => drop(self.names.insert((*dir, name.clone()), number)),
                Notice::Everything => self.everything = number,
            }
            self.notices.push_back(notice);
        }
        std::mem::take(&mut self.wakers)
    }

    /// Returns `true` if an undelivered notice covers this one; extends that notice if necessary.
    fn absorb(&mut self, notice: &Notice) -> bool {
        if self.everything > self.delivered {
            return true;
        }
        let is_undelivered = |number: u64| number > self.delivered;
        let latest = |node: &NodeId| self.nodes.get(node);
        match notice {
            Notice::Attributes(node) => latest(node)
                .is_some_and(|latest| is_undelivered(latest.attributes) || is_undelivered(latest.data)),
            Notice::Gone { node, .. } => latest(node).is_some_and(|latest| is_undelivered(latest.gone)),
            Notice::Data { node, start, last } => {
                let number = latest(node).map_or(0, |latest| latest.data);
                if !is_undelivered(number) {
                    return false;
                }
                if let Some(Notice::Data { start: first, last: end, .. }) =
                    self.notices.get_mut((number - self.first) as usize)
                {
                    (*first, *end) = ((*first).min(*start), (*end).max(*last));
                }
                true
            }
            Notice::Name { dir, name } => {
                !self.names.is_empty()
                    && self.names.get(&(*dir, name.clone())).is_some_and(|number| is_undelivered(*number))
            }
            Notice::Everything => false,
        }
    }

    /// Returns the notices after `since`, or `None` if there are none yet; drops those up to `since`. The
    /// first call, and a number that was not delivered or is discarded already, restart the numbering. Fails
    /// once the session has ended.
    fn next(&mut self, since: u64, limit_bytes: usize) -> Option<Result<Notices>> {
        if self.has_ended {
            return Some(Err(Error::Disconnected));
        }
        let is_valid = self.is_watched && (self.first.saturating_sub(1)..=self.delivered).contains(&since);
        if is_valid {
            self.notices.drain(..(since + 1 - self.first) as usize);
            self.first = since + 1;
        } else {
            self.is_watched = true;
            self.restart(since.max(self.delivered));
        }
        if self.notices.is_empty() {
            return None;
        }
        let mut budget = limit_bytes;
        let fits = |notice: &&Notice| {
            let left = budget.checked_sub(notice.size_bytes());
            budget = left.unwrap_or(0);
            left.is_some()
        };
        let mut list: Vec<_> = self.notices.iter().take_while(fits).cloned().collect();
        if list.is_empty() {
            list.extend(self.notices.front().cloned());
        }
        let last = self.first + list.len() as u64 - 1;
        if last > self.delivered {
            self.delivered = last;
            let delivered = self.delivered;
            let is_undelivered = |number: u64| number > delivered;
            self.nodes.retain(|_, latest| {
                is_undelivered(latest.attributes)
                    || is_undelivered(latest.data)
                    || is_undelivered(latest.gone)
            });
            self.names.retain(|_, number| is_undelivered(*number));
        }
        Some(Ok(Notices { last, list }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Name;
    use crate::{Interrupt, SessionId};

    fn cx() -> Ctx {
        Ctx::root(SessionId(1))
    }

    /// Returns the notices available now, without a limit.
    fn ready(queue: &Arc<NoticeQueue>, since: u64) -> Option<Notices> {
        match queue.next(&cx(), since, usize::MAX) {
            Answer::Done(notices) => Some(notices.expect("notices")),
            Answer::Later(_) => None,
        }
    }

    fn watched() -> Arc<NoticeQueue> {
        let queue = Arc::<NoticeQueue>::default();
        queue.push(Notice::Attributes(NodeId(7)));
        assert_eq!(ready(&queue, 0), Some(Notices { last: 1, list: vec![Notice::Everything] }));
        assert_eq!(ready(&queue, 1), None);
        queue
    }

    fn data(node: u64, start: u64, last: u64) -> Notice {
        Notice::Data { node: NodeId(node), start, last }
    }

    fn name(text: &str) -> Notice {
        let name = Name::new(text.as_bytes()).expect("a name").to_owned();
        Notice::Name { dir: NodeId::ROOT, name }
    }

    #[test]
    fn unacknowledged_notices_can_be_requested_again() {
        let queue = watched();
        queue.push(Notice::Attributes(NodeId(2)));
        queue.push(Notice::Gone { node: NodeId(3), name: None });
        let both = Notices {
            last: 3,
            list: vec![Notice::Attributes(NodeId(2)), Notice::Gone { node: NodeId(3), name: None }],
        };
        assert_eq!(ready(&queue, 1), Some(both.clone()));
        assert_eq!(ready(&queue, 1), Some(both));
        assert_eq!(
            ready(&queue, 2),
            Some(Notices { last: 3, list: vec![Notice::Gone { node: NodeId(3), name: None }] })
        );
        assert_eq!(ready(&queue, 3), None);
        let forgotten = ready(&queue, 1).expect("an answer");
        assert_eq!(forgotten.list, [Notice::Everything], "it was acknowledged");
        assert!(forgotten.last > 3, "numbers are not given twice");
    }

    #[test]
    fn equal_notices_coalesce_until_delivered() {
        let queue = watched();
        for at in 0..1000 {
            queue.push(data(2, 100 + at, 100 + at));
            queue.push(Notice::Attributes(NodeId(2)));
            queue.push(name("a"));
        }
        queue.push(name("b"));
        let notices = ready(&queue, 1).expect("notices");
        assert_eq!(notices.list, [data(2, 100, 1099), name("a"), name("b")]);
        // A reader of that answer may have missed this change.
        queue.push(data(2, 0, 0));
        queue.push(name("a"));
        assert_eq!(ready(&queue, notices.last).expect("notices").list, [data(2, 0, 0), name("a")]);
    }

    #[test]
    fn notice_page_respects_limit_with_at_least_one() {
        let queue = watched();
        (2..12).for_each(|node| queue.push(Notice::Attributes(NodeId(node))));
        let Answer::Done(Ok(page)) = queue.next(&cx(), 1, 3 * super::super::NOTICE_BYTES + 1) else {
            panic!("it pends")
        };
        assert_eq!((page.list.len(), page.last), (3, 4));
        let Answer::Done(Ok(page)) = queue.next(&cx(), 4, 0) else { panic!("it pends") };
        assert_eq!((page.list.len(), page.last), (1, 5));
    }

    #[test]
    fn notice_queue_overflow_becomes_everything() {
        let queue = watched();
        (0..100_000).for_each(|node| queue.push(Notice::Attributes(NodeId(node))));
        {
            let state = lock(&queue.0);
            assert!(state.notices.len() <= NOTICES_MAX && state.nodes.len() <= NOTICES_MAX);
        }
        let notices = ready(&queue, 1).expect("notices");
        assert_eq!(notices.list, [Notice::Everything]);
        queue.push(name("a"));
        assert_eq!(ready(&queue, notices.last).expect("notices").list, [name("a")]);
    }

    #[test]
    fn another_server_s_numbers_are_not_mistaken_for_ours() {
        let queue = watched();
        let notices = ready(&queue, 5_000).expect("notices");
        assert_eq!(notices, Notices { last: 5_001, list: vec![Notice::Everything] });
        assert_eq!(ready(&queue, u64::MAX).expect("notices").list, [Notice::Everything]);
    }

    #[test]
    fn notice_numbers_never_wrap() {
        for since in [u64::MAX, u64::MAX - 1, u64::MAX - 2, NUMBER_MAX, NUMBER_MAX - 1] {
            let queue = watched();
            let everything = ready(&queue, since).expect("notices");
            assert_eq!(everything.list, [Notice::Everything]);
            (2..5).for_each(|node| queue.push(Notice::Attributes(NodeId(node))));
            let notices = ready(&queue, everything.last).expect("notices");
            assert_eq!((notices.list.len(), notices.last), (3, everything.last + 3), "{since}");
            assert_eq!(ready(&queue, notices.last), None);
        }
    }

    #[test]
    fn wait_ends_on_notice_interrupt_or_session_end() {
        let queue = watched();
        let waiting = queue.next(&cx(), 1, usize::MAX);
        let interruptible = Ctx { interrupt: Interrupt::new(), ..cx() };
        let interrupted = queue.next(&interruptible, 1, usize::MAX);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waiting.wait());
            let interrupted = scope.spawn(|| interrupted.wait());
            interruptible.interrupt.raise();
            assert!(matches!(interrupted.join().expect("joined"), Err(Error::Interrupted)));
            queue.push(name("a"));
            assert_eq!(waiting.join().expect("joined").expect("notices").list, [name("a")]);
        });
        let last = queue.next(&cx(), 2, usize::MAX);
        queue.end();
        assert!(matches!(last.wait(), Err(Error::Disconnected)));
    }
}
