//! The replies of a connection on their way out. Whichever thread finishes a request sends its reply; none waits for the client.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tombolo_host_runtime::lock;
use tombolo_mem::Source;
use tombolo_sys::Errno;
use tombolo_sys::epoll::EventFd;
use tombolo_sys::gather::Gather;

use crate::clients::Admitted;
use crate::memory::Memory;
use crate::stream::Stream;

/// Replies of one system call.
const BATCH_MAX: usize = 128;

/// What the threads share that work for one connection.
pub(crate) struct Replies {
    pub(crate) stream: Stream,
    /// Wakes the connection's thread.
    pub(crate) wake: EventFd,
    queue: Mutex<Queue>,
    /// Requests whose replies are not sent.
    under_way: AtomicUsize,
    /// The connection's thread wants to be woken when one is sent.
    is_awaited: AtomicBool,
    is_dead: AtomicBool,
    /// As long as anything is under way, the connection counts.
    _admitted: Admitted,
}

#[derive(Default)]
struct Queue {
    replies: VecDeque<Reply>,
    /// What was sent of the first.
    sent_bytes: usize,
    /// A thread sends.
    is_sending: bool,
    /// There is room again, which the thread that sends may not have seen.
    again: bool,
    /// The client takes nothing, since then.
    blocked: Option<Instant>,
}

/// A reply: what comes first, and data.
pub(crate) struct Reply {
    head: Vec<u8>,
    data: Option<(Source, Memory)>,
}

impl Reply {
    fn len_bytes(&self) -> usize {
        self.head.len() + self.data.as_ref().map_or(0, |(source, _)| source.len())
    }
}

impl Replies {
    pub(crate) fn new(stream: Stream, admitted: Admitted) -> tombolo_sys::Result<Self> {
        Ok(Self {
            stream,
            wake: EventFd::new()?,
            queue: Mutex::default(),
            under_way: AtomicUsize::new(0),
            is_awaited: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            _admitted: admitted,
        })
    }

    /// A request is received.
    pub(crate) fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    /// The connection's thread is woken when a reply is sent, once. Look again after this.
    pub(crate) fn await_one(&self) {
        self.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Adds the reply to a request. It goes with the next [`flush`](Self::flush).
    pub(crate) fn push(&self, head: Vec<u8>, data: Option<Memory>) {
        let data = data.map(|memory| (memory.source(), memory));
        lock(&self.queue).replies.push_back(Reply { head, data });
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Nothing is sent any more.
    pub(crate) fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.stream.shut_down();
        self.wake.notify();
        let dropped = std::mem::take(&mut lock(&self.queue).replies);
        self.sent(dropped.len());
    }

    /// For how long the client has taken nothing.
    pub(crate) fn blocked_for(&self) -> Duration {
        lock(&self.queue).blocked.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// There is room to send again.
    pub(crate) fn writable(&self) {
        let mut queue = lock(&self.queue);
        if queue.is_sending {
            queue.again = true;
        } else if queue.blocked.is_some() {
            drop(queue);
            self.send_all(true);
        }
    }

    /// Sends what the client takes.
    pub(crate) fn flush(&self) {
        self.send_all(false);
    }

    fn send_all(&self, is_writable: bool) {
        let mut queue = lock(&self.queue);
        if queue.is_sending || queue.blocked.is_some() && !is_writable {
            return;
        }
        queue.is_sending = true;
        while !queue.replies.is_empty() && !self.is_dead() {
            let count = queue.replies.len().min(BATCH_MAX);
            let mut batch: VecDeque<Reply> = queue.replies.drain(..count).collect();
            let skip = std::mem::take(&mut queue.sent_bytes);
            queue.again = false;
            drop(queue);
            let (outcome, finished, rest_bytes) = self.send(&mut batch, skip);
            self.sent(finished);
            queue = lock(&self.queue);
            queue.sent_bytes = rest_bytes;
            while let Some(reply) = batch.pop_back() {
                queue.replies.push_front(reply);
            }
            match outcome {
                Ok(()) => queue.blocked = None,
                Err(Errno::AGAIN) if queue.again => {}
                Err(Errno::AGAIN) => {
                    if finished > 0 || queue.blocked.is_none() {
                        queue.blocked = Some(Instant::now());
                    }
                    break;
                }
                Err(_) => {
                    queue.is_sending = false;
                    drop(queue);
                    return self.kill();
                }
            }
        }
        queue.is_sending = false;
    }

    /// Sends the batch once; takes what is sent out of it. How many replies that was, and how much of the next.
    fn send(&self, batch: &mut VecDeque<Reply>, skip: usize) -> (Result<(), Errno>, usize, usize) {
        let mut gather = Gather::new(skip);
        for reply in &*batch {
            gather.bytes(&reply.head);
            if let Some((source, _)) = &reply.data {
                gather.source(source);
            }
        }
        let outcome = self.stream.send(&mut gather);
        drop(gather);
        let mut sent = skip + outcome.unwrap_or(0);
        let mut finished = 0;
        while let Some(first) = batch.front().map(Reply::len_bytes).filter(|len| *len <= sent) {
            sent -= first;
            finished += 1;
            batch.pop_front();
        }
        (outcome.map(drop), finished, sent)
    }

    /// So many replies are sent, or will never be.
    fn sent(&self, count: usize) {
        if count == 0 {
            return;
        }
        self.under_way.fetch_sub(count, Ordering::SeqCst);
        if self.is_awaited.load(Ordering::SeqCst) && self.is_awaited.swap(false, Ordering::SeqCst) {
            self.wake.notify();
        }
    }
}
